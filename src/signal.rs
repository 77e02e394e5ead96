//! Something that happens once.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Something that happens once. (A `CancellationToken` does the same, and more, in an allocation of its own;
/// each flight has two of these, each lease one.)
#[derive(Default)]
pub(crate) struct Signal {
    given: AtomicBool,
    listeners: Notify,
}

impl Signal {
    pub(crate) fn give(&self) {
        self.given.store(true, Ordering::Release);
        self.listeners.notify_waiters();
    }

    pub(crate) fn is_given(&self) -> bool {
        self.given.load(Ordering::Acquire)
    }

    pub(crate) async fn given(&self) {
        // Made before the look, it also completes if the signal is given between the two.
        let listening = self.listeners.notified();
        if !self.is_given() {
            listening.await;
        }
    }
}
