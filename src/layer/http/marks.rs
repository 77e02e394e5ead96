//! Which keys have answers that belong to their callers, in this process: *hit-for-miss*.
//!
//! While a key has a mark, its requests go to the inner service in parallel. The first answer to a
//! `GET` whose headers allow sharing ends the mark. An answer to a request with an `Authorization`
//! marks the key for such requests alone.
//!
//! Another mark says that the service confirms a stored response of the key by another tag. Only
//! time ends that mark.

use std::{hash::BuildHasher, time::Duration};

use quick_cache::sync::Cache;
use tokio::time::Instant;

use crate::{cache::shared_load::UNCACHEABLE_LIFE, key::Key, random::Hasher};

/// How many marks are remembered. Beyond that, the mark of a key that few requests ask for is
/// forgotten.
const MOST_MARKS: usize = 10_000;

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

/// What a process knows of a key whose answers may belong to their callers.
pub(super) enum MarkedAs {
    /// The requests of the key go alone.
    Alone,
    /// This process has no mark. If the fleet has a mark, this process obeys it.
    Unknown,
    /// This process has seen an answer that could be shared. If the fleet has a mark, this process
    /// claims the lease in spite of it.
    WasShareable,
}

pub(super) struct Marks {
    /// By the hash of the key and of what the mark is about. Two keys with one hash share a mark.
    /// That is harmless, because a mark decides which requests wait, never what is shared.
    by_key: Cache<u64, KeyMark>,
    hasher: Hasher,
}

#[derive(Clone, Copy)]
struct KeyMark {
    since: Instant,
    /// An answer could be shared since then. The fleet may still have a mark.
    is_ended: bool,
}

impl Marks {
    pub(super) fn new() -> Self {
        Self { by_key: Cache::new(MOST_MARKS), hasher: Hasher::default() }
    }

    /// Returns what this process knows of the key of a request.
    pub(super) fn of_request(&self, key: &Key, is_authorized: bool) -> MarkedAs {
        let of_all = self.get(key, MarkOf::All, UNCACHEABLE_LIFE);
        if of_all.is_some_and(|mark| !mark.is_ended) {
            return MarkedAs::Alone;
        }
        let of_authorized = self.get(key, MarkOf::Authorized, UNCACHEABLE_LIFE);
        if is_authorized && of_authorized.is_some_and(|mark| !mark.is_ended) {
            return MarkedAs::Alone;
        }
        if of_all.is_some() { MarkedAs::WasShareable } else { MarkedAs::Unknown }
    }

    /// Returns whether a load of a key sends the validators of a stale response.
    pub(super) fn permits_conditions(&self, key: &Key) -> bool {
        self.get(key, MarkOf::Conditions, WITHOUT_CONDITIONS).is_none()
    }

    /// Sets a mark. `All` and `Authorized`: an answer could not be shared. `Conditions`: the
    /// validators of a load were useless.
    pub(super) fn set(&self, key: &Key, of: MarkOf) {
        self.put(key, of, false);
    }

    /// Ends the marks of a key that concern a request, because the answer to that request could be
    /// shared. The end is remembered even without a mark here, because the fleet may have a mark.
    pub(super) fn end(&self, key: &Key, is_authorized: bool) {
        self.put(key, MarkOf::All, true);
        if is_authorized {
            self.put(key, MarkOf::Authorized, true);
        }
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
