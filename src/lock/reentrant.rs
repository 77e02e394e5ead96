//! The reentrant mutex: one holder may acquire the lock again while it has it.
//!
//! This process counts the guards that live. The server sees one lease. A count at the server would
//! be wrong after a command that was sent twice, and would outlive a process that died.

use std::{
    pin::pin,
    sync::{Arc, Weak},
};

use tokio::sync::watch;

use super::{
    builder::Lock,
    mutex::MutexGuard,
    traits::{Renewed, sealed::Sealed},
};
use crate::{backend::Mode, error::Error, lease::LeaseGuard};

/// One holder of a mutex, which may lock it again.
///
/// [`Locks::reentrant_mutex`](super::Locks::reentrant_mutex) creates it. The holder is this value,
/// and no thread or task. Clones are the same holder. Two holders exclude each other, also in one
/// process.
///
/// All guards of a holder share one fencing token and one lease, which is renewed while one of the
/// guards lives. The last guard that is unlocked or dropped releases the lock. If the lease is
/// lost, each guard of it reports the loss, also after the holder has acquired the lock anew.
///
/// # Examples
///
/// ```
/// use bellwether::{Error, Locks, lock::ReentrantMutex};
///
/// async fn transfer(account: &ReentrantMutex) -> Result<(), Error> {
///     let guard = account.lock().await?;
///     charge(account).await?;
///     guard.unlock().await
/// }
///
/// async fn charge(account: &ReentrantMutex) -> Result<(), Error> {
///     // Returns at once if the caller has the lock.
///     let guard = account.lock().await?;
///     guard.unlock().await
/// }
///
/// # async fn run(locks: Locks) -> Result<(), Error> {
/// let account = locks.reentrant_mutex("account:7");
/// transfer(&account).await?;
/// assert!(account.try_lock().await?.is_some());
/// # Ok(()) }
/// ```
pub type ReentrantMutex = Lock<Reentrant>;

/// The kind of a [`ReentrantMutex`], with the lease of its holder while a guard of the lease lives.
#[derive(Clone, Debug, Default)]
pub struct Reentrant(Arc<watch::Sender<Weak<LeaseGuard>>>);

impl Sealed for Reentrant {}

impl Renewed for Reentrant {}

impl ReentrantMutex {
    /// Acquires the lock, waiting while there is another holder. If this holder has the lock,
    /// returns another guard of the same lease at once, without a request to the backend.
    ///
    /// Tasks of one holder may wait at the same time. The first task that acquires the lock shares
    /// the lease with the other tasks. If the lease was lost, the call acquires the lock anew,
    /// although guards of the old lease live.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). Other tasks of the holder keep waiting.
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        let mut shared = self.kind.0.subscribe();
        let mut acquiring = pin!(self.acquire_in(Mode::Exclusive));
        loop {
            if let Some(guard) = self.another_guard() {
                return Ok(guard);
            }
            tokio::select! {
                acquired = &mut acquiring => return acquired.map(|lease| self.share(lease)),
                // Another task of this holder has acquired the lease. The sender is in `self`.
                _ = shared.changed() => {}
            }
        }
    }

    /// Acquires the lock as [`lock`](Self::lock) does, if it is free or this holder has it. Returns
    /// `None` if there is another holder, or if this holder waits for the lock in another task.
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        if let Some(guard) = self.another_guard() {
            return Ok(Some(guard));
        }
        let acquired = self.try_acquire_in(Mode::Exclusive).await?;
        Ok(acquired.map(|lease| self.share(lease)))
    }

    /// Returns another guard of the lease that this holder has.
    fn another_guard(&self) -> Option<MutexGuard> {
        let lease = self.kind.0.borrow().upgrade()?;
        if lease.is_lost() { None } else { Some(MutexGuard::sharing(lease)) }
    }

    /// Shares a lease with the tasks of this holder that wait.
    fn share(&self, lease: LeaseGuard) -> MutexGuard {
        let guard = MutexGuard::new(lease);
        self.kind.0.send_replace(Arc::downgrade(&guard.lease));
        guard
    }
}
