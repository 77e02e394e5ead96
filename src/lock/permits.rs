use std::{fmt, str::FromStr};

use super::{
    front::{Front, RenewalPace, settings},
    scope::Scope,
    semaphore::mode,
};
use crate::{
    backend::{Claim, Mode, Owner, Renewal},
    error::{Error, ErrorKind},
    key::Key,
    lease::Held,
};

/// Permits that live by themselves: each has an id and ends with its lease, whatever becomes of the process
/// that took it. Made by [`Locks::permits`](crate::Locks::permits).
///
/// For what outlives a call or moves between processes: a permit is taken here, its id stored or sent along,
/// and given back or extended there. It is not renewed by itself. They are of the same stock as the
/// [semaphore](super::Semaphore) of that name.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend, lock::PermitId};
///
/// let exports = Locks::new(MemoryBackend::new()).permits("exports", 3).lease(Duration::from_secs(60));
/// let id = exports.acquire().await?.to_string();
/// // In another process, a minute later at most:
/// let id: PermitId = id.parse()?;
/// exports.renew(id).await?;
/// exports.release(id).await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until a permit is acquired"]
pub struct Permits {
    front: Front,
    limit: u32,
}

/// The id of a permit of [`Permits`]. Whoever knows it may give the permit back; it cannot be guessed.
///
/// Its text has 32 hexadecimal digits and is read again by [`str::parse`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PermitId(Owner);

impl Permits {
    pub(super) fn new(scope: Scope, name: Key, limit: u32) -> Self {
        let mut front = Front::new(scope, name);
        front.renewal = RenewalPace::Never;
        Self { front, limit }
    }

    settings!(bounded);

    /// Takes a permit, and waits while all are out. It ends by itself after the lease.
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](ErrorKind::NotAcquired) if the wait limit or the retry strategy ended first, or
    /// [`Backend`](ErrorKind::Backend) if the last try before that failed; and as
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn acquire(&self) -> Result<PermitId, Error> {
        let held = self.front.acquire(mode(self.limit, 1)?).await?;
        Ok(PermitId(held.detach()))
    }

    /// Takes a permit; none, if all are out, or another caller of this process waits for one.
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer,
    /// [`InvalidKey`](ErrorKind::InvalidKey) and [`InvalidConfig`](ErrorKind::InvalidConfig) for a name, a
    /// number or a setting outside its range, [`ShutDown`](ErrorKind::ShutDown) after
    /// [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn try_acquire(&self) -> Result<Option<PermitId>, Error> {
        let held = self.front.try_acquire(mode(self.limit, 1)?).await?;
        Ok(held.map(Held::detach).map(PermitId))
    }

    /// Makes a permit last its full lease from now.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if it had ended. [`Backend`](ErrorKind::Backend) if the backend did not
    /// answer: it may or may not have been extended. [`InvalidKey`](ErrorKind::InvalidKey) and
    /// [`InvalidConfig`](ErrorKind::InvalidConfig) as of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have been extended.
    pub async fn renew(&self, id: PermitId) -> Result<(), Error> {
        let claim = self.claim(id)?;
        let renewed = self.front.scope.engine.backend().renew(&[claim]).await?;
        if renewed.first() == Some(&Renewal::Held) { Ok(()) } else { Err(Held::lost()) }
    }

    /// Gives a permit back.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if it had ended. [`Backend`](ErrorKind::Backend) if the backend did not
    /// answer; the release is then repeated in the background, and the permit ends by itself at the latest.
    /// [`InvalidKey`](ErrorKind::InvalidKey) and [`InvalidConfig`](ErrorKind::InvalidConfig) as of
    /// [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, it is given back all the same.
    pub async fn release(&self, id: PermitId) -> Result<(), Error> {
        self.front.scope.engine.end(self.claim(id)?).await
    }

    fn claim(&self, PermitId(owner): PermitId) -> Result<Claim, Error> {
        self.front.upkeep()?;
        // What is out can be kept and given back, whatever the limit is now.
        let mode = Mode::Permit { limit: self.limit, count: 1 };
        Ok(Claim { owner, ..self.front.claim(mode)? })
    }
}

impl fmt::Debug for Permits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "Permits")
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PermitId({})", self.0)
    }
}

impl FromStr for PermitId {
    type Err = Error;

    /// Reads what [`to_string`](ToString::to_string) wrote.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](ErrorKind::InvalidKey) if it is not the id of a permit.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid =
            |error| Error::with_source(ErrorKind::InvalidKey, "not the id of a permit", error);
        text.parse().map(Self).map_err(invalid)
    }
}
