//! Counts the leaders of a group, so that a shutdown can wait for the last one.

use std::sync::atomic::Ordering;

use tokio::sync::Notify;

use crate::sync::checked::AtomicUsize;

/// The leaders that are under way in a group, and the end of the last one.
#[derive(Default)]
pub(super) struct Leaders {
    /// The number of leaders, with [`CLOSED`].
    state: AtomicUsize,
    /// Notified when the last leader of a closed group has ended.
    idle: Notify,
}

/// No leader may begin any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Leaders {
    /// Counts the beginning of a leader.
    pub(super) fn begin(&self) {
        self.state.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets no leader begin any more.
    pub(super) fn close(&self) {
        self.state.fetch_or(CLOSED, Ordering::Relaxed);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Counts the end of a leader.
    pub(super) fn end(&self) {
        // Pairs with `idle`: what the leader did, is visible to the caller that waited for it.
        if self.state.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            self.idle.notify_waiters();
        }
    }

    /// Returns when no leader is under way in a closed group.
    pub(super) async fn idle(&self) {
        loop {
            // Created before the check, it also completes if the last leader ends between the two.
            let idle = self.idle.notified();
            if self.state.fetch_or(CLOSED, Ordering::Acquire) == CLOSED {
                return;
            }
            idle.await;
        }
    }
}
