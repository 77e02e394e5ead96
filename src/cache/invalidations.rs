//! How many invalidations of this process there were.
//!
//! A load of another key may depend on an invalidated one. It puts the number into its own key, so
//! that no later caller joins it.

use std::{
    array,
    hash::BuildHasher,
    sync::atomic::{AtomicU64, Ordering},
};

use hashbrown::DefaultHashBuilder;

use crate::key::Key;

/// The keys are counted in so many groups. More groups separate fewer loads without a reason.
const GROUPS: usize = 64;

pub(super) struct Invalidations {
    counts: [AtomicU64; GROUPS],
    hasher: DefaultHashBuilder,
}

impl Default for Invalidations {
    fn default() -> Self {
        let counts = array::from_fn(|_| AtomicU64::new(0));
        Self { counts, hasher: DefaultHashBuilder::default() }
    }
}

impl Invalidations {
    /// Counts an invalidation of a key, when it begins. A load that begins afterwards has what the
    /// invalidation is for.
    pub(super) fn count(&self, key: &Key) {
        self.of(key).fetch_add(1, Ordering::AcqRel);
    }

    /// Returns a number that each invalidation of the key makes greater.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    pub(super) fn so_far(&self, key: &Key) -> u64 {
        self.of(key).load(Ordering::Acquire)
    }

    fn of(&self, key: &Key) -> &AtomicU64 {
        &self.counts[self.hasher.hash_one(key) as usize % GROUPS]
    }
}
