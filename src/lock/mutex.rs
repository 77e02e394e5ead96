//! The mutex, plain or fair.

use super::{
    front::{Front, LockSpace},
    macros::{guard, inspection, settings},
};
use crate::{
    backend::{Holding, Mode},
    error::Error,
    key::Key,
    lease::LeaseGuard,
};

/// A lock that one holder has at a time: a name, and how it is to be held.
///
/// Created by [`Locks::mutex`](crate::Locks::mutex),
/// [`Locks::fair_mutex`](crate::Locks::fair_mutex) and [`Redlock::mutex`](crate::Redlock::mutex).
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend, lease::Retry};
///
/// let mutex = Locks::new(MemoryBackend::new(), "shop")
///     .mutex("stock:42")
///     .lease(Duration::from_secs(5))
///     .renew_every(Duration::from_secs(1))
///     .max_hold(Duration::from_secs(60))
///     .fence_life(Duration::from_secs(3600))
///     .wait_limit(Duration::from_secs(2))
///     .retry(Retry::exponential(Duration::from_millis(20), Duration::from_secs(1)));
///
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none());
/// assert!(mutex.is_locked().await?);
/// assert!(mutex.expires_in().await?.unwrap() <= Duration::from_secs(5));
///
/// // An operator ends the lock of a holder that hangs.
/// assert!(mutex.force_unlock().await?);
/// assert_eq!(guard.unlock().await.unwrap_err().kind(), bellwether::ErrorKind::Lost);
///
/// // Without renewal, the lease ends by itself.
/// let guard = mutex.fixed_lease().lock().await?;
/// # drop(guard);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex {
    front: Front,
    mode: Mode,
}

impl Mutex {
    pub(super) fn new(space: LockSpace, name: Key, mode: Mode) -> Self {
        Self { front: Front::new(space, name), mode }
    }

    /// Acquires the lock, waiting while there is another holder.
    ///
    /// # Errors
    ///
    /// The [errors of all locks](super#errors-of-all-locks).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it may have acquired is released.
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        Ok(MutexGuard { held: self.front.acquire(self.mode).await? })
    }

    /// Acquires the lock if it is free. Returns `None` if there is another holder, or if another
    /// caller of this process is about to acquire it.
    ///
    /// Also returns `None` if several callers try at a [`Redlock`](crate::Redlock) at the same
    /// moment and none of them has a majority.
    ///
    /// # Errors
    ///
    /// The [errors of all locks](super#errors-of-all-locks) but `NotAcquired`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it may have acquired is released.
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        Ok(self.front.try_acquire(self.mode).await?.map(|held| MutexGuard { held }))
    }

    /// Returns who holds the lock, and how many wait. Returns `None` if there is no holder.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut runtime = tokio::runtime::Builder::new_current_thread();
    /// # runtime.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{Locks, MemoryBackend};
    ///
    /// let locks = Locks::new(MemoryBackend::new(), "shop").owner("worker-3");
    /// let mutex = locks.mutex("nightly");
    /// let guard = mutex.lock().await?;
    /// let holder = mutex.holder().await?.expect("it is held");
    /// assert_eq!(holder.owner.as_deref(), Some("worker-3"));
    /// assert_eq!(holder.fence, guard.fence());
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub async fn holder(&self) -> Result<Option<Holding>, Error> {
        let held = self.front.held(self.mode).await?;
        Ok(held.in_mode(self.mode).is_some().then_some(held))
    }

    inspection!(self => self.mode);
    settings!(acquisition);
    settings!(renewal);
    settings!(fence);
}

/// A [`Mutex`] that is held.
///
/// Its lease is renewed while the guard lives. If the guard is dropped, the lock is released [in
/// the background](super#dropped-guards). [`unlock`](Self::unlock) also reports whether the lock
/// was held to the end.
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct MutexGuard {
    held: LeaseGuard,
}

impl MutexGuard {
    guard!(fence);
    guard!(lease);
    guard!(unlock);
}
