//! Permits with an id, which outlive the process that acquired them.

use std::{fmt, str::FromStr};

use super::{
    front::{Front, RenewalPace},
    macros::settings,
    semaphore::{any_permit, permit_mode},
    space::LockSpace,
};
use crate::{
    backend::{Claim, Owner, Renewal},
    error::{Error, ErrorKind},
    key::Key,
    lease::LeaseGuard,
};

/// Permits that are not tied to a guard or a process. Each has an id and ends with its lease,
/// whatever happens to the process that acquired it.
///
/// Created by [`Locks::permits`](crate::Locks::permits).
///
/// Use it for work that outlives a call or moves between processes. One process acquires a permit
/// and stores or sends its id, and another process renews or releases it. A permit is not renewed
/// by itself. The [semaphore](super::Semaphore) of the same name shares these permits.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend, lease::Retry, lock::PermitId};
///
/// let exports = Locks::new(MemoryBackend::new())
///     .permits("exports", 1)
///     .lease(Duration::from_secs(60))
///     .wait_limit(Duration::from_secs(2))
///     .retry(Retry::on_demand().times(100));
/// let id = exports.acquire().await?.to_string();
/// assert!(exports.try_acquire().await?.is_none());
///
/// // In another process, a minute later at most:
/// let id: PermitId = id.parse()?;
/// exports.renew(id).await?;
/// assert!(exports.release(id).await?);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing happens until a permit is acquired"]
pub struct Permits {
    front: Front,
    limit: u32,
}

/// The id of a permit of [`Permits`].
///
/// A process that knows the id may release the permit. The id cannot be guessed. Its text has 32
/// hexadecimal digits, and [`str::parse`] reads it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PermitId(Owner);

impl Permits {
    pub(super) fn new(space: LockSpace, name: Key, limit: u32) -> Self {
        let mut front = Front::new(space, name);
        front.renewal = RenewalPace::Never;
        Self { front, limit }
    }

    /// Acquires a permit, waiting while all are held. The permit ends by itself after the lease.
    ///
    /// # Errors
    ///
    /// - [`NotAcquired`](ErrorKind::NotAcquired) if the wait limit or the retry strategy ended
    ///   first.
    /// - [`Backend`](ErrorKind::Backend) if the last try before that failed.
    /// - The other errors of [`try_acquire`](Self::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a permit that it may have acquired is released.
    pub async fn acquire(&self) -> Result<PermitId, Error> {
        let held = self.front.acquire(permit_mode(&self.front.name, self.limit, 1)?).await?;
        Ok(PermitId(held.detach()))
    }

    /// Acquires a permit. Returns `None` if all are held, or if another caller waits.
    ///
    /// # Errors
    ///
    /// - [`Backend`](ErrorKind::Backend) if the backend did not answer.
    /// - [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    /// - [`InvalidConfig`](ErrorKind::InvalidConfig) if there are no permits, and for a setting
    ///   outside its range.
    /// - [`ShutDown`](ErrorKind::ShutDown) after [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a permit that it may have acquired is released.
    pub async fn try_acquire(&self) -> Result<Option<PermitId>, Error> {
        let held = self.front.try_acquire(permit_mode(&self.front.name, self.limit, 1)?).await?;
        Ok(held.map(LeaseGuard::detach).map(PermitId))
    }

    /// Renews a permit, so that it lasts its full lease from now.
    ///
    /// # Errors
    ///
    /// - [`Lost`](ErrorKind::Lost) if the permit had ended or was released.
    /// - [`Backend`](ErrorKind::Backend) if the backend did not answer. The permit may or may not
    ///   have been renewed.
    /// - [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    /// - [`InvalidConfig`](ErrorKind::InvalidConfig) for a setting outside its range.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the permit may or may not have been renewed.
    pub async fn renew(&self, id: PermitId) -> Result<(), Error> {
        let claim = self.claim(id)?;
        let renewed = self.front.space.engine.backend().renew(&[claim]).await?;
        match renewed.first() {
            Some(Renewal::Held) => Ok(()),
            _ => {
                let name = self.front.name.as_str();
                let why = format!("the permit of {name:?} has ended or was released");
                Err(Error::new(ErrorKind::Lost, why))
            }
        }
    }

    /// Releases a permit. Returns `true` if it was held, and `false` if it had ended or was
    /// released before.
    ///
    /// # Errors
    ///
    /// - [`Backend`](ErrorKind::Backend) if the backend did not answer. The release is then
    ///   repeated in the background, and the permit ends by itself at the latest.
    /// - [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    /// - [`InvalidConfig`](ErrorKind::InvalidConfig) for a setting outside its range.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, the permit is released all the same.
    pub async fn release(&self, id: PermitId) -> Result<bool, Error> {
        match self.front.space.engine.janitor().end(self.claim(id)?).await {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::Lost => Ok(false),
            Err(error) => Err(error),
        }
    }

    settings!(acquisition);

    fn claim(&self, PermitId(owner): PermitId) -> Result<Claim, Error> {
        self.front.upkeep()?;
        Ok(Claim { owner, ..self.front.claim(any_permit(self.limit))? })
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

    /// Reads the text that [`to_string`](ToString::to_string) wrote.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](ErrorKind::InvalidKey) if the text is not the id of a permit.
    fn from_str(text: &str) -> Result<Self, Error> {
        let invalid = |error| {
            // The text is not shown, because an id with a slip is almost an id.
            let why = "the text is not the id of a permit; expected 32 hexadecimal digits";
            Error::with_source(ErrorKind::InvalidKey, why, error)
        };
        text.parse().map(Self).map_err(invalid)
    }
}
