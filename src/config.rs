//! Helpers to read settings from a configuration file with [serde](https://docs.rs/serde).
//!
//! [`RedisBackendBuilder`](crate::backend::RedisBackendBuilder) can be read as it is. For the
//! settings of caches and locks, a service has a type of its own, in which [`duration`] reads the
//! times:
//!
//! ```
//! use std::time::Duration;
//! use bellwether::{Cache, MemoryBackend};
//! use serde::Deserialize;
//!
//! #[derive(Deserialize)]
//! struct Products {
//!     #[serde(with = "bellwether::config::duration")]
//!     ttl: Duration,
//!     max_loads: usize,
//! }
//!
//! let text = r#"{ "ttl": "1m 30s", "max_loads": 100 }"#;
//! let config: Products = serde_json::from_str(text).unwrap();
//! assert_eq!(config.ttl, Duration::from_secs(90));
//! let builder = Cache::<String>::builder(MemoryBackend::new(), "products");
//! let cache = builder.ttl(config.ttl).max_loads(config.max_loads).build()?;
//! # Ok::<_, bellwether::Error>(())
//! ```

/// Reads and writes a [`Duration`](std::time::Duration) as text, such as `250ms`, `5s` or `1h 30m`.
///
/// The units are `us`, `ms`, `s`, `m`, `h` and `d`, each after a whole number. A number without a
/// unit is refused, because configuration files disagree about its meaning.
pub mod duration {
    use std::{fmt, time::Duration};

    use serde::{Deserializer, Serializer, de};

    const UNITS: [(&str, u64); 6] = [
        ("d", 86_400_000_000),
        ("h", 3_600_000_000),
        ("m", 60_000_000),
        ("s", 1_000_000),
        ("ms", 1_000),
        ("us", 1),
    ];

    /// Reads a duration.
    ///
    /// # Errors
    ///
    /// If the value is not a text of whole numbers with units.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        struct Text;

        impl de::Visitor<'_> for Text {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration with its unit, such as \"250ms\", \"5s\" or \"1h 30m\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                let invalid = || E::invalid_value(de::Unexpected::Str(text), &self);
                super::duration_of(text).ok_or_else(invalid)
            }
        }

        deserializer.deserialize_str(Text)
    }

    /// Writes a duration, cut to whole microseconds.
    ///
    /// # Errors
    ///
    /// As the serializer.
    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        let mut rest = u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        let mut words = Vec::new();
        for (unit, micros) in UNITS {
            let count = rest / micros;
            rest %= micros;
            if count > 0 {
                words.push(format!("{count}{unit}"));
            }
        }
        match words.is_empty() {
            true => serializer.serialize_str("0s"),
            false => serializer.serialize_str(&words.join(" ")),
        }
    }

    pub(super) fn micros_of(unit: &str) -> Option<u64> {
        UNITS.iter().find(|(name, _)| *name == unit).map(|(_, micros)| *micros)
    }
}

/// Reads numbers with units, with or without spaces between them.
fn duration_of(text: &str) -> Option<std::time::Duration> {
    let mut rest = text.trim();
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let end = rest.find(|character: char| !character.is_ascii_digit())?;
        let (number, after) = rest.split_at(end);
        let end = after.find(|character: char| !character.is_ascii_alphabetic());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let part = number.parse::<u64>().ok()?.checked_mul(duration::micros_of(unit)?)?;
        sum = sum.checked_add(part)?;
        rest = after.trim_start();
    }
    (!text.trim().is_empty()).then(|| std::time::Duration::from_micros(sum))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde::de::{IntoDeserializer, value::Error};

    use super::*;

    #[test]
    fn a_duration_is_whole_numbers_with_units() {
        for (text, micros) in [
            ("250ms", Some(250_000)),
            ("5s", Some(5_000_000)),
            ("0s", Some(0)),
            (" 1h 30m ", Some(5_400_000_000)),
            ("1m30s", Some(90_000_000)),
            ("2d", Some(172_800_000_000)),
            ("7us", Some(7)),
            ("", None),
            ("5", None),
            ("s", None),
            ("-5s", None),
            ("1.5s", None),
            ("5 s", None),
            ("5S", None),
            ("5s 3", None),
            ("99999999999999999999s", None),
            ("99999999999999999d", None),
        ] {
            let text: serde::de::value::StrDeserializer<'_, Error> = text.into_deserializer();
            let read = duration::deserialize(text).ok();
            assert_eq!(read, micros.map(Duration::from_micros), "{text:?}");
        }
    }

    #[test]
    fn a_duration_that_was_written_is_read() {
        for micros in [0, 1, 999, 1_000, 90_000_000, 5_400_250_007, u64::MAX] {
            let duration = Duration::from_micros(micros);
            let mut text = Vec::new();
            let mut json = serde_json::Serializer::new(&mut text);
            duration::serialize(&duration, &mut json).unwrap();
            let mut json = serde_json::Deserializer::from_slice(&text);
            assert_eq!(duration::deserialize(&mut json).unwrap(), duration);
        }
    }
}
