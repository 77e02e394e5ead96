//! The read-write lock, its guards, and how one becomes the other.

use std::{ops::Deref, sync::Arc};

use super::{
    Locks,
    front::{Lock, Looks, Renews, release_one},
};
use crate::{
    backend::Mode,
    error::Error,
    key::Key,
    lease::{Lease, LeaseGuard},
};

/// A lock that many readers or one writer have at a time. Created by [`Locks::rw_lock`].
///
/// All waiters wait in one queue over all processes, so neither readers nor writers starve. A
/// caller that holds a read lock and needs another one clones its [guard](ReadGuard). If it asked
/// anew, it would wait behind a writer that waits for the first one.
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
/// match reader.try_upgrade().await? {
///     Ok(writer) => writer.downgrade().await?.unlock().await?,
///     // There are other readers, and this one still reads.
///     Err(reader) => reader.unlock().await?,
/// }
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
    /// queue.
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
        Ok(WriteGuard { held: self.acquire_in(Mode::Write).await? })
    }

    /// Acquires the lock as [`write`](Self::write) does. Returns `None` if there is another holder
    /// or a waiter.
    pub async fn try_write(&self) -> Result<Option<WriteGuard>, Error> {
        Ok(self.try_acquire_in(Mode::Write).await?.map(|held| WriteGuard { held }))
    }
}

/// An [`RwLock`] that is held beside other readers.
///
/// It has no fencing token, because several callers hold at once. Clones share one lease, which is
/// renewed while one of them lives. The last of them releases the lock, also if it is
/// [dropped](super#dropped-guards).
#[derive(Clone, Debug)]
#[must_use = "the lock is released when its last guard is dropped"]
pub struct ReadGuard {
    held: Arc<LeaseGuard>,
}

impl From<LeaseGuard> for ReadGuard {
    fn from(held: LeaseGuard) -> Self {
        Self { held: Arc::new(held) }
    }
}

impl ReadGuard {
    /// Makes this reader the writer in one step. Returns the guard unchanged, in the inner `Err`,
    /// if there are other readers, its own clones among them.
    ///
    /// It does not wait, because two readers that wait for each other to leave would wait for ever.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and [`Lost`](crate::ErrorKind::Lost) if the
    /// lock was no longer held. After an error, or if the future is dropped, both locks are given
    /// up.
    pub async fn try_upgrade(self) -> Result<Result<WriteGuard, Self>, Error> {
        let held = match Arc::try_unwrap(self.held) {
            Ok(held) => held,
            Err(held) => return Ok(Err(Self { held })),
        };
        let passed = held.pass_to(Mode::Write).await?;
        Ok(passed.map(|held| WriteGuard { held }).map_err(Self::from))
    }

    /// Releases the lock as [`MutexGuard::unlock`](super::MutexGuard::unlock) does, if this is the
    /// last guard of its lease. Each guard of a lost lease reports the loss.
    pub async fn unlock(self) -> Result<(), Error> {
        release_one(self.held).await
    }
}

impl Deref for ReadGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.held
    }
}

/// An [`RwLock`] that is held alone.
///
/// Its lease is renewed while the guard lives. A [dropped guard](super#dropped-guards) releases it.
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct WriteGuard {
    held: LeaseGuard,
}

impl WriteGuard {
    /// Returns the [fencing token](super::MutexGuard::fence), which grows with each writer.
    pub fn fence(&self) -> u64 {
        self.held.fence()
    }

    /// Makes this writer a reader in one step, and lets the next readers of the queue in. Its
    /// errors and its cancel safety are those of [`ReadGuard::try_upgrade`].
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        let passed = self.held.pass_to(Mode::Read).await?;
        passed.map(ReadGuard::from).map_err(|held| held.lost_error())
    }

    /// Releases the lock as [`MutexGuard::unlock`](super::MutexGuard::unlock) does.
    pub async fn unlock(self) -> Result<(), Error> {
        self.held.release().await
    }
}

impl Deref for WriteGuard {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.held
    }
}
