//! The keys of a server, each with its value and the time at which it expires.

use std::collections::BTreeMap;

/// A time of the server's clock in milliseconds.
pub type Millis = i64;

pub type Key = Vec<u8>;

/// The fields of a hash.
pub type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Text(Vec<u8>),
    Hash(Fields),
    Sorted(Sorted),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub value: Value,
    pub expires: Option<Millis>,
}

/// The keys. Their order is that of a scan.
#[derive(Clone, Debug, Default)]
pub struct Keyspace {
    keys: BTreeMap<Key, Stored>,
}

impl Keyspace {
    /// Returns a key that has not expired. One that has is removed.
    pub fn get(&mut self, key: &[u8], now: Millis) -> Option<&mut Stored> {
        let is_over = self.keys.get(key)?.expires.is_some_and(|at| now > at);
        if is_over {
            self.keys.remove(key);
            return None;
        }
        self.keys.get_mut(key)
    }

    /// Sets a key, whatever stands there.
    pub fn set(&mut self, key: &[u8], value: Value, expires: Option<Millis>) {
        self.keys.insert(key.to_vec(), Stored { value, expires });
    }

    /// Removes a key. Returns whether it stood.
    pub fn remove(&mut self, key: &[u8], now: Millis) -> bool {
        self.get(key, now).is_some() && self.keys.remove(key).is_some()
    }

    pub fn take(&mut self, key: &[u8], now: Millis) -> Option<Stored> {
        self.get(key, now)?;
        self.keys.remove(key)
    }

    pub fn put_back(&mut self, key: &[u8], stored: Stored) {
        self.keys.insert(key.to_vec(), stored);
    }

    /// Removes a collection that has become empty.
    pub fn drop_if_empty(&mut self, key: &[u8]) {
        let is_empty = self.keys.get(key).is_some_and(|stored| match &stored.value {
            Value::Text(_) => false,
            Value::Hash(fields) => fields.is_empty(),
            Value::Sorted(members) => members.len() == 0,
        });
        if is_empty {
            self.keys.remove(key);
        }
    }

    /// Returns all keys that have not expired.
    pub fn all(&self, now: Millis) -> impl Iterator<Item = (&Key, &Stored)> {
        let lives = move |stored: &Stored| stored.expires.is_none_or(|at| now <= at);
        self.keys.iter().filter(move |(_, stored)| lives(stored))
    }

    pub fn clear(&mut self) {
        self.keys.clear();
    }
}

/// A sorted set: members in the order of their scores, and of their bytes among equal scores.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sorted(Vec<(f64, Vec<u8>)>);

impl Sorted {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn score(&self, member: &[u8]) -> Option<f64> {
        self.0.iter().find(|(_, other)| other == member).map(|(score, _)| *score)
    }

    pub fn remove(&mut self, member: &[u8]) -> bool {
        let at = self.0.iter().position(|(_, other)| other == member);
        at.map(|at| self.0.remove(at)).is_some()
    }

    pub fn insert(&mut self, score: f64, member: &[u8]) {
        self.remove(member);
        let is_before = |other: &(f64, Vec<u8>)| match other.0.total_cmp(&score) {
            std::cmp::Ordering::Equal => other.1.as_slice() < member,
            order => order.is_lt(),
        };
        let at = self.0.partition_point(is_before);
        self.0.insert(at, (score, member.to_vec()));
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &(f64, Vec<u8>)> {
        self.0.iter()
    }
}
