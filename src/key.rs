//! Names: what a user calls an entry, and what Redis calls everything that belongs to it.

use std::{borrow::Cow, fmt, sync::Arc};

use crate::error::{Error, ErrorKind};

/// The name of one entry or lock, made once and cheap to clone.
///
/// Any text that is not empty is a key; how long it may be is a setting of the cache or of the locks
/// (512 bytes unless another limit is set). Nothing in it has a meaning: braces are escaped before
/// they reach Redis, so a key can neither choose nor split its slot in a cluster.
///
/// ```
/// use bellwether::Key;
///
/// assert_eq!(Key::from("product:42"), Key::from(String::from("product:42")));
/// assert_eq!(Key::from(42_u64).as_str(), "42");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Arc<str>);

impl Key {
    /// The text of the key.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl From<&String> for Key {
    fn from(text: &String) -> Self {
        Self(text.as_str().into())
    }
}

impl From<Arc<str>> for Key {
    fn from(text: Arc<str>) -> Self {
        Self(text)
    }
}

impl From<&Key> for Key {
    fn from(key: &Key) -> Self {
        key.clone()
    }
}

macro_rules! from_integer {
    ($($integer:ty),*) => {$(
        impl From<$integer> for Key {
            fn from(number: $integer) -> Self {
                Self(number.to_string().into())
            }
        }
    )*};
}

from_integer!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A short word in front of every name, so that two services share one Redis without meeting.
///
/// One to 64 letters, digits, `.`, `_` or `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace(Arc<str>);

impl Namespace {
    /// The namespace that is used where none is named: `bellwether`.
    pub fn standard() -> Self {
        Self("bellwether".into())
    }

    /// Checks and takes a namespace.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if the word is empty, longer than 64 bytes, or has another character
    /// than letters, digits, `.`, `_` and `-`.
    pub fn new(word: &str) -> Result<Self, Error> {
        let fits = !word.is_empty()
            && word.len() <= 64
            && word
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        if fits {
            Ok(Self(word.into()))
        } else {
            Err(Error::new(
                ErrorKind::InvalidConfig,
                format!("the namespace {word:?} is not 1 to 64 letters, digits, '.', '_' or '-'"),
            ))
        }
    }
}

/// What a name names. A cache and a lock of one name never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// An entry of a cache.
    Cache,
    /// A lock.
    Lock,
    /// A share of a lock that is held at a majority of servers.
    Redlock,
}

/// A [`Key`] within a [`Namespace`] and a [`Family`]: what a backend is asked about.
///
/// Every Redis key of one name starts with [`Name::prefix`], `namespace:family:{key}:`, and so lies in
/// the one slot that the text in the braces decides. `%`, `{` and `}` in the key are written as `%25`,
/// `%7B` and `%7D`; the mapping is one to one, so two keys never share a name.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Name {
    prefix: Arc<str>,
    schema: u16,
    family: Family,
}

impl Name {
    /// Checks a key and derives its name.
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
        Self::check(key, limit)?;
        let text = key.as_str();
        let within = match family {
            Family::Cache => ":c:{",
            Family::Lock => ":l:{",
            Family::Redlock => ":r:{",
        };
        let mut prefix = String::with_capacity(namespace.0.len() + text.len() + 6);
        prefix.push_str(&namespace.0);
        prefix.push_str(within);
        let mut rest = text;
        while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'%' | b'{' | b'}')) {
            prefix.push_str(&rest[..at]);
            prefix.push_str(match rest.as_bytes()[at] {
                b'%' => "%25",
                b'{' => "%7B",
                _ => "%7D",
            });
            rest = &rest[at + 1..];
        }
        prefix.push_str(rest);
        prefix.push_str("}:");
        Ok(Self { prefix: prefix.into(), schema: 0, family })
    }

    /// Whether a key can be a name.
    pub(crate) fn check(key: &Key, limit: usize) -> Result<(), Error> {
        match key.as_str().len() {
            0 => Err(Error::new(ErrorKind::InvalidKey, "the key or name is empty")),
            length if length > limit => Err(Error::new(
                ErrorKind::InvalidKey,
                format!("the key or name has {length} bytes, more than the limit of {limit}"),
            )),
            _ => Ok(()),
        }
    }

    /// The same name, with the entries of another schema (see [`schema`](crate::cache::Builder::schema)).
    pub fn with_schema(mut self, schema: u16) -> Self {
        self.schema = schema;
        self
    }

    /// What every Redis key of this name starts with.
    pub fn prefix(&self) -> &Arc<str> {
        &self.prefix
    }

    /// What it is the name of.
    pub fn family(&self) -> Family {
        self.family
    }

    /// The schema whose entries are read and written under this name.
    pub fn schema(&self) -> u16 {
        self.schema
    }

    /// A Redis key of this name.
    pub fn suffixed(&self, suffix: &str) -> String {
        let mut text = String::with_capacity(self.prefix.len() + suffix.len());
        text.push_str(&self.prefix);
        text.push_str(suffix);
        text
    }

    /// The Redis key of the entry.
    pub fn entry(&self) -> String {
        self.entry_of(self.schema)
    }

    /// The Redis keys of the entries of the schemas before and after this one.
    pub fn neighbours(&self) -> [String; 2] {
        [self.entry_of(self.schema.wrapping_sub(1)), self.entry_of(self.schema.wrapping_add(1))]
    }

    fn entry_of(&self, schema: u16) -> String {
        self.suffixed(&entry_suffix(schema))
    }

    /// What follows the prefix in the Redis key of the entry.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn entry_suffix(&self) -> Cow<'static, str> {
        entry_suffix(self.schema)
    }
}

fn entry_suffix(schema: u16) -> Cow<'static, str> {
    match schema {
        0 => "e".into(),
        other => format!("e{other}").into(),
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Name({}schema {})", self.prefix, self.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(key: &str) -> String {
        Name::new(&Namespace::standard(), Family::Cache, &Key::from(key), 512)
            .map(|name| name.entry())
            .unwrap_or_default()
    }

    #[test]
    fn braces_never_reach_the_hash_tag() {
        assert_eq!(name("a{b}c%"), "bellwether:c:{a%7Bb%7Dc%25}:e");
        assert_ne!(name("a%7Bb"), name("a{b"));
    }

    #[test]
    fn empty_and_long_keys_are_refused() {
        assert_eq!(name(""), "");
        assert_eq!(name(&"k".repeat(513)), "");
        assert_ne!(name(&"k".repeat(512)), "");
    }

    #[test]
    fn a_namespace_is_one_short_word() {
        for bad in ["", "a:b", "a b", "{a}", &"n".repeat(65)] {
            assert!(Namespace::new(bad).is_err(), "{bad:?} was taken");
        }
        assert!(Namespace::new("shop.eu-1_a").is_ok());
    }
}
