//! Counts the pushes that a waiter may miss while it is about to listen.
//!
//! A claim is sent before its waiter listens, since most claims are granted at once. A claim that
//! is refused listens then, and compares the count with that before the claim. If they are equal,
//! nothing was missed, and the waiter need not ask again.

use std::{
    hash::BuildHasher,
    sync::atomic::{AtomicU64, Ordering},
};

use hashbrown::DefaultHashBuilder;

/// The topics share this many counts. A push for another topic with the same count costs a waiter
/// one request.
const COUNTS: usize = 256;

pub(super) struct MissedPushes {
    hasher: DefaultHashBuilder,
    counts: Box<[AtomicU64]>,
}

impl Default for MissedPushes {
    fn default() -> Self {
        let counts = (0..COUNTS).map(|_| AtomicU64::new(0)).collect();
        Self { hasher: DefaultHashBuilder::default(), counts }
    }
}

impl MissedPushes {
    /// Returns how many pushes for a topic may have been missed until now.
    pub(super) fn of(&self, topic: &str) -> u64 {
        self.count(topic).load(Ordering::Acquire)
    }

    /// Notes that a push for a topic may have been missed.
    pub(super) fn note(&self, topic: &str) {
        self.count(topic).fetch_add(1, Ordering::Release);
    }

    /// Notes that a push for any topic may have been missed.
    pub(super) fn note_all(&self) {
        for count in &self.counts {
            count.fetch_add(1, Ordering::Release);
        }
    }

    fn count(&self, topic: &str) -> &AtomicU64 {
        &self.counts[self.hasher.hash_one(topic) as usize % COUNTS]
    }
}
