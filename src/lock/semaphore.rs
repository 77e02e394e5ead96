//! The semaphore: permits that are renewed while their guard lives.

use std::fmt;

use super::{
    front::Front,
    macros::{guard, settings},
    space::LockSpace,
};
use crate::{
    backend::Mode,
    error::{Error, ErrorKind},
    key::Key,
    lease::LeaseGuard,
};

const MOST_AT_ONCE: u32 = 1000;

/// A number of permits, each with a lease that is renewed while it is held.
///
/// Created by [`Locks::semaphore`](crate::Locks::semaphore).
///
/// The number of permits is not stored at the backend. Each caller states it, and acquires permits
/// only while no more than that are held. So the number changes with the code and never by mistake.
/// While processes with the old and the new number run side by side, each keeps to its own.
///
/// All waiters wait in one queue over all processes, whatever number of permits they want. A
/// released permit is handed over to the first of them as soon as enough are free for it. So a
/// caller that wants many is not overtaken by those that want few, and these wait behind it.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend, lease::Retry};
///
/// let semaphore = Locks::new(MemoryBackend::new())
///     .semaphore("exports", 3)
///     .lease(Duration::from_secs(5))
///     .renew_every(Duration::from_secs(1))
///     .max_hold(Duration::from_secs(60))
///     .wait_limit(Duration::from_secs(2))
///     .retry(Retry::on_demand().times(100));
///
/// let two = semaphore.acquire_many(2).await?;
/// assert!(semaphore.try_acquire_many(2).await?.is_none());
/// let one = semaphore.acquire().await?;
/// assert!(semaphore.try_acquire().await?.is_none());
/// two.release().await?;
/// assert_eq!(semaphore.available().await?, 2);
///
/// // An operator takes all permits back.
/// assert!(semaphore.force_release().await?);
/// assert!(one.release().await.is_err());
///
/// // Without renewal, the permit ends by itself.
/// let permit = semaphore.fixed_lease().acquire().await?;
/// # drop(permit);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a semaphore does nothing until permits are acquired"]
pub struct Semaphore {
    front: Front,
    limit: u32,
}

impl Semaphore {
    pub(super) fn new(space: LockSpace, name: Key, limit: u32) -> Self {
        Self { front: Front::new(space, name), limit }
    }

    /// Acquires a permit, waiting while all are held.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a permit that it may have acquired is released.
    pub async fn acquire(&self) -> Result<SemaphorePermit, Error> {
        self.acquire_many(1).await
    }

    /// Acquires a permit. Returns `None` if all are held, or if another caller waits.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many`](Self::try_acquire_many).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a permit that it may have acquired is released.
    pub async fn try_acquire(&self) -> Result<Option<SemaphorePermit>, Error> {
        self.try_acquire_many(1).await
    }

    /// Acquires `count` permits at once, all or none, waiting while too many are held.
    ///
    /// # Errors
    ///
    /// - [`NotAcquired`](ErrorKind::NotAcquired) if the wait limit or the retry strategy ended
    ///   first.
    /// - [`Backend`](ErrorKind::Backend) if the last try before that failed.
    /// - The other errors of [`try_acquire_many`](Self::try_acquire_many).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, permits that it may have acquired are released.
    pub async fn acquire_many(&self, count: u32) -> Result<SemaphorePermit, Error> {
        let held = self.front.acquire(self.mode(count)?).await?;
        Ok(SemaphorePermit { held, count })
    }

    /// Acquires `count` permits at once, all or none. Returns `None` if too many are held, or if
    /// another caller waits.
    ///
    /// # Errors
    ///
    /// - [`Backend`](ErrorKind::Backend) if the backend did not answer.
    /// - [`InvalidConfig`](ErrorKind::InvalidConfig) if `count` is zero, more than there are
    ///   permits, or more than 1,000, and for a setting outside its range.
    /// - [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    /// - [`ShutDown`](ErrorKind::ShutDown) after [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, permits that it may have acquired are released.
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<SemaphorePermit>, Error> {
        let held = self.front.try_acquire(self.mode(count)?).await?;
        Ok(held.map(|held| SemaphorePermit { held, count }))
    }

