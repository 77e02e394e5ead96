//! The reentrant mutex: one holder may acquire the lock again while it has it.
//!
//! The guards that live are counted in this process. The server sees one lease. A count at the
//! server would be wrong after a command that was sent twice, and would outlive a process that
//! died.

use std::{
    fmt,
    pin::pin,
    sync::{Arc, Mutex, Weak},
};

use tokio::sync::Notify;

use super::{
    MutexGuard,
    front::{Lock, Renews, WaitLimited},
};
use crate::{backend::Mode, error::Error, lease::LeaseGuard, sync::lock};

/// The kind of a reentrant mutex.
#[derive(Clone, Debug)]
pub struct Reentrant;

impl WaitLimited for Reentrant {}

impl Renews for Reentrant {}

/// A [mutex that its holder may lock again](crate::Locks::reentrant_mutex).
pub type ReentrantMutex = Lock<Reentrant>;

impl ReentrantMutex {
    /// Creates a new holder, which does not have the lock yet.
    pub fn holder(&self) -> ReentrantHolder {
        let (held, acquired) = Default::default();
        let reentry = Reentry { mutex: self.clone(), held, acquired };
        ReentrantHolder { reentry: Arc::new(reentry) }
    }
}

/// One holder of a [reentrant mutex](crate::Locks::reentrant_mutex), which may lock it again.
///
/// A holder is a value, and no thread or task. Clones are the same holder. Two holders exclude each
/// other, also in one process.
///
/// All guards of a holder share one lease, which is renewed while one of them lives, and one
/// fencing token. The last guard that is unlocked or dropped releases the lock. If the lease is
/// lost, each guard reports it, also after its holder has acquired the lock anew.
///
/// # Examples
///
/// ```
/// use bellwether::{Error, Locks, lock::ReentrantHolder};
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
/// # async fn run(locks: Locks) -> Result<(), Error> {
/// let holder = locks.reentrant_mutex("account:7").holder();
/// transfer(&holder).await?;
/// assert!(holder.try_lock().await?.is_some());
/// # Ok(()) }
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
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). Other tasks of this holder keep their
    /// places.
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        Ok(MutexGuard { held: self.reentry.lock().await? })
    }

    /// Acquires the lock if it is free, or if this holder has it. Returns `None` if there is
    /// another holder, or if this holder waits for the lock in another task.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`Mutex::try_lock`](super::Mutex::try_lock).
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        Ok(self.reentry.try_lock().await?.map(|held| MutexGuard { held }))
    }
}

impl fmt::Debug for ReentrantHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReentrantHolder")
            .field("mutex", &self.reentry.mutex)
            .finish_non_exhaustive()
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
        let mut acquiring = pin!(self.mutex.acquire_in(Mode::Exclusive));
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
        let acquired = self.mutex.try_acquire_in(Mode::Exclusive).await?;
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
