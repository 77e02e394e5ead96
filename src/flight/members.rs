//! The callers of one flight: how many joined, how many left, and whose question came before an epoch.

use std::sync::atomic::Ordering;

use crate::sync::checked::AtomicU64;

/// Both numbers only grow.
pub(super) struct Members {
    joined: AtomicU64,
    left: AtomicU64,
}

/// A moment in a flight. An outcome that belongs to it may go to the callers that joined before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// How many callers had joined.
    joined: u64,
}

impl Epoch {
    /// The epoch that every caller joined before.
    pub(crate) const END: Self = Self { joined: u64::MAX };

    /// Returns whether a caller joined before this epoch, by the number that it joined with.
    pub(super) fn is_after(self, number: u64) -> bool {
        number < self.joined
    }
}

impl Members {
    pub(super) fn new() -> Self {
        Self { joined: AtomicU64::new(0), left: AtomicU64::new(0) }
    }

    /// Adds a caller and returns its number. The first is 0.
    pub(super) fn join(&self) -> u64 {
        // Pairs with `epoch`: what happened before the caller joined, happened before the question.
        self.joined.fetch_add(1, Ordering::Release)
    }

    /// Removes a caller. Returns whether no other is left.
    pub(super) fn leave(&self) -> bool {
        // Each caller that leaves sees that those who left before it had joined.
        let left = self.left.fetch_add(1, Ordering::AcqRel) + 1;
        self.joined.load(Ordering::Relaxed) == left
    }

    /// Returns the epoch that begins now.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch { joined: self.joined.load(Ordering::Acquire) }
    }

    /// Returns whether a caller joined after an epoch began. Exact once none can join any more.
    pub(super) fn joined_since(&self, epoch: Epoch) -> bool {
        self.joined.load(Ordering::Relaxed) > epoch.joined
    }

    /// Returns how many callers are present. Exact while none joins or leaves.
    pub(super) fn present(&self) -> u64 {
        let left = self.left.load(Ordering::Relaxed);
        self.joined.load(Ordering::Relaxed).saturating_sub(left)
    }
}
