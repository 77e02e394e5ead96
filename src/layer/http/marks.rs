//! Which keys have answers that belong to their callers, in this process: *hit-for-miss*.
//!
//! While a key has a mark, its requests go to the inner service in parallel. The first answer to a
//! `GET` whose headers allow sharing ends it.

use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::{
    cache::{OnUncacheable, UNCACHEABLE_LIFE},
    key::Key,
};

/// How many keys are remembered. Beyond it, one that few requests ask for is forgotten.
const MOST_KEYS: usize = 10_000;

pub(super) struct Marks {
    of_all: Cache<Key, KeyMark>,
    /// Those that count for requests with an `Authorization` only.
    of_authorized: Cache<Key, KeyMark>,
}

#[derive(Clone, Copy)]
struct KeyMark {
    since: Instant,
    /// An answer that could be shared has ended it, and the fleet may still have it.
    is_ended: bool,
}

impl KeyMark {
    fn now(is_ended: bool) -> Self {
        Self { since: Instant::now(), is_ended }
    }

    fn of(marks: &Cache<Key, Self>, key: &Key) -> Option<Self> {
        marks.get(key).filter(|mark| mark.since.elapsed() < UNCACHEABLE_LIFE)
    }
}

impl Marks {
    pub(super) fn new() -> Self {
        Self { of_all: Cache::new(MOST_KEYS), of_authorized: Cache::new(MOST_KEYS) }
    }

    /// Returns what becomes of a request if the fleet has a mark for its key. Returns `None` if the
    /// request goes alone, because of a mark of this process.
    pub(super) fn on_uncacheable(&self, key: &Key, is_authorized: bool) -> Option<OnUncacheable> {
        match KeyMark::of(&self.of_all, key) {
            Some(KeyMark { is_ended: false, .. }) => None,
            _ if is_authorized && KeyMark::of(&self.of_authorized, key).is_some() => None,
            Some(KeyMark { is_ended: true, .. }) => Some(OnUncacheable::Claim),
            None => Some(OnUncacheable::Pass),
        }
    }

    /// Marks a key for all requests, or for those with an `Authorization`. The answer to one of
    /// them that led belongs to its caller.
    pub(super) fn set(&self, key: &Key, of_authorized: bool) {
        let marks = if of_authorized { &self.of_authorized } else { &self.of_all };
        marks.insert(key.clone(), KeyMark::now(false));
    }

    /// Ends the mark of a key, because an answer could be shared.
    pub(super) fn end(&self, key: &Key) {
        self.of_all.insert(key.clone(), KeyMark::now(true));
    }
}
