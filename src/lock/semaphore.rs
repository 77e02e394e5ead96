use std::fmt;

use super::{
    front::{Front, guard, settings},
    scope::Scope,
};
use crate::{
    backend::Mode,
    error::{Error, ErrorKind},
    key::Key,
    lease::Held,
};

/// As many permits may be taken at once.
const MOST_AT_ONCE: u32 = 1000;

/// A number of permits, each of them a lease. Made by [`Locks::semaphore`](crate::Locks::semaphore).
///
/// The number is not stored anywhere: each caller says how many there are, and takes some only as long as no
/// more than that are out. So nothing can raise it by mistake, and who changes it changes it in the code;
/// while processes with the old and the new number run side by side, each keeps to its own.
///
/// Those of one process who wait for the same number of permits do so in line. Between processes, and between
/// those who want different numbers, whoever comes first when permits come back gets them, so one that wants
/// many may wait for long where others take few.
#[derive(Clone)]
#[must_use = "a semaphore does nothing until permits are acquired"]
pub struct Semaphore {
    front: Front,
    limit: u32,
}

impl Semaphore {
    pub(super) fn new(scope: Scope, name: Key, limit: u32) -> Self {
        Self { front: Front::new(scope, name), limit }
    }

    settings!();

    /// Takes a permit, and waits while all are out.
    ///
    /// # Errors
    ///
    /// As [`acquire_many`](Self::acquire_many).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn acquire(&self) -> Result<SemaphorePermit, Error> {
        self.acquire_many(1).await
    }

    /// Takes a permit; none, if all are out, or another caller of this process waits for one.
    ///
    /// # Errors
    ///
    /// As [`try_acquire_many`](Self::try_acquire_many).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn try_acquire(&self) -> Result<Option<SemaphorePermit>, Error> {
        self.try_acquire_many(1).await
    }

    /// Takes so many permits at once, all or none, and waits while too many are out.
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](ErrorKind::NotAcquired) if the wait limit or the retry strategy ended first, or
    /// [`Backend`](ErrorKind::Backend) if the last try before that failed; and as
    /// [`try_acquire_many`](Self::try_acquire_many).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn acquire_many(&self, count: u32) -> Result<SemaphorePermit, Error> {
        let held = self.front.acquire(self.mode(count)?).await?;
        Ok(self.permit(held, count))
    }

    /// Takes so many permits at once, all or none; none, if too many are out, or another caller of this process
    /// waits for as many.
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer,
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) if `count` is zero, more than there are permits, or more
    /// than 1,000, and for a setting outside its range, [`InvalidKey`](ErrorKind::InvalidKey) for a name
    /// outside its range, [`ShutDown`](ErrorKind::ShutDown) after [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<SemaphorePermit>, Error> {
        let held = self.front.try_acquire(self.mode(count)?).await?;
        Ok(held.map(|held| self.permit(held, count)))
    }

    /// How many permits are left, at the moment of asking.
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer, or if something stands under the name
    /// that is not a semaphore; [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn available(&self) -> Result<u32, Error> {
        let out = self.front.holder(self.any()).await?.map_or(0, |occupied| occupied.holders);
        Ok(self.limit.saturating_sub(out))
    }

    /// Takes all permits back, whoever has them, or clears whatever else stands in their place. Says whether
    /// something was there. Locks [of another kind](super#which-locks-of-one-name-are-one) under the name stay.
    ///
    /// Those who had them are told of the loss at their next renewal, with a
    /// [fixed lease](Self::fixed_lease) at its end; until then more may be out than there are.
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer: it may or may not have been done;
    /// [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have been done.
    pub async fn force_release(&self) -> Result<bool, Error> {
        self.front.clear(self.any()).await
    }

    fn mode(&self, count: u32) -> Result<Mode, Error> {
        mode(self.limit, count)
    }

    /// The mode of what is out, whatever the limit.
    fn any(&self) -> Mode {
        Mode::Permit { limit: self.limit, count: 1 }
    }

    fn permit(&self, held: Held, count: u32) -> SemaphorePermit {
        SemaphorePermit { name: self.front.name.clone(), held, count }
    }
}

/// The mode in which so many permits are claimed.
pub(super) fn mode(limit: u32, count: u32) -> Result<Mode, Error> {
    let invalid = |why| Err(Error::new(ErrorKind::InvalidConfig, why));
    match count {
        0 => invalid("no permits are asked for"),
        _ if count > limit => invalid("more permits are asked for than there are"),
        _ if count > MOST_AT_ONCE => invalid("more than 1,000 permits are asked for at once"),
        _ => Ok(Mode::Permit { limit, count }),
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "Semaphore")
    }
}

/// Permits of a [`Semaphore`].
///
/// Their lease is renewed while they live. Dropped, they are given back
/// [in the background](super#what-is-dropped); [`release`](Self::release) also says whether they were held to
/// the end.
#[must_use = "dropped permits are given back"]
pub struct SemaphorePermit {
    name: Key,
    held: Held,
    count: u32,
}

impl SemaphorePermit {
    guard!();

    /// How many permits these are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Gives the permits back.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if they were no longer held. [`Backend`](ErrorKind::Backend) if the backend
    /// did not answer; the release is then repeated in the background, and the lease ends by itself at the
    /// latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, they are given back all the same.
    pub async fn release(self) -> Result<(), Error> {
        self.held.release().await
    }
}

impl fmt::Debug for SemaphorePermit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphorePermit")
            .field("name", &self.name)
            .field("count", &self.count)
            .field("remaining", &self.remaining())
            .finish()
    }
}
