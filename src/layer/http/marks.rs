//! Which keys have answers that belong to their callers, in this process: *hit-for-miss*.
//!
//! While a key has a mark, its requests go to the inner service in parallel. The first answer to a
//! `GET` whose headers allow sharing ends it.

use std::hash::BuildHasher;

use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::{
    cache::{OnUncacheable, UNCACHEABLE_LIFE},
    key::Key,
    random::Hasher,
};

/// How many keys are remembered. Beyond it, one that few requests ask for is forgotten.
const MOST_KEYS: usize = 10_000;

pub(super) struct Marks {
    /// By the hash of the key, and whether it is for requests with an `Authorization` only. Two
    /// keys with one hash share a mark, which is harmless: it decides which requests wait, never
    /// what is shared.
    by_key: Cache<u64, KeyMark>,
    hasher: Hasher,
}

#[derive(Clone, Copy)]
struct KeyMark {
    since: Instant,
    /// An answer that could be shared has ended it, and the fleet may still have it.
    is_ended: bool,
}

impl Marks {
    pub(super) fn new() -> Self {
        Self { by_key: Cache::new(MOST_KEYS), hasher: Hasher::default() }
    }

    /// Returns what becomes of a request if the fleet has a mark for its key. Returns `None` if the
    /// request goes alone, because of a mark of this process.
    pub(super) fn on_uncacheable(&self, key: &Key, is_authorized: bool) -> Option<OnUncacheable> {
        let mark_of = |of_authorized: bool| {
            let mark = self.by_key.get(&self.hasher.hash_one((key, of_authorized)));
            mark.filter(|mark| mark.since.elapsed() < UNCACHEABLE_LIFE)
        };
        match mark_of(false) {
            Some(KeyMark { is_ended: false, .. }) => None,
            _ if is_authorized && mark_of(true).is_some() => None,
            Some(KeyMark { is_ended: true, .. }) => Some(OnUncacheable::Claim),
            None => Some(OnUncacheable::Pass),
        }
    }

    /// Marks a key for all requests, or for those with an `Authorization`. The answer to one of
    /// them that led belongs to its caller.
    pub(super) fn set(&self, key: &Key, of_authorized: bool) {
        self.put(key, of_authorized, false);
    }

    /// Ends the mark of a key, because an answer could be shared.
    pub(super) fn end(&self, key: &Key) {
        self.put(key, false, true);
    }

    fn put(&self, key: &Key, of_authorized: bool, is_ended: bool) {
        let mark = KeyMark { since: Instant::now(), is_ended };
        self.by_key.insert(self.hasher.hash_one((key, of_authorized)), mark);
    }
}
