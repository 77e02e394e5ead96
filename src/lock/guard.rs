//! The guard of a lock, and what a reader or a writer can do with its guard.

use std::{marker::PhantomData, ops::Deref, sync::Arc};

use super::traits::{Fenced, sealed::Sealed};
use crate::{
    backend::Mode,
    error::Error,
    lease::{Conversion, Lease, LeaseGuard},
};

/// A lock that is held. Each way to hold a lock has an alias, such as
/// [`MutexGuard`](super::MutexGuard).
///
/// The [lease](Lease) of the lock is renewed while the guard lives. A [dropped
/// guard](super#dropped-guards) releases the lock. The guards of a
/// [reentrant](super::ReentrantMutex) holder share one lease, and so do the clones of a
/// [`ReadGuard`]. The last guard of a lease releases the lock.
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard<Hold> {
    pub(super) lease: Arc<LeaseGuard>,
    hold: PhantomData<Hold>,
}

/// An [`RwLock`](super::RwLock) that is held beside other readers. The guard can be cloned. It has
/// no fencing token, because several readers hold the lock at once.
pub type ReadGuard = Guard<ReadHold>;

/// An [`RwLock`](super::RwLock) that is held alone.
pub type WriteGuard = Guard<WriteHold>;

/// The way in which a [`ReadGuard`] holds its lock: beside other readers.
#[derive(Debug)]
pub struct ReadHold;

/// The way in which a [`WriteGuard`] holds its lock: alone.
#[derive(Debug)]
pub struct WriteHold;

impl Sealed for WriteHold {}

impl Fenced for WriteHold {}

/// The answer to [`ReadGuard::try_upgrade`].
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub enum Upgrade {
    /// The reader has become the writer.
    Done(WriteGuard),
    /// There are other readers, and this reader still reads.
    Busy(ReadGuard),
}

impl<Hold> Guard<Hold> {
    pub(super) fn new(lease: LeaseGuard) -> Self {
        Self::sharing(Arc::new(lease))
    }

    /// Returns another guard of a lease.
    pub(super) fn sharing(lease: Arc<LeaseGuard>) -> Self {
        Self { lease, hold: PhantomData }
    }

    /// Releases the lock. If several guards share its lease, the last guard releases the lock, and
    /// each guard reports a loss.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and:
    ///
    /// - [`Lost`](crate::ErrorKind::Lost) if the lock was no longer held. Another holder may have
    ///   worked at the same time.
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer. The release is then
    ///   repeated in the background, and the lease ends by itself at the latest.
    pub async fn unlock(self) -> Result<(), Error> {
        let loss = if self.is_lost() { Some(self.lost_error()) } else { None };
        match (Arc::into_inner(self.lease), loss) {
            (Some(last), _) => last.release().await,
            (None, Some(loss)) => Err(loss),
            (None, None) => Ok(()),
        }
    }
}

impl<Hold: Fenced> Guard<Hold> {
    /// Returns the fencing token, a number that grows with each holder of this lock and fits in an
    /// `i64`. The resource that the lock guards remembers the greatest token it has seen, and
    /// refuses smaller tokens (M. Kleppmann, "How to do distributed locking", 2016).
    pub fn fence(&self) -> u64 {
        self.lease.granted.fence
    }
}

impl ReadGuard {
    /// Makes this reader the writer in one step. Returns the guard unchanged, as
    /// [`Upgrade::Busy`], if there are other readers. The clones of this guard are other readers.
    ///
    /// The method does not wait, because two readers that wait for each other to leave would wait
    /// for ever.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and [`Lost`](crate::ErrorKind::Lost) if the
    /// lock was no longer held. After an error, or if the future is dropped, the read lock and the
    /// write lock are both released.
    ///
    /// # Examples
    ///
    /// ```
    /// use bellwether::lock::{RwLock, Upgrade};
    ///
    /// # async fn upgrade(lock: RwLock) -> Result<(), bellwether::Error> {
    /// match lock.read().await?.try_upgrade().await? {
    ///     Upgrade::Done(writer) => writer.downgrade().await?.unlock().await?,
    ///     Upgrade::Busy(reader) => reader.unlock().await?,
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn try_upgrade(self) -> Result<Upgrade, Error> {
        let lease = match Arc::try_unwrap(self.lease) {
            Ok(lease) => lease,
            // A clone of this guard is another reader.
            Err(shared) => return Ok(Upgrade::Busy(Self::sharing(shared))),
        };
        Ok(match lease.convert_to(Mode::Write).await? {
            Conversion::Done(writer) => Upgrade::Done(Guard::new(writer)),
            Conversion::Refused(reader) => Upgrade::Busy(Self::new(reader)),
        })
    }
}

impl Clone for ReadGuard {
    fn clone(&self) -> Self {
        Self::sharing(self.lease.clone())
    }
}

impl WriteGuard {
    /// Makes this writer a reader in one step, and lets the next readers of the queue in. The
    /// errors and the cancel safety are those of [`ReadGuard::try_upgrade`].
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        let lease = match Arc::try_unwrap(self.lease) {
            Ok(lease) => lease,
            // A writer's guard has no clones, so no other guard shares its lease.
            Err(shared) => return Err(shared.lost_error()),
        };
        match lease.convert_to(Mode::Read).await? {
            Conversion::Done(reader) => Ok(Guard::new(reader)),
            // No other holder can be in the way of a writer, so the lease is lost.
            Conversion::Refused(lost) => Err(lost.lost_error()),
        }
    }
}

impl<Hold> Deref for Guard<Hold> {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
