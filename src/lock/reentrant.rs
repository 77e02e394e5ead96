//! The reentrant mutex: one holder may acquire the lock again while it has it.
//!
//! The guards that live are counted in this process. The server sees one lease. A count at the
//! server would be wrong after a command that was sent twice, and would outlive a process that
//! died.

use std::{
    fmt,
    ops::Deref,
    panic::AssertUnwindSafe,
    pin::pin,
    sync::{Arc, Mutex, Weak},
};

use futures_util::FutureExt;
use tokio::sync::Notify;

use super::front::{Lock, Renews, Waits, release_one};
use crate::{
    backend::Mode,
    error::{Error, ErrorKind},
    lease::{Lease, LeaseGuard},
    sync::lock,
};

/// A lock that one holder has at a time, any number of times.
///
/// Created by [`Locks::reentrant_mutex`](crate::Locks::reentrant_mutex) and
/// [`Redlock::reentrant_mutex`](crate::Redlock::reentrant_mutex).
///
/// A holder is a value, and no thread or task. An async task moves between threads, and the work
/// that it spawns runs in other tasks. All clones of a [`ReentrantHolder`] are one holder.
///
/// It is the same lock as the [mutex](crate::Locks::mutex) of that name, which also tells its
/// [holder](super::Mutex::holder), and ends it [by force](super::Mutex::force_unlock).
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Error, Locks, MemoryBackend, lock::ReentrantHolder};
///
/// async fn transfer(account: &ReentrantHolder) -> Result<(), Error> {
///     let guard = account.lock().await?;
///     charge(account).await?;
///     guard.unlock().await
/// }
///
/// async fn charge(account: &ReentrantHolder) -> Result<(), Error> {
///     // Returns at once if the caller has the lock.
///     let guard = account.lock().await?;
///     guard.unlock().await
/// }
///
/// let mutex = Locks::new(MemoryBackend::new(), "shop").reentrant_mutex("account:7");
/// transfer(&mutex.holder()).await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub type ReentrantMutex = Lock<Reentrant>;

/// The kind of a [`ReentrantMutex`].
#[derive(Clone, Debug)]
pub struct Reentrant;

impl Waits for Reentrant {}

impl Renews for Reentrant {}

impl ReentrantMutex {
    /// Creates a new holder, which does not have the lock yet.
    pub fn holder(&self) -> ReentrantHolder {
        let (held, acquired) = Default::default();
        let reentry = Reentry { mutex: self.clone(), held, acquired };
        ReentrantHolder { reentry: Arc::new(reentry) }
    }
}

/// One holder of a [`ReentrantMutex`].
///
/// Clones are the same holder. Two holders exclude each other, also in one process.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Locks, MemoryBackend};
///
/// let mutex = Locks::new(MemoryBackend::new(), "shop").reentrant_mutex("account:7");
/// let (holder, other) = (mutex.holder(), mutex.holder());
/// let guard = holder.lock().await?;
/// assert!(holder.try_lock().await?.is_some());
/// assert!(other.try_lock().await?.is_none());
/// # drop(guard);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a holder does nothing until it locks"]
pub struct ReentrantHolder {
    reentry: Arc<Reentry>,
}

impl ReentrantHolder {
    /// Acquires the lock, waiting while there is another holder. If this holder has the lock,
    /// returns another guard of the same lease at once, without a request to the backend.
    ///
    /// Tasks of one holder may wait at the same time. The first that acquires the lock shares it
    /// with the others. If the lease was lost, the lock is acquired anew, although guards of the
    /// old lease live.
    ///
    /// # Errors
    ///
    /// - [`Panicked`](crate::ErrorKind::Panicked) if the retry strategy panicked.
    /// - The errors of [`Mutex::lock`](super::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it may have acquired is released. Other tasks of this
    /// holder keep their places.
    pub async fn lock(&self) -> Result<ReentrantGuard, Error> {
        Ok(ReentrantGuard { held: self.reentry.lock().await? })
    }

    /// Acquires the lock if it is free, or if this holder has it. Returns `None` if there is
    /// another holder, or if this holder waits for the lock in another task.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and:
    ///
    /// - [`Panicked`](crate::ErrorKind::Panicked) if the retry strategy panicked.
    /// - The errors of [`Mutex::try_lock`](super::Mutex::try_lock).
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>, Error> {
        Ok(self.reentry.try_lock().await?.map(|held| ReentrantGuard { held }))
    }
}

impl fmt::Debug for ReentrantHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantHolder")
            .field("mutex", &self.reentry.mutex)
            .finish_non_exhaustive()
    }
}

/// A [`ReentrantMutex`] that is held, once for each guard and each clone of it.
///
/// The last guard that is [unlocked](Self::unlock) or [dropped](super#dropped-guards) releases the
/// lock. All of them share one lease, which is renewed while one of them lives, and one fencing
/// token. If the lease is lost, each guard reports it, also after its holder has acquired the lock
/// anew.
#[derive(Clone, Debug)]
#[must_use = "the lock is released when its last guard is dropped"]
pub struct ReentrantGuard {
    held: Arc<LeaseGuard>,
}

impl ReentrantGuard {
    /// Returns the [fencing token](super::MutexGuard::fence).
    pub fn fence(&self) -> u64 {
        self.held.fence()
    }

    /// Releases the lock, if this is the last guard of its lease. Each guard of a lost lease
    /// reports the loss.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`MutexGuard::unlock`](super::MutexGuard::unlock).
    pub async fn unlock(self) -> Result<(), Error> {
        release_one(self.held).await
    }
}

impl Deref for ReentrantGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.held
    }
}

/// The state that all clones of one holder share.
struct Reentry {
    mutex: ReentrantMutex,
    /// The lease, while a guard of it lives.
    held: Mutex<Weak<LeaseGuard>>,
    /// Notified when a task of this holder has acquired the lease.
    acquired: Notify,
}

impl Reentry {
    /// Acquires the lease, unless another task of this holder is faster.
    async fn lock(&self) -> Result<Arc<LeaseGuard>, Error> {
        let mut acquiring = pin!(caught(self.mutex.acquire_in(Mode::Exclusive)));
        loop {
            let mut acquired = pin!(self.acquired.notified());
            acquired.as_mut().enable();
            if let Some(held) = self.held() {
                return Ok(held);
            }
            tokio::select! {
                outcome = &mut acquiring => return outcome.map(|held| self.share(held)),
                () = acquired => {}
            }
        }
    }

    async fn try_lock(&self) -> Result<Option<Arc<LeaseGuard>>, Error> {
        if let Some(held) = self.held() {
            return Ok(Some(held));
        }
        let acquired = caught(self.mutex.try_acquire_in(Mode::Exclusive)).await?;
        Ok(acquired.map(|held| self.share(held)))
    }

    fn held(&self) -> Option<Arc<LeaseGuard>> {
        lock(&self.held).upgrade().filter(|held| !held.is_lost())
    }

    /// Shares a lease with the tasks of this holder that wait.
    fn share(&self, held: LeaseGuard) -> Arc<LeaseGuard> {
        let held = Arc::new(held);
        *lock(&self.held) = Arc::downgrade(&held);
        self.acquired.notify_waiters();
        held
    }
}

/// Makes a panic an error. The retry strategy may be code of the user.
async fn caught<T>(acquiring: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let panicked = |_| Err(Error::new(ErrorKind::Panicked, "the retry strategy panicked"));
    AssertUnwindSafe(acquiring).catch_unwind().await.unwrap_or_else(panicked)
}
