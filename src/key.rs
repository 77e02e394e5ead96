//! Keys and names. A user identifies an entry or a lock by a [`Key`]. The crate derives a [`Name`]
//! from the key, and all Redis keys of the entry or the lock start with the name.

use std::{
    borrow::{Borrow, Cow},
    fmt,
    sync::Arc,
};

use crate::error::{Error, ErrorKind};

#[doc(hidden)]
pub use crate::escape::acts_on_a_terminal;
pub use crate::escape::{Escaped, unescape};

/// Identifies one entry or lock. A key is cheap to clone.
///
/// A key is any text that is not empty. The greatest length is a setting of the cache or of the
/// locks, and defaults to 512 bytes. No character has a special meaning. Braces are escaped before
/// they reach Redis, so a key cannot choose its slot in a cluster.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub(crate) text: Arc<str>,
}

impl Key {
    /// Returns the text of the key.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self { text: text.into() }
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self { text: text.into() }
    }
}

impl From<&String> for Key {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl From<Arc<str>> for Key {
    fn from(text: Arc<str>) -> Self {
        Self { text }
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

/// A key and its text are equal, ordered and hashed alike.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.text
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// A type that becomes a [`Key`] only where a key is needed. A copy of the [local
/// tier](crate::cache::Builder::local) is found by the text alone, without an allocation.
///
/// A type of your own needs one more line than its conversion:
///
/// ```
/// use bellwether::{Key, key::IntoKey};
///
/// struct ProductId(u64);
///
/// impl From<ProductId> for Key {
///     fn from(id: ProductId) -> Self {
///         Self::from(format!("product:{}", id.0))
///     }
/// }
///
/// impl IntoKey for ProductId {}
/// ```
#[diagnostic::on_unimplemented(note = "a key of several parts is a text of them")]
pub trait IntoKey: Into<Key> {
    /// Returns the text of the key, if no allocation is needed for it.
    #[doc(hidden)]
    fn key_text(&self) -> Option<&str> {
        None
    }
}

macro_rules! has_text {
    ($($text:ty),*) => {$(
        impl IntoKey for $text {
            #[doc(hidden)]
            fn key_text(&self) -> Option<&str> {
                Some(self.as_ref())
            }
        }
    )*};
}

has_text!(&str, String, &String, Arc<str>, Key, &Key);

macro_rules! from_integer {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Key {
            fn from(number: $integer) -> Self {
                Self { text: number.to_string().into() }
            }
        }

        impl IntoKey for $integer {}
    )*};
}

from_integer!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Separates the names of services that share one Redis. Every name begins with its namespace.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the namespace `bellwether`.
    pub fn standard() -> Self {
        Self("bellwether".into())
    }

    /// Creates a namespace from a word.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the word is empty, is longer than 64 bytes, or has a
    /// character other than ASCII letters, digits, `.`, `_` and `-`.
    pub fn new(word: &str) -> Result<Self, Error> {
        if (1..=64).contains(&word.len()) && word.bytes().all(fits_in_namespace) {
            return Ok(Self(word.into()));
        }
        let right = "use 1 to 64 ASCII letters, digits, '.', '_' or '-'";
        Err(Error::new(ErrorKind::InvalidConfig, format!("invalid namespace {word:?}: {right}")))
    }
}

fn fits_in_namespace(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

/// The kinds of things that have a name. A cache entry and a lock with the same key have different
/// names.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// A cache entry.
    Cache,
    /// A lock.
    Lock,
    /// The part of a `Redlock`'s lock at one server.
    Redlock,
    /// The tags of a namespace.
    Tags,
}

/// Identifies an entry or a lock to a backend: a [`Key`] within a [`Namespace`] and a [`Family`].
///
/// Every Redis key of a name starts with [`Name::prefix`], `namespace:family:{key}:`. The text in
/// the braces decides the cluster slot, so all Redis keys of a name are in one slot. In this text,
/// `%`, `{` and `}` become `%25`, `%7B` and `%7D`. Two keys never have the same name.
#[doc(hidden)]
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name {
    pub(crate) prefix: Arc<str>,
    /// The [schema](crate::cache::Builder::schema) of the entries under this name.
    pub(crate) schema: u16,
    pub(crate) family: Family,
}

impl Name {
    /// Checks a key of at most `limit` bytes, and derives its name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidKey`] if the key is empty or longer than `limit` bytes.
    pub fn new(
        namespace: &Namespace,
        family: Family,
        key: &Key,
        limit: usize,
    ) -> Result<Self, Error> {
        if !(1..=limit).contains(&key.text.len()) {
            return Err(unfit(family, key, limit));
        }
        Ok(Self { prefix: prefix(&namespace.0, family, &key.text).into(), schema: 0, family })
    }

    /// Returns the name with this prefix, if the prefix belongs to this namespace and family.
    pub(crate) fn from_prefix(namespace: &Namespace, family: Family, prefix: &str) -> Option<Self> {
        let key = key_of(prefix.split_once('{')?.1)?;
        let name = Self::new(namespace, family, &Key::from(&*key), usize::MAX).ok()?;
        (*name.prefix == *prefix).then_some(name)
    }

