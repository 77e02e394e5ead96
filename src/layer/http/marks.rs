//! Which keys have answers that belong to their callers, in this process: *hit-for-miss*.
//!
//! While a key has a mark, its requests go to the inner service in parallel. The first answer to a
//! `GET` whose headers allow sharing ends it.
//!
//! Another mark says that the service confirms a stored response of the key by another tag.

use std::{hash::BuildHasher, time::Duration};

use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::{
    cache::{OnUncacheable, UNCACHEABLE_LIFE},
    key::Key,
    random::Hasher,
};

/// How many keys are remembered. Beyond it, one that few requests ask for is forgotten.
const MOST_KEYS: usize = 10_000;

/// For how long the loads of a key send no conditions, after these were in vain.
const WITHOUT_CONDITIONS: Duration = Duration::from_secs(3600);

/// What a mark of a key is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum MarkOf {
    /// All requests.
    All,
    /// The requests with an `Authorization`.
    Authorized,
    /// The conditions that a load sends.
    Conditions,
}

pub(super) struct Marks {
    /// By the hash of the key and of what the mark is about. Two keys with one hash share a mark,
    /// which is harmless: it decides which requests wait, never what is shared.
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
        let living = |of| self.get(key, of, UNCACHEABLE_LIFE);
        match living(MarkOf::All) {
            Some(KeyMark { is_ended: false, .. }) => None,
            _ if is_authorized && living(MarkOf::Authorized).is_some() => None,
            Some(KeyMark { is_ended: true, .. }) => Some(OnUncacheable::Claim),
            None => Some(OnUncacheable::Pass),
        }
    }

    /// Returns whether a load of a key sends the validators of a stale response.
    pub(super) fn permits_conditions(&self, key: &Key) -> bool {
        self.get(key, MarkOf::Conditions, WITHOUT_CONDITIONS).is_none()
    }

    /// Marks a key: the answer to a request that led belongs to its caller, or its conditions were
    /// in vain.
    pub(super) fn set(&self, key: &Key, of: MarkOf) {
        self.put(key, of, false);
    }

    /// Ends the mark of a key, because an answer could be shared.
    pub(super) fn end(&self, key: &Key) {
        self.put(key, MarkOf::All, true);
    }

    fn get(&self, key: &Key, of: MarkOf, life: Duration) -> Option<KeyMark> {
        let mark = self.by_key.get(&self.hasher.hash_one((key, of)));
        mark.filter(|mark| mark.since.elapsed() < life)
    }

    fn put(&self, key: &Key, of: MarkOf, is_ended: bool) {
        let mark = KeyMark { since: Instant::now(), is_ended };
        self.by_key.insert(self.hasher.hash_one((key, of)), mark);
    }
}
