//! The guards of a read-write lock, and how one becomes the other.

use std::sync::Arc;

use super::{front::Front, macros::guard};
use crate::{
    backend::Mode,
    error::Error,
    lease::{LeaseGuard, try_limit},
};

/// An [`RwLock`](super::RwLock) that is held beside other readers.
///
/// It has no fencing token, because several callers hold at once.
///
/// Clones share one lease, which is renewed while one of them lives. The lock is released with the
/// last of them, [in the background](super#dropped-guards) if that is dropped.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend, lock::Upgrade};
///
/// # async fn is_outdated() -> bool { true }
/// let reader = Locks::new(MemoryBackend::new()).rw_lock("prices").read().await?;
/// let outdated = tokio::select! {
///     outdated = is_outdated() => outdated,
///     () = reader.lost() => return Ok(()), // A writer may have the lock.
/// };
/// if outdated {
///     match reader.try_upgrade().await? {
///         Upgrade::Done(writer) => writer.unlock().await?,
///         Upgrade::Refused(reader) => {
///             // There are other readers, and this one still reads.
///             assert!(!reader.is_lost() && reader.remaining() > Duration::ZERO);
///             reader.renew().await?;
///             reader.unlock().await?;
///         }
///     }
/// }
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "the lock is released when its last guard is dropped"]
pub struct ReadGuard {
    front: Front,
    held: Arc<LeaseGuard>,
}

impl ReadGuard {
    pub(super) fn new(front: Front, held: LeaseGuard) -> Self {
        Self { front, held: Arc::new(held) }
    }

    guard!(lease);

    /// Makes this reader the writer in one step. Returns the guard as
    /// [`Refused`](Upgrade::Refused) if there are other readers, its own clones among them.
    ///
    /// It does not wait, because two readers that wait for each other to leave would wait for ever.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost) if the lock was no longer held.
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer. Which of the two
    ///   locks is held is not known then, and both are given up.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, both locks are given up.
    pub async fn try_upgrade(self) -> Result<Upgrade, Error> {
        let front = self.front;
        let held = match Arc::try_unwrap(self.held) {
            Ok(held) => held,
            Err(held) => return Ok(Upgrade::Refused(Self { front, held })),
        };
        Ok(match pass_to(&front, held, Mode::Write).await? {
            Ok(held) => Upgrade::Done(WriteGuard::new(front, held)),
            Err(held) => Upgrade::Refused(Self::new(front, held)),
        })
    }

    guard!(unlock shared);
}

/// The outcome of [`ReadGuard::try_upgrade`]. In both cases the lock is still held.
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub enum Upgrade {
    /// The reader is now the writer.
    Done(WriteGuard),
    /// There are other readers, and the reader is still a reader.
    Refused(ReadGuard),
}

/// An [`RwLock`](super::RwLock) that is held alone.
///
/// Its lease is renewed while the guard lives. If the guard is dropped, the lock is released [in
/// the background](super#dropped-guards). [`unlock`](Self::unlock) also reports whether the lock
/// was held to the end.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend};
///
/// # async fn write(prices: &[u32], fence: u64) {}
/// let lock = Locks::new(MemoryBackend::new()).rw_lock("prices");
/// let writer = lock.write().await?;
/// tokio::select! {
///     // The store refuses a write with a smaller fencing token than the greatest it has seen.
///     () = write(&[7, 9], writer.fence()) => {}
///     () = writer.lost() => println!("another holder may have the lock"),
/// }
/// if writer.remaining() < Duration::from_secs(8) {
///     writer.renew().await?;
/// }
/// let reader = writer.downgrade().await?;
/// reader.unlock().await?;
///
/// let writer = lock.write().await?;
/// assert!(!writer.is_lost());
/// writer.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "the lock is released when its guard is dropped"]
pub struct WriteGuard {
    front: Front,
    held: LeaseGuard,
}

impl WriteGuard {
    pub(super) fn new(front: Front, held: LeaseGuard) -> Self {
        Self { front, held }
    }

    guard!(lease);
    guard!(fence);

    /// Makes this writer a reader in one step, and lets the next readers of the queue in.
    ///
    /// # Errors
    ///
    /// - [`Lost`](crate::ErrorKind::Lost) if the lock was no longer held.
    /// - [`Backend`](crate::ErrorKind::Backend) if the backend did not answer. Which of the two
    ///   locks is held is not known then, and both are given up.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, both locks are given up.
    pub async fn downgrade(self) -> Result<ReadGuard, Error> {
        let front = self.front;
        match pass_to(&front, self.held, Mode::Read).await? {
            Ok(held) => Ok(ReadGuard::new(front, held)),
            Err(held) => Err(held.lost_error()),
        }
    }

    guard!(unlock);
}

/// Passes a lease on to another mode. Returns the old lease if that is refused.
async fn pass_to(
    front: &Front,
    held: LeaseGuard,
    mode: Mode,
) -> Result<Result<LeaseGuard, LeaseGuard>, Error> {
    let limit = try_limit(front.retry.as_ref(), front.space.engine.backend().as_ref());
    held.pass_to(mode, limit).await
}
