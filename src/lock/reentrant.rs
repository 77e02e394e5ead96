//! The reentrant mutex: one holder may acquire the lock again while it has it.
//!
//! The guards that live are counted in this process. The server sees one lease. A count at the
//! server would be wrong after a command that was sent twice, and would outlive a process that
//! died.

use std::{
    pin::pin,
    sync::{Arc, Weak},
};

use tokio::sync::watch;

use super::{
    Locks, MutexGuard,
    front::{Lock, Renews},
};
use crate::{backend::Mode, error::Error, key::Key, lease::LeaseGuard};

/// One holder of a mutex, which may lock it again.
///
/// Created by [`Locks::reentrant_mutex`]. The holder is this value, and no thread or task. Clones
/// are the same holder. Two holders exclude each other, also in one process.
///
/// All guards of a holder share one lease, which is renewed while one of them lives, and one
/// fencing token. The last guard that is unlocked or dropped releases the lock. If the lease is
/// lost, each guard reports it, also after its holder has acquired the lock anew.
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

/// The kind of a [`ReentrantMutex`], with the lease of its holder while a guard of it lives.
#[derive(Clone, Debug, Default)]
pub struct Reentrant(Arc<watch::Sender<Weak<LeaseGuard>>>);

impl Renews for Reentrant {}

impl<Servers> Locks<Servers> {
    /// Returns a new holder of the [mutex](Self::mutex) of that name, which may lock it again. Pass
    /// the holder on, or clone it: another call returns another holder.
    ///
    /// The mutex also tells its [holder](super::Mutex::holder), and ends it [by
    /// force](super::Mutex::force_unlock).
    pub fn reentrant_mutex(&self, name: impl Into<Key>) -> ReentrantMutex {
        Lock::new(&self.space, name.into(), Reentrant::default())
    }
}

impl ReentrantMutex {
    /// Acquires the lock, waiting while there is another holder. If this holder has the lock,
    /// returns another guard of the same lease at once, without a request to the backend.
    ///
    /// Tasks of one holder may wait at the same time. The first that acquires the lock shares it
    /// with the others. If the lease was lost, the lock is acquired anew, although guards of the
    /// old lease live.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). Other tasks keep their places.
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        let mut shared = self.kind.0.subscribe();
        let mut acquiring = pin!(self.acquire_in(Mode::Exclusive));
        loop {
            if let Some(again) = self.held_again() {
                return Ok(again);
            }
            tokio::select! {
                acquired = &mut acquiring => return acquired.map(|held| self.share(held)),
                // Another task of this holder has acquired the lease. The sender is in `self`.
                _ = shared.changed() => {}
            }
        }
    }

    /// Acquires the lock as [`lock`](Self::lock) does, if it is free or this holder has it. Returns
    /// `None` if there is another holder, or if this holder waits for the lock in another task.
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        if let Some(again) = self.held_again() {
            return Ok(Some(again));
        }
        Ok(self.try_acquire_in(Mode::Exclusive).await?.map(|held| self.share(held)))
    }

    /// Returns another guard of the lease that this holder has.
    fn held_again(&self) -> Option<MutexGuard> {
        let held = self.kind.0.borrow().upgrade().filter(|held| !held.is_lost());
        held.map(MutexGuard::from)
    }

    /// Shares a lease with the tasks of this holder that wait.
    fn share(&self, held: LeaseGuard) -> MutexGuard {
        let held = MutexGuard::from(held);
        self.kind.0.send_replace(Arc::downgrade(&held.lease));
        held
    }
}
