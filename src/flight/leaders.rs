//! The leaders that are under way in a group, and the end of the last one.

use std::sync::atomic::Ordering;

use super::waiters::Waiters;
use crate::sync::checked::AtomicUsize;

#[derive(Default)]
pub(super) struct Leaders {
    /// The number of leaders, with [`CLOSED`]. One word, so that the last leader of a closed group
    /// and the caller that waits for it cannot miss each other.
    state: AtomicUsize,
    /// Callers that wait for the last leader.
    idle: Waiters,
}

/// No leader may begin any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Leaders {
    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Counts a new leader. Returns `false` if the group is closed.
    pub(super) fn begin(&self) -> bool {
        let open = self.state.fetch_add(1, Ordering::Relaxed) & CLOSED == 0;
        if !open {
            self.end();
        }
        open
    }

    /// Counts the end of a leader.
    pub(super) fn end(&self) {
        // Pairs with `idle`: what the leader did, is visible to the caller that waited for it.
        if self.state.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            self.idle.wake();
        }
    }

    pub(super) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
    }

    /// Returns when no leader is under way. The group must be closed.
    pub(super) async fn idle(&self) {
        let none = || (self.state.load(Ordering::Acquire) == CLOSED).then_some(());
        self.idle.until(none).await;
    }
}
