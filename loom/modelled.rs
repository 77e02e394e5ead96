//! Stands for `sync::checked` of the crate: the primitives of `std` and `tokio`, as the model
//! checker has them.

use std::{pin::Pin, sync::atomic::Ordering};

pub(crate) use loom::sync::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize},
};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap()
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap()
}

/// A cell whose content other threads of the model see as late as the memory order lets
/// them.
pub(crate) struct OnceLock<T> {
    cell: std::sync::OnceLock<T>,
    is_set: AtomicBool,
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        Self { cell: std::sync::OnceLock::new(), is_set: AtomicBool::new(false) }
    }
}

impl<T> OnceLock<T> {
    pub(crate) fn get(&self) -> Option<&T> {
        self.is_set.load(Ordering::Acquire).then(|| self.cell.get())?
    }

    pub(crate) fn set(&self, value: T) -> Result<(), T> {
        self.cell.set(value)?;
        self.is_set.store(true, Ordering::Release);
        Ok(())
    }

    pub(crate) fn take(&mut self) -> Option<T> {
        self.cell.take()
    }
}

/// Twice the number of tokens, plus one once it is closed.
#[derive(Clone)]
pub(crate) struct TaskTracker(std::sync::Arc<AtomicUsize>);

pub(crate) struct TaskTrackerToken(TaskTracker);

impl TaskTracker {
    pub(crate) fn new() -> Self {
        Self(std::sync::Arc::new(AtomicUsize::new(0)))
    }

    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.0.fetch_add(2, Ordering::AcqRel);
        TaskTrackerToken(self.clone())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.load(Ordering::Acquire) / 2
    }

    pub(crate) fn close(&self) {
        self.0.fetch_or(1, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & 1 == 1
    }
}

impl Drop for TaskTrackerToken {
    fn drop(&mut self) {
        self.0.0.fetch_sub(2, Ordering::AcqRel);
    }
}

/// Runs each task in a thread of the model.
#[derive(Clone)]
pub(crate) struct Runtime;

impl Runtime {
    pub(crate) fn current() -> Self {
        Self
    }

    pub(crate) fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        loom::thread::spawn(move || loom::future::block_on(task));
    }
}
