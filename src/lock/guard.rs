//! The guards of locks that are held.

use std::{marker::PhantomData, ops::Deref, sync::Arc};

use crate::{
    backend::Mode,
    error::Error,
    lease::{Lease, LeaseGuard},
};

/// A lock that is held. How it is held has a name of its own, as [`MutexGuard`](super::MutexGuard).
///
/// Its [lease](Lease) is renewed while the guard lives. A [dropped guard](super#dropped-guards)
/// releases the lock. The guards of a [reentrant](super::ReentrantMutex) holder share one lease,
/// and so do the clones of a [`ReadGuard`]. The last of them releases it.
///
/// # Examples
///
/// ```
/// # async fn upgrade(lock: bellwether::lock::RwLock) -> Result<(), bellwether::Error> {
/// match lock.read().await?.try_upgrade().await? {
///     Ok(writer) => writer.downgrade().await?.unlock().await?,
///     // There are other readers, and this one still reads.
///     Err(reader) => reader.unlock().await?,
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct Guard<Held> {
    pub(super) lease: Arc<LeaseGuard>,
    held: PhantomData<Held>,
}

/// An [`RwLock`](super::RwLock) that is held beside other readers. It can be cloned. It has no
/// fencing token, because several callers hold at once.
pub type ReadGuard = Guard<SharedHold>;

/// An [`RwLock`](super::RwLock) that is held alone.
pub type WriteGuard = Guard<SoleHold>;

/// How a [`ReadGuard`] holds its lock.
#[derive(Debug)]
pub struct SharedHold;

/// How a [`WriteGuard`] holds its lock.
#[derive(Debug)]
pub struct SoleHold;

/// A way to hold a lock that gives each hold a [fencing token](Guard::fence).
pub trait Fenced {}

impl Fenced for SoleHold {}

impl<Held> Guard<Held> {
    /// Releases the lock. If several guards share its lease, the last of them does, and each
    /// reports a loss.
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
        let lost = self.is_lost().then(|| self.lost_error());
        match (Arc::into_inner(self.lease), lost) {
            (Some(last), _) => last.release().await,
            (None, lost) => lost.map_or(Ok(()), Err),
        }
    }

    /// Makes this hold another one in one step, if its lease is not shared.
    async fn pass_to<Other>(self, mode: Mode) -> Result<Result<Guard<Other>, Self>, Error> {
        match Arc::try_unwrap(self.lease) {
            Ok(lease) => Ok(lease.pass_to(mode).await?.map(Guard::from).map_err(Guard::from)),
            Err(shared) => Ok(Err(shared.into())),
        }
    }
}

impl<Held: Fenced> Guard<Held> {
    /// Returns the fencing token, a number that grows with each holder of this lock and fits in an
    /// `i64`. The resource that the lock guards remembers the greatest token it has seen, and
    /// refuses smaller ones (M. Kleppmann, "How to do distributed locking", 2016).
    pub fn fence(&self) -> u64 {
        self.lease.granted.fence
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
        self.pass_to(Mode::Write).await
    }
}

impl Clone for ReadGuard {
    fn clone(&self) -> Self {
        self.lease.clone().into()
    }
}

impl WriteGuard {
    /// Makes this writer a reader in one step, and lets the next readers of the queue in. It has
    /// the errors and the cancel safety of [`ReadGuard::try_upgrade`].
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        self.pass_to(Mode::Read).await?.map_err(|held| held.lost_error())
    }
}

impl<Held> From<LeaseGuard> for Guard<Held> {
    fn from(lease: LeaseGuard) -> Self {
        Arc::new(lease).into()
    }
}

impl<Held> From<Arc<LeaseGuard>> for Guard<Held> {
    fn from(lease: Arc<LeaseGuard>) -> Self {
        Self { lease, held: PhantomData }
    }
}

impl<Held> Deref for Guard<Held> {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
