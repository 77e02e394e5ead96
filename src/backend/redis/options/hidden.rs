//! Errors of a configuration that do not show its values.
//!
//! The error of a format shows the value that has a wrong type. It may be a password, or a URL with
//! one. So such an error is replaced by one that names the place and what is expected there.

use std::{cell::Cell, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, SeqAccess, Visitor},
    forward_to_deserialize_any,
};

/// Reads a value. Its errors name it as a whole.
pub(super) fn value<'de, T, D>(from: D, place: &str, expected: &str) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    T::deserialize(from).map_err(|_shows_the_value| mistake(place, expected))
}

/// Reads a struct whose fields hide their values. `T` must derive [`Deserialize`].
pub(super) fn fields<'de, T, D>(from: D, place: &str, expected: &str) -> Result<T, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let has_begun = &Cell::new(false);
    T::deserialize(OfStruct { from, has_begun }).map_err(|error| match has_begun.get() {
        true => error,
        false => mistake(place, expected),
    })
}

fn mistake<E: Error>(place: &str, expected: &str) -> E {
    E::custom(format_args!("{place} must be {expected}"))
}

/// Notes whether the fields of a struct are being read. An error before that is of the format.
struct OfStruct<'a, T> {
    from: T,
    has_begun: &'a Cell<bool>,
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for OfStruct<'_, D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.from.deserialize_any(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, D::Error> {
        let visitor = OfStruct { from: visitor, has_begun: self.has_begun };
        self.from.deserialize_struct(name, fields, visitor)
    }

    fn is_human_readable(&self) -> bool {
        self.from.is_human_readable()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

impl<'de, V: Visitor<'de>> Visitor<'de> for OfStruct<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.from.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<V::Value, A::Error> {
        self.has_begun.set(true);
        self.from.visit_map(map)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<V::Value, A::Error> {
        self.has_begun.set(true);
        self.from.visit_seq(seq)
    }
}
