use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Something that happens once. (A `CancellationToken` does the same, and more, in an allocation of its own;
/// each flight has two of these.)
#[derive(Default)]
pub(super) struct Signal {
    given: AtomicBool,
    listeners: Notify,
}

impl Signal {
    pub(super) fn give(&self) {
        self.given.store(true, Ordering::Release);
        self.listeners.notify_waiters();
    }

    pub(super) async fn given(&self) {
        // Made before the look, it also completes if the signal is given between the two.
        let listening = self.listeners.notified();
        if !self.given.load(Ordering::Acquire) {
            listening.await;
        }
    }
}
