//! Counts the pushes that a waiter may miss while it is about to listen.
//!
//! A claim is sent before its waiter listens, since most claims are granted at once. A claim that
//! is refused listens then, and compares the count with that before the claim. If they are equal,
//! nothing was missed, and the waiter need not ask again.

use std::{
    hash::{BuildHasher, Hash},
    sync::atomic::{AtomicU64, Ordering},
};

use hashbrown::DefaultHashBuilder;

use crate::backend::Owner;

/// The topics and the owners share this many counts. A push for another one with the same count
/// costs a waiter one request.
const COUNTS: usize = 1024;

pub(super) struct MissedPushes {
    hasher: DefaultHashBuilder,
    /// The pushes for one owner that did not listen, and those for all on a topic.
    counts: Box<[AtomicU64]>,
    /// How often any push may have been missed.
    all: AtomicU64,
}

impl Default for MissedPushes {
    fn default() -> Self {
        let counts = (0..COUNTS).map(|_| AtomicU64::new(0)).collect();
        Self { hasher: DefaultHashBuilder::default(), counts, all: AtomicU64::new(0) }
    }
}

impl MissedPushes {
    /// Returns how many pushes for an owner on a topic may have been missed until now.
    pub(super) fn of(&self, topic: &str, owner: Owner) -> u64 {
        let counts = [self.count(topic), self.count(owner), &self.all];
        counts.into_iter().map(|count| count.load(Ordering::Acquire)).sum()
    }

    /// Notes a push for all on a topic.
    pub(super) fn note(&self, topic: &str) {
        self.count(topic).fetch_add(1, Ordering::Release);
    }

    /// Notes a push for an owner that does not listen.
    pub(super) fn note_for(&self, owner: Owner) {
        self.count(owner).fetch_add(1, Ordering::Release);
    }

    /// Notes that any push may have been missed.
    pub(super) fn note_all(&self) {
        self.all.fetch_add(1, Ordering::Release);
    }

    fn count(&self, of: impl Hash) -> &AtomicU64 {
        &self.counts[self.hasher.hash_one(of) as usize % COUNTS]
    }
}
