//! The read-write lock.

use std::fmt;

use super::{ReadGuard, WriteGuard, front::Front, macros::settings, space::LockSpace};
use crate::{backend::Mode, error::Error, key::Key, lease::LeaseGuard};

/// A lock that many readers or one writer have at a time.
///
/// Created by [`Locks::rw_lock`](crate::Locks::rw_lock).
///
/// All waiters wait in one queue over all processes. A reader does not overtake a writer that came
/// before it, and a writer does not overtake earlier readers. So neither starves the other.
///
/// A caller that holds a read lock and needs another one clones its [guard](ReadGuard). If it asked
/// anew, it would wait behind a writer that waits for the first one.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend, lease::Retry};
///
/// let lock = Locks::new(MemoryBackend::new())
///     .rw_lock("prices")
///     .lease(Duration::from_secs(5))
///     .renew_every(Duration::from_secs(1))
///     .max_hold(Duration::from_secs(60))
///     .fence_life(Duration::from_secs(3600))
///     .wait_limit(Duration::from_secs(2))
///     .retry(Retry::on_demand().times(100));
///
/// let reader = lock.read().await?;
/// let other = lock.try_read().await?.expect("readers share the lock");
/// assert_eq!(lock.readers().await?, 2);
/// assert!(lock.try_write().await?.is_none());
/// reader.unlock().await?;
/// other.unlock().await?;
///
/// let writer = lock.write().await?;
/// assert!(lock.is_write_locked().await?);
///
/// // An operator ends the lock of a holder that hangs.
/// assert!(lock.force_unlock().await?);
/// # drop(writer);
///
/// // Without renewal, the lease ends by itself.
/// let reader = lock.fixed_lease().read().await?;
/// # drop(reader);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a lock does nothing until it is locked"]
pub struct RwLock {
    front: Front,
}

impl RwLock {
    pub(super) fn new(space: LockSpace, name: Key) -> Self {
        Self { front: Front::new(space, name) }
    }

    /// Acquires the lock beside other readers, waiting while a writer holds it or is earlier in the
    /// queue.
    ///
    /// # Errors
    ///
    /// - [`NotAcquired`](crate::ErrorKind::NotAcquired) if the wait limit or the retry strategy
    ///   ended first.
    /// - [`Backend`](crate::ErrorKind::Backend) if the last try before that failed.
    /// - The other errors of [`try_read`](Self::try_read).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it may have acquired is released, and its queue entry
    /// is removed.
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        Ok(self.reader(self.front.acquire(Mode::Read).await?))
    }

    /// Acquires the lock beside other readers. Returns `None` if a writer holds it or waits for it.
    ///
    /// # Errors
    ///
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer.
    /// - [`InvalidKey`](crate::ErrorKind::InvalidKey) for a name outside its range.
    /// - [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a setting outside its range.
    /// - [`ShutDown`](crate::ErrorKind::ShutDown) after
    ///   [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it may have acquired is released.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        Ok(self.front.try_acquire(Mode::Read).await?.map(|held| self.reader(held)))
    }

    /// Acquires the lock alone, waiting while there are other holders or earlier waiters.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it may have acquired is released, and its queue entry
    /// is removed.
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        Ok(self.writer(self.front.acquire(Mode::Write).await?))
    }

    /// Acquires the lock alone. Returns `None` if there is another holder or a waiter.
    ///
    /// # Errors
    ///
    /// As [`try_read`](Self::try_read).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it may have acquired is released.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(self.front.try_acquire(Mode::Write).await?.map(|held| self.writer(held)))
    }

    /// Returns how many readers held the lock at the moment of asking. Clones of a guard count as
    /// one.
    ///
    /// # Errors
    ///
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer, or if the place of
    ///   the readers holds data that is not a lock. The place of the writer is not looked at.
    /// - [`InvalidKey`](crate::ErrorKind::InvalidKey) for a name outside its range.
    /// - [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a namespace outside its range.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn readers(&self) -> Result<u32, Error> {
        Ok(self.front.holder(Mode::Read).await?.map_or(0, |occupied| occupied.holders))
    }

    /// Returns `true` if a writer held the lock at the moment of asking.
    ///
    /// # Errors
    ///
    /// As [`readers`](Self::readers), with the two places exchanged.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn is_write_locked(&self) -> Result<bool, Error> {
        Ok(self.front.holder(Mode::Write).await?.is_some())
    }

    /// Ends the lock of any reader or writer, or removes the foreign data in its place. Returns
    /// `true` if there was something to remove.
    ///
    /// Waiters get a new queue entry. Locks [of another
    /// kind](super#which-locks-of-one-name-are-one) under the name stay. The holders learn of the
    /// loss at their next renewal, and with a [fixed lease](Self::fixed_lease) at its end. Until
    /// then, others may hold the lock beside them, and only the writer's fencing token protects.
    ///
    /// # Errors
    ///
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer. The lock may or may
    ///   not have been ended.
    /// - [`InvalidKey`](crate::ErrorKind::InvalidKey) for a name outside its range.
    /// - [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a namespace outside its range.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock may or may not have been ended.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.front.clear(Mode::Write).await
    }

    settings!(acquisition);
    settings!(renewal);
    settings!(fence);

    fn reader(&self, held: LeaseGuard) -> ReadGuard {
        ReadGuard::new(self.front.clone(), held)
    }

    fn writer(&self, held: LeaseGuard) -> WriteGuard {
        WriteGuard::new(self.front.clone(), held)
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "RwLock")
    }
}
