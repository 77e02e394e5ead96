//! How many invalidations this process has begun.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{backend::stripe_of, key::Key};

/// The number of invalidations that this process has begun, for each of 32 groups of keys. A load
/// of another key that depends on an invalidated key has this number in its own key. So no caller
/// joins such a load after an invalidation.
#[derive(Default)]
pub(super) struct Invalidations([AtomicU64; 32]);

impl Invalidations {
    /// Counts an invalidation of a key, when it begins.
    pub(super) fn count(&self, key: &Key) {
        self.of(key).fetch_add(1, Ordering::AcqRel);
    }

    #[cfg(feature = "http")]
    pub(super) fn so_far(&self, key: &Key) -> u64 {
        self.of(key).load(Ordering::Acquire)
    }

    fn of(&self, key: &Key) -> &AtomicU64 {
        &self.0[stripe_of(&key.text) % self.0.len()]
    }
}