    /// Returns the name of a lock with this prefix.
    pub(crate) fn of_lock(prefix: &str) -> Self {
        Self { prefix: prefix.into(), schema: 0, family: Family::Lock }
    }

    /// Returns the name under which a namespace keeps its tags.
    pub(crate) fn of_tags(namespace: &Namespace) -> Self {
        let family = Family::Tags;
        Self { prefix: prefix(&namespace.0, family, "tags").into(), schema: 0, family }
    }

    /// Returns the prefix of the name of another key, in the same namespace and family.
    pub(crate) fn prefix_of_sibling(&self, key: &str) -> String {
        // A namespace has no colon.
        let namespace = self.prefix.split(':').next().unwrap_or_default();
        prefix(namespace, self.family, key)
    }

    /// Returns the first part of the prefix: the namespace and the family.
    #[cfg(feature = "redis")]
    pub(crate) fn scope(&self) -> &str {
        // A namespace has no brace.
        self.prefix.split_once('{').map_or("", |(scope, _)| scope)
    }

    /// Returns the same name with the entries of another [schema](crate::cache::Builder::schema).
    pub fn with_schema(mut self, schema: u16) -> Self {
        self.schema = schema;
        self
    }

    /// Returns the start of every Redis key of this name.
    pub fn prefix(&self) -> &Arc<str> {
        &self.prefix
    }

    /// Returns the text of the key, for errors and logs.
    pub(crate) fn key(&self) -> Cow<'_, str> {
        let (_, rest) = self.prefix.split_once('{').unwrap_or_default();
        key_of(rest).unwrap_or_default()
    }

    /// Returns the Redis key of this name with a suffix.
    pub fn suffixed(&self, suffix: &str) -> String {
        [&*self.prefix, suffix].concat()
    }

    /// Returns the Redis key of the entry.
    pub fn entry(&self) -> String {
        self.suffixed(&self.entry_suffix())
    }

    /// Returns the part of the Redis key of the entry that follows the prefix.
    pub(crate) fn entry_suffix(&self) -> Cow<'static, str> {
        match self.schema {
            0 => "e".into(),
            other => format!("e{other}").into(),
        }
    }
}

/// Returns the error of a key that is empty, or longer than the limit.
fn unfit(family: Family, key: &Key, limit: usize) -> Error {
    let (what, setting) = match family {
        Family::Cache | Family::Tags => ("key", "max_key"),
        Family::Lock | Family::Redlock => ("name", "max_name"),
    };
    let wrong = match key.text.len() {
        0 => "is empty; give at least 1 byte".to_owned(),
        length => format!("has {length} bytes; shorten it, or raise `{setting}` of {limit}"),
    };
    Error::new(ErrorKind::InvalidKey, format!("the {what} {wrong}"))
}

/// Returns the start of the Redis keys of a key.
fn prefix(namespace: &str, family: Family, key: &str) -> String {
    let family = match family {
        Family::Cache => ":c:{",
        Family::Lock => ":l:{",
        Family::Redlock => ":r:{",
        Family::Tags => ":t:{",
    };
    let key = escaped(key);
    let mut prefix = String::with_capacity(namespace.len() + family.len() + key.len() + 2);
    prefix.push_str(namespace);
    prefix.push_str(family);
    prefix.push_str(&key);
    prefix.push_str("}:");
    prefix
}

/// Escapes braces, and `%` as well, so that no two keys have the same form.
fn escaped(key: &str) -> Cow<'_, str> {
    if !key.contains(['%', '{', '}']) {
        return key.into();
    }
    let mut escaped = String::with_capacity(key.len() + 8);
    for letter in key.chars() {
        match letter {
            '%' => escaped.push_str("%25"),
            '{' => escaped.push_str("%7B"),
            '}' => escaped.push_str("%7D"),
            other => escaped.push(other),
        }
    }
    escaped.into()
}

/// Returns the key of a name. `rest` is the part of the prefix behind the first brace.
pub(crate) fn key_of(rest: &str) -> Option<Cow<'_, str>> {
    let escaped = rest.strip_suffix("}:")?;
    if !escaped.contains('%') {
        return Some(escaped.into());
    }
    let with_open = escaped.replace("%7B", "{");
    let with_braces = with_open.replace("%7D", "}");
    // Last, because an escaped `%` may stand before `7B` or `7D`.
    Some(with_braces.replace("%25", "%").into())
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.prefix.trim_end_matches(':'))?;
        match self.schema {
            0 => Ok(()),
            schema => write!(f, " of schema {schema}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_gives_its_key_back() -> Result<(), Error> {
        for key in ["k", "a{b}c%", "%7B", "a:b:", "%25}", "ü:{}"] {
            let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from(key), 512)?;
            assert_eq!(name.key(), key);
        }
        Ok(())
    }
}
