//! The read-write lock.

use super::{
    builder::Lock,
    guard::{ReadGuard, WriteGuard},
    traits::{
        Inspected, Renewed,
        sealed::{HasMode, Sealed},
    },
};
use crate::{backend::Mode, error::Error};

/// A lock that many readers or one writer have at a time.
/// [`Locks::rw_lock`](super::Locks::rw_lock) creates it.
///
/// All waiters wait in one queue over all processes, so neither readers nor writers starve. A
/// reader that needs another read lock clones its [guard](ReadGuard). A second call of
/// [`read`](Self::read) would wait behind any writer that waits for the first read lock to end.
///
/// The lock is not reentrant. A writer that calls [`read`](Self::read) or [`write`](Self::write)
/// waits for itself until its wait limit ends. Such a writer
/// [becomes a reader](WriteGuard::downgrade) instead.
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

impl RwLock {
    /// Acquires the lock beside other readers, waiting while a writer holds it or is earlier in the
    /// queue. If this caller is that writer, the call waits for itself.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn read(&self) -> Result<ReadGuard, Error> {
        let lease = self.acquire_in(Mode::Read).await?;
        Ok(ReadGuard::new(lease))
    }

    /// Acquires the lock as [`read`](Self::read) does. Returns `None` if a writer holds it or waits
    /// for it.
    pub async fn try_read(&self) -> Result<Option<ReadGuard>, Error> {
        let lease = self.try_acquire_in(Mode::Read).await?;
        Ok(lease.map(ReadGuard::new))
    }

    /// Acquires the lock alone, waiting while there are other holders or earlier waiters.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn write(&self) -> Result<WriteGuard, Error> {
        let lease = self.acquire_in(Mode::Write).await?;
        Ok(WriteGuard::new(lease))
    }

    /// Acquires the lock as [`write`](Self::write) does. Returns `None` if there is another holder
    /// or a waiter.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        let lease = self.try_acquire_in(Mode::Write).await?;
        Ok(lease.map(WriteGuard::new))
    }
}

impl Sealed for ReadWrite {}

impl Renewed for ReadWrite {}

impl HasMode for ReadWrite {
    fn mode(&self) -> Mode {
        Mode::Write
    }
}

impl Inspected for ReadWrite {}
