//! Keys and names: a [`Key`] is what a user calls an entry or a lock. A [`Name`] is derived from
//! it, and starts the Redis keys of everything that belongs to that entry or lock.

use std::{
    borrow::{Borrow, Cow},
    fmt,
    sync::Arc,
};

use crate::error::{Error, ErrorKind};

#[doc(hidden)]
pub use crate::escape::acts_on_a_terminal;
pub use crate::escape::{Escaped, unescape};

/// Identifies one entry or lock. It is cheap to clone.
///
/// A key is any text that is not empty. Its longest length is a setting of the cache or of the
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

/// Both are equal, ordered and hashed alike.
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

/// A type that becomes a [`Key`] only where one is needed. A copy of the [local
/// tier](crate::cache::Builder::local) is found by the text alone, without an allocation.
///
/// A type of your own that becomes a key needs one line more:
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
    /// Returns the text of the key that this becomes, if it is there already.
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

/// Separates the names of services that share one Redis. It is the first part of every name.
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
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
        if (1..=64).contains(&word.len()) && word.bytes().all(fits) {
            return Ok(Self(word.into()));
        }
        let right = "use 1 to 64 ASCII letters, digits, '.', '_' or '-'";
        Err(Error::new(ErrorKind::InvalidConfig, format!("invalid namespace {word:?}: {right}")))
    }
}

/// The kinds of things that have a name. A cache entry and a lock with one key have different
/// names.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// A cache entry.
    Cache,
    /// A lock.
    Lock,
    /// A share of a lock that is held at a majority of servers.
    Redlock,
    /// The tags of a namespace.
    Tags,
}

/// Identifies an entry or a lock to a backend: a [`Key`] within a [`Namespace`] and a [`Family`].
///
/// Every Redis key of one name starts with [`Name::prefix`], `namespace:family:{key}:`. So all of
/// them are in one cluster slot, which the text in the braces decides. In this text, `%`, `{` and
/// `}` become `%25`, `%7B` and `%7D`. Two keys never have the same name.
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

    /// Returns the name with this prefix, if it is one of this namespace and family.
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
        prefix(self.prefix.split(':').next().unwrap_or_default(), self.family, key)
    }

    /// Returns the namespace and the family, as the prefix begins.
    #[cfg(feature = "redis")]
    pub(crate) fn scope(&self) -> &str {
        // A namespace has no brace.
        self.prefix.split('{').next().unwrap_or_default()
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

/// Returns the start of the Redis keys of a key. `%` is escaped too, so the mapping is one to one.
fn prefix(namespace: &str, family: Family, key: &str) -> String {
    let family = match family {
        Family::Cache => ":c:",
        Family::Lock => ":l:",
        Family::Redlock => ":r:",
        Family::Tags => ":t:",
    };
    let escaped: Cow<'_, str> = match key.contains(['%', '{', '}']) {
        true => key.replace('%', "%25").replace('{', "%7B").replace('}', "%7D").into(),
        false => key.into(),
    };
    [namespace, family, "{", &escaped, "}:"].concat()
}

/// Returns the key of a name whose prefix ends with this, behind its first brace.
pub(crate) fn key_of(rest: &str) -> Option<Cow<'_, str>> {
    let escaped = rest.strip_suffix("}:")?;
    Some(match escaped.contains('%') {
        true => escaped.replace("%7B", "{").replace("%7D", "}").replace("%25", "%").into(),
        false => escaped.into(),
    })
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
