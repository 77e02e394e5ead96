//! Lone looks: a caller whose key no other caller asks for looks for the value without a flight.
//!
//! A table of counters says for which keys that is so. The counter of a key counts its lone look,
//! and its flights. Two keys may share a counter. Then one of them has a flight that it would not
//! need, which costs a task.

use std::sync::{Arc, atomic::Ordering};

use crate::sync::checked::AtomicUsize;

/// With fewer counters, more keys share one. They take 32 KiB.
const COUNTERS: usize = if cfg!(loom) { 1 } else { 4096 };

/// How many lone looks and flights there are, for groups of keys.
pub(super) struct KeyUses(Box<[AtomicUsize]>);

impl KeyUses {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self((0..COUNTERS).map(|_| AtomicUsize::new(0)).collect()))
    }

    /// Begins the use of the keys with this hash for a lone look. Returns `None` if there is a use
    /// of such a key already.
    pub(super) fn begin_lone(self: &Arc<Self>, hash: u64) -> Option<KeyUse> {
        let at = hash as usize % COUNTERS;
        let begun = self.0[at].compare_exchange(0, 1, Ordering::Relaxed, Ordering::Relaxed);
        begun.ok()?;
        Some(KeyUse { uses: self.clone(), at })
    }

    /// Begins the use of the keys with this hash for a flight.
    pub(super) fn begin(self: &Arc<Self>, hash: u64) -> KeyUse {
        let at = hash as usize % COUNTERS;
        self.0[at].fetch_add(1, Ordering::Relaxed);
        KeyUse { uses: self.clone(), at }
    }
}

/// A lone look or a flight. It counts until it is dropped.
pub(crate) struct KeyUse {
    uses: Arc<KeyUses>,
    at: usize,
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        self.uses.0[self.at].fetch_sub(1, Ordering::Relaxed);
    }
}
