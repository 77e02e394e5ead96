//! An event that happens once.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// A `CancellationToken` does the same and more, in an allocation of its own.
#[derive(Default)]
pub(crate) struct Signal {
    given: AtomicBool,
    listeners: Notify,
}

impl Signal {
    /// Gives the signal. Returns `true` the first time.
    pub(crate) fn give(&self) -> bool {
        let first = !self.given.swap(true, Ordering::AcqRel);
        self.listeners.notify_waiters();
        first
    }

    pub(crate) fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }

    /// Completes when the signal is given.
    pub(crate) async fn given(&self) {
        // Created before the check, it also completes if the signal is given between the two.
        let listening = self.listeners.notified();
        if !self.is_given() {
            listening.await;
        }
    }
}