    /// Returns how many permits were free at the moment of asking.
    ///
    /// # Errors
    ///
    /// - [`Backend`](ErrorKind::Backend) if the backend did not answer, or if the name holds data
    ///   that is not a semaphore.
    /// - [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    /// - [`InvalidConfig`](ErrorKind::InvalidConfig) for a namespace outside its range.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn available(&self) -> Result<u32, Error> {
        let holder = self.front.holder(any_permit(self.limit)).await?;
        Ok(self.limit.saturating_sub(holder.map_or(0, |occupied| occupied.holders)))
    }

    /// Takes all permits back from their holders, or removes the foreign data in their place.
    /// Returns `true` if there was something to remove.
    ///
    /// Locks [of another kind](super#which-locks-of-one-name-are-one) under the name stay. The
    /// holders learn of the loss at their next renewal, and with a [fixed lease](Self::fixed_lease)
    /// at its end. Until then, more permits may be held than there are.
    ///
    /// # Errors
    ///
    /// - [`Backend`](ErrorKind::Backend) if the backend did not answer. The permits may or may not
    ///   have been taken back.
    /// - [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    /// - [`InvalidConfig`](ErrorKind::InvalidConfig) for a namespace outside its range.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permits may or may not have been taken back.
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.front.clear(any_permit(self.limit)).await
    }

    settings!(acquisition);
    settings!(renewal);

    fn mode(&self, count: u32) -> Result<Mode, Error> {
        permit_mode(&self.front.name, self.limit, count)
    }
}

/// Checks how many permits are to be acquired, and returns the mode for it.
pub(super) fn permit_mode(name: &Key, limit: u32, count: u32) -> Result<Mode, Error> {
    let wrong = match (limit, count) {
        (0, _) => format!("the semaphore {name:?} has 0 permits; give at least 1"),
        (_, 0) => format!("0 permits of {name:?} are requested; request at least 1"),
        _ if count > limit => {
            format!("{count} permits of {name:?} are requested, but it has only {limit}")
        }
        _ if count > MOST_AT_ONCE => format!(
            "{count} permits of {name:?} are requested at once; request at most {MOST_AT_ONCE}"
        ),
        _ => return Ok(Mode::Permit { limit, count }),
    };
    Err(Error::new(ErrorKind::InvalidConfig, wrong))
}

/// The mode of permits that are held already. Their count and the limit do not matter any more.
pub(super) fn any_permit(limit: u32) -> Mode {
    Mode::Permit { limit, count: 1 }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "Semaphore")
    }
}

/// Permits of a [`Semaphore`].
///
/// It has no fencing token, because several callers hold at once.
///
/// Their lease is renewed while the value lives. If it is dropped, the permits are released
/// [in the background](super#dropped-guards). [`release`](Self::release) also reports whether they
/// were held to the end.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend};
///
/// # async fn export() {}
/// let semaphore = Locks::new(MemoryBackend::new()).semaphore("exports", 3);
/// let permit = semaphore.acquire_many(2).await?;
/// assert_eq!(permit.count(), 2);
/// tokio::select! {
///     () = export() => {}
///     () = permit.lost() => println!("others may have these permits"),
/// }
/// if permit.remaining() < Duration::from_secs(8) {
///     permit.renew().await?;
/// }
/// assert!(!permit.is_lost());
/// permit.release().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[must_use = "permits are released when they are dropped"]
pub struct SemaphorePermit {
    held: LeaseGuard,
    count: u32,
}

impl SemaphorePermit {
    guard!(lease);

    /// Returns the number of permits.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Releases the permits.
    ///
    /// # Errors
    ///
    /// - [`Lost`](ErrorKind::Lost) if the permits were no longer held.
    /// - [`Backend`](ErrorKind::Backend) if the backend did not answer. The release is then
    ///   repeated in the background, and the lease ends by itself at the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permits are released all the same.
    pub async fn release(self) -> Result<(), Error> {
        self.held.release().await
    }
}

impl fmt::Debug for SemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphorePermit")
            .field("name", &self.held.claim().name.key())
            .field("count", &self.count)
            .field("remaining", &self.remaining())
            .finish()
    }
}
