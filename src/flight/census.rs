//! How many callers wait and how many leaders are under way, in all flights of a group.

use std::sync::atomic::Ordering;

use super::waiters::Waiters;
use crate::sync::checked::AtomicUsize;

pub(super) struct Census {
    waiting: AtomicUsize,
    /// The number of leaders, with [`CLOSED`]. One word, so that the last leader of a closed group and
    /// the caller that waits for it cannot miss each other.
    leading: AtomicUsize,
    /// Callers that wait for the last leader.
    idle: Waiters,
}

/// No leader may start any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Census {
    pub(super) fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), leading: AtomicUsize::new(0), idle: Waiters::new() }
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(super) fn enter(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn leave(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.leading.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Counts a new leader, unless the group is closed.
    pub(super) fn begin(&self) -> bool {
        let open = self.leading.fetch_add(1, Ordering::Relaxed) & CLOSED == 0;
        if !open {
            self.end();
        }
        open
    }

    /// Counts the end of a leader.
    pub(super) fn end(&self) {
        if self.leading.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            self.idle.wake();
        }
    }

    pub(super) fn close(&self) {
        self.leading.fetch_or(CLOSED, Ordering::Relaxed);
    }

    /// Returns when no leader is under way. The group must be closed.
    pub(super) async fn idle(&self) {
        let none = || (self.leading.load(Ordering::Acquire) == CLOSED).then_some(());
        self.idle.until(none).await;
    }
}
