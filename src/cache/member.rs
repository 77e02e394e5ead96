//! The state that the keys of one call share: how many are undecided, and a permit to load.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit};

/// A permit to load, which the keys of one call share.
pub(super) type Permit = Arc<OwnedSemaphorePermit>;

pub(super) struct Shared {
    /// The number of keys that are neither loaded here, nor waited for, nor done.
    pub(super) undecided: AtomicUsize,
    /// The loader of many waits until all are decided.
    pub(super) decided: Notify,
    /// The permit that the keys share. It is free once no key has it.
    pub(super) permit: AsyncMutex<Weak<OwnedSemaphorePermit>>,
}

impl Shared {
    pub(super) fn of(keys: usize) -> Arc<Self> {
        let (undecided, decided) = (AtomicUsize::new(keys), Notify::new());
        Arc::new(Self { undecided, decided, permit: AsyncMutex::default() })
    }

    /// Returns one of the keys.
    pub(super) fn member(self: &Arc<Self>, missed: Option<u64>) -> Arc<Member> {
        Arc::new(Member { all: self.clone(), missed, is_decided: AtomicBool::new(false) })
    }
}

/// One key of a call. Dropped, it is decided, so that no call waits for a key that is gone.
pub(super) struct Member {
    pub(super) all: Arc<Shared>,
    /// The fence of the entry that was of no use, or zero if there was none: the flight claims
    /// without a look. `None` lets it look.
    pub(super) missed: Option<u64>,
    is_decided: AtomicBool,
}

impl Member {
    /// Notes that the key is loaded here, or waited for, or done.
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
