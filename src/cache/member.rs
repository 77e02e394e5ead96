//! The state that the keys of one call for many keys share.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit};

/// A permit to load, which the keys of one call share.
pub(super) type Permit = Arc<OwnedSemaphorePermit>;

pub(super) struct Shared {
    /// The number of undecided keys. A key is decided once it is loaded here, waited for, or done.
    pub(super) undecided: AtomicUsize,
    /// Notified with each decision. The loader of many waits until all keys are decided.
    pub(super) decided: Notify,
    /// The permit that the keys share, while a key has it.
    pub(super) permit: AsyncMutex<Weak<OwnedSemaphorePermit>>,
}

impl Shared {
    pub(super) fn new(keys: usize) -> Arc<Self> {
        Arc::new(Self {
            undecided: AtomicUsize::new(keys),
            decided: Notify::new(),
            permit: AsyncMutex::default(),
        })
    }

    /// Returns the part of one key.
    pub(super) fn member(self: &Arc<Self>, missed: Option<u64>) -> Arc<Member> {
        Arc::new(Member { all: self.clone(), missed, is_decided: AtomicBool::new(false) })
    }
}

/// One key of a call. On drop the key counts as decided, so that no call waits for a lost key.
pub(super) struct Member {
    pub(super) all: Arc<Shared>,
    /// The fence of an entry that could not be served, or zero if there was no entry. The flight
    /// then claims without a read. `None` makes the flight read first.
    pub(super) missed: Option<u64>,
    is_decided: AtomicBool,
}

impl Member {
    /// Marks the key as decided.
    pub(super) fn decided(&self) {
        if !self.is_decided.swap(true, Ordering::AcqRel) {
            self.all.undecided.fetch_sub(1, Ordering::AcqRel);
            self.all.decided.notify_one();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.decided();
    }
}
