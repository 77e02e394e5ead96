//! Access to the locks of the standard library without poisoning.
//!
//! A panic of a caller's code (a `Clone`, a `Drop`) must not make every later access panic as well.
//! The state behind each lock of this crate is consistent whenever such code runs, so the state is
//! used after a panic, too.

use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks a mutex, poisoned or not.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for reading, poisoned or not.
pub(crate) fn read<T: ?Sized>(rw_lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    rw_lock.read().unwrap_or_else(PoisonError::into_inner)
}

/// Locks for writing, poisoned or not.
pub(crate) fn write<T: ?Sized>(rw_lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    rw_lock.write().unwrap_or_else(PoisonError::into_inner)
}

/// The primitives of the code that a model checker runs. With `--cfg loom`, which `scripts/loom`
/// sets, primitives of `loom` replace them.
#[cfg(not(all(test, loom)))]
pub(crate) mod checked {
    pub(crate) use std::sync::{Mutex, atomic::AtomicUsize};

    pub(crate) use dashmap::DashMap;
    pub(crate) use tokio_util::task::{TaskTracker, task_tracker::TaskTrackerToken};

    pub(crate) use super::lock;
}

#[cfg(all(test, loom))]
pub(crate) use crate::modelled as checked;

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        panic::{AssertUnwindSafe, catch_unwind},
        sync::{Mutex, RwLock},
    };

    #[test]
    fn a_lock_can_be_used_after_a_panic_under_it() {
        let mutex = Mutex::new(1);
        let rw_lock = RwLock::new(2);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _guards = (mutex.lock(), rw_lock.write());
            std::panic::resume_unwind(Box::new(()));
        }));
        assert!(panicked.is_err() && mutex.is_poisoned() && rw_lock.is_poisoned());
        *super::lock(&mutex) += 1;
        *super::write(&rw_lock) += 1;
        assert_eq!((*super::lock(&mutex), *super::read(&rw_lock)), (2, 3));
    }
}
