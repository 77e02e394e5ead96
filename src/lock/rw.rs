//! The read-write lock.

use super::{
    Locks, ReadGuard, WriteGuard,
    front::{Lock, Looks, Renews},
};
use crate::{backend::Mode, error::Error, key::Key};

/// A lock that many readers or one writer have at a time. Created by [`Locks::rw_lock`].
///
/// All waiters wait in one queue over all processes, so neither readers nor writers starve. A
/// caller that holds a read lock and needs another one clones its [guard](ReadGuard). If it asked
/// anew, it would wait behind a writer that waits for the first one.
///
/// The lock is not reentrant. A writer that calls [`read`](Self::read) or [`write`](Self::write)
/// waits for itself, until its wait limit ends. It [becomes a reader](WriteGuard::downgrade)
/// instead.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Locks, MemoryBackend};
///
/// let lock = Locks::new(MemoryBackend::new(), "shop").rw_lock("prices");
/// lock.write().await?.unlock().await?;
/// let reader = lock.read().await?;
/// assert!(lock.try_write().await?.is_none());
/// lock.try_read().await?.expect("readers share it").unlock().await?;
/// reader.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub type RwLock = Lock<ReadWrite>;

/// The kind of an [`RwLock`].
#[derive(Clone, Debug)]
pub struct ReadWrite;

impl Renews for ReadWrite {}

impl Looks for ReadWrite {
    fn mode(&self) -> Mode {
        Mode::Write
    }
}

impl Locks {
    /// Returns a lock that many readers or one writer have at a time.
    pub fn rw_lock(&self, name: impl Into<Key>) -> RwLock {
        Lock::new(&self.space, name.into(), ReadWrite)
    }
}

impl RwLock {
    /// Acquires the lock beside other readers, waiting while a writer holds it or is earlier in the
    /// queue. This caller may be that writer: it waits for itself then.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        Ok(self.acquire_in(Mode::Read).await?.into())
    }

    /// Acquires the lock as [`read`](Self::read) does. Returns `None` if a writer holds it or waits
    /// for it.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        Ok(self.try_acquire_in(Mode::Read).await?.map(ReadGuard::from))
    }

    /// Acquires the lock alone, waiting while there are other holders or earlier waiters.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        Ok(self.acquire_in(Mode::Write).await?.into())
    }

    /// Acquires the lock as [`write`](Self::write) does. Returns `None` if there is another holder
    /// or a waiter.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(self.try_acquire_in(Mode::Write).await?.map(WriteGuard::from))
    }
}
