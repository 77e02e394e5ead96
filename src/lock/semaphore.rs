//! The semaphore: permits that are renewed while their guard lives, and permits with an id, which
//! may outlive the process that acquired them, until their lease ends.

use std::{fmt, str::FromStr};

use super::{
    builder::{Lock, RenewalPace, ensure},
    guard::Guard,
    space::LockSpace,
    traits::{
        Inspected, Renewed,
        sealed::{HasMode, Sealed},
    },
};
use crate::{
    backend::{Claim, Mode, Owner, Renewal},
    error::{Error, ErrorKind},
    key::Key,
    lease::Release,
};

const MOST_AT_ONCE: u32 = 1000;

/// A number of permits, each renewed while it is held.
/// [`Locks::semaphore`](super::Locks::semaphore) creates it.
///
/// The backend does not store the number of permits. Each caller states the number, and acquires
/// permits only if no more than this number are held then, these permits included. So an old and a
/// new number may be in use side by side.
///
/// All waiters wait in one queue over all processes. So a caller that wants many permits is not
/// overtaken by callers that want few.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Locks, MemoryBackend};
///
/// let semaphore = Locks::new(MemoryBackend::new(), "shop").semaphore("exports", 3);
/// let two = semaphore.acquire_many(2).await?;
/// assert!(semaphore.try_acquire_many(2).await?.is_none());
/// assert_eq!(semaphore.available().await?, 1);
/// two.unlock().await?;
/// let one = semaphore.acquire().await?;
/// assert!(semaphore.try_acquire().await?.is_some());
/// one.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub type Semaphore = Lock<Counted>;

/// The kind of a [`Semaphore`], with the number of its permits.
#[derive(Clone, Debug)]
pub struct Counted(pub(super) u32);

/// Permits of a [`Semaphore`] that are held. They have no fencing token, because several callers
/// hold at once.
pub type SemaphorePermit = Guard<Counted>;

impl SemaphorePermit {
    /// Returns the number of permits.
    pub fn count(&self) -> u32 {
        match self.lease.release.claim.mode {
            Mode::Permit { count, .. } => count,
            _ => 1,
        }
    }
}

impl Semaphore {
    /// Acquires one permit as [`acquire_many`](Self::acquire_many) does.
    pub async fn acquire(&self) -> Result<SemaphorePermit, Error> {
        self.acquire_many(1).await
    }

    /// Acquires one permit as [`try_acquire_many`](Self::try_acquire_many) does.
    pub async fn try_acquire(&self) -> Result<Option<SemaphorePermit>, Error> {
        self.try_acquire_many(1).await
    }

    /// Acquires `count` permits at once, all or none, waiting while too many are held.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). `InvalidConfig` also if `count` is zero,
    /// more than there are permits, or more than 1,000.
    pub async fn acquire_many(&self, count: u32) -> Result<SemaphorePermit, Error> {
        let mode = permit_mode(&self.key, self.kind.0, count)?;
        let lease = self.acquire_in(mode).await?;
        Ok(SemaphorePermit::new(lease))
    }

    /// Acquires permits as [`acquire_many`](Self::acquire_many) does. Returns `None` if too many
    /// are held, or if another caller waits.
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<SemaphorePermit>, Error> {
        let mode = permit_mode(&self.key, self.kind.0, count)?;
        let lease = self.try_acquire_in(mode).await?;
        Ok(lease.map(SemaphorePermit::new))
    }

    /// Returns how many permits were free when the server answered. For the errors, see
    /// [`holder`](Self::holder).
    pub async fn available(&self) -> Result<u32, Error> {
        let holding = self.state().await?;
        Ok(self.kind.0.saturating_sub(holding.holders))
    }
}

impl Sealed for Counted {}

impl Renewed for Counted {}

impl HasMode for Counted {
    fn mode(&self) -> Mode {
        // Any count will do.
        Mode::Permit { limit: self.0, count: 1 }
    }
}

impl Inspected for Counted {}

/// Checks how many permits are to be acquired, and returns the mode of the claim.
fn permit_mode(name: &Key, limit: u32, count: u32) -> Result<Mode, Error> {
    ensure(limit > 0, || format!("the semaphore {name:?} has 0 permits; give at least 1"))?;
    ensure(count <= limit, || {
        format!("{count} permits of {name:?} are requested, but it has only {limit}")
    })?;
    ensure((1..=MOST_AT_ONCE).contains(&count), || {
        format!("{count} permits of {name:?} are requested; request from 1 to {MOST_AT_ONCE}")
    })?;
    Ok(Mode::Permit { limit, count })
}

/// Permits that are not tied to a guard or a process. The permits of one acquisition have an id and
/// end with their lease, whatever happens to the process that acquired them.
///
/// [`Locks::permits`](super::Locks::permits) creates it. Use it for work that moves between
/// processes: one process acquires a permit and sends the id, and another process renews or
/// releases the permit. Nothing renews a permit by itself. A permit lasts its lease from the call
/// that has acquired or [renewed](Self::renew) it. So count the time that is left from before that
/// call.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend, lock::PermitId};
///
/// let exports = Locks::new(MemoryBackend::new(), "shop")
///     .permits("exports", 3)
///     .lease(Duration::from_secs(60));
/// let id = exports.acquire_many(2).await?.to_string();
/// assert_eq!(exports.available().await?, 1);
/// let _ends_by_itself = exports.acquire().await?;
///
/// // In another process, a minute later at most:
/// let id: PermitId = id.parse()?;
/// exports.renew(id).await?;
/// assert!(exports.release(id).await?);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub type Permits = Lock<Identified>;

/// The kind of [`Permits`], with their number.
#[derive(Clone, Debug)]
pub struct Identified(u32);

/// The id of what one call of [`Permits`] has acquired: a permit, or several permits.
///
/// A process that knows the id may release the permits. The id cannot be guessed. Its text has 32
/// hexadecimal digits, and behind a colon the number of several permits. [`str::parse`] reads the
/// text back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PermitId {
    owner: Owner,
    count: u32,
}

impl Permits {
    pub(super) fn new(space: &LockSpace, name: Key, permits: u32) -> Self {
        let mut lock = Lock::with_kind(space, name, Identified(permits));
        lock.renewal = RenewalPace::Never;
        lock
    }

    /// Acquires one permit as [`acquire_many`](Self::acquire_many) does.
    pub async fn acquire(&self) -> Result<PermitId, Error> {
        self.acquire_many(1).await
    }

    /// Acquires one permit as [`try_acquire_many`](Self::try_acquire_many) does.
    pub async fn try_acquire(&self) -> Result<Option<PermitId>, Error> {
        self.try_acquire_many(1).await
    }

    /// Acquires `count` permits at once, all or none, waiting while too many are held. The permits
    /// end by themselves after the lease, and have one id.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). `InvalidConfig` also if `count` is zero,
    /// more than there are permits, or more than 1,000.
    pub async fn acquire_many(&self, count: u32) -> Result<PermitId, Error> {
        let mode = permit_mode(&self.key, self.kind.0, count)?;
        let lease = self.acquire_in(mode).await?;
        Ok(PermitId { owner: lease.detach(), count })
    }

    /// Acquires permits as [`acquire_many`](Self::acquire_many) does. Returns `None` if too many
    /// are held, or if another caller waits.
    pub async fn try_acquire_many(&self, count: u32) -> Result<Option<PermitId>, Error> {
        let mode = permit_mode(&self.key, self.kind.0, count)?;
        let acquired = self.try_acquire_in(mode).await?;
        Ok(acquired.map(|lease| PermitId { owner: lease.detach(), count }))
    }

    /// Returns how many permits were free when the server answered. For the errors, see
    /// [`holder`](Self::holder).
    pub async fn available(&self) -> Result<u32, Error> {
        let holding = self.state().await?;
        Ok(self.kind.0.saturating_sub(holding.holders))
    }

    /// Renews the permits of an id, so that the permits last their full lease from now.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety), and [`Lost`](ErrorKind::Lost) if the permits
    /// had ended or were released.
    pub async fn renew(&self, id: PermitId) -> Result<(), Error> {
        let claim = self.claim_of(id)?;
        let renewed = self.space.engine.backend.renew(&[claim]).await?;
        if renewed.first() == Some(&Renewal::Held) {
            return Ok(());
        }
        let why = format!("the permit of {:?} has ended or was released", &self.key.text);
        Err(Error::new(ErrorKind::Lost, why))
    }

    /// Releases the permits of an id. Returns `true` if the permits were held, and
    /// `false` if the permits had ended or were released before.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). If a release gets no answer, a task repeats
    /// the release.
    pub async fn release(&self, id: PermitId) -> Result<bool, Error> {
        let claim = self.claim_of(id)?;
        let release = Release::new(&self.space.engine.janitor, claim);
        Ok(release.send().await?)
    }

    fn claim_of(&self, id: PermitId) -> Result<Claim, Error> {
        // `upkeep` checks the settings. Its result is not needed.
        self.checked_upkeep()?;
        let claim = self.claim(Mode::Permit { limit: self.kind.0, count: id.count })?;
        Ok(Claim { owner: id.owner, ..claim })
    }
}

impl HasMode for Identified {
    fn mode(&self) -> Mode {
        // Any count will do.
        Mode::Permit { limit: self.0, count: 1 }
    }
}

impl Inspected for Identified {}

impl PermitId {
    /// Returns the number of permits that have this id.
    pub fn count(&self) -> u32 {
        self.count
    }
}

impl fmt::Display for PermitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.owner.fmt(f)?;
        if self.count > 1 {
            write!(f, ":{}", self.count)?;
        }
        Ok(())
    }
}

impl FromStr for PermitId {
    type Err = Error;

    /// Reads the text that [`to_string`](ToString::to_string) wrote.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](ErrorKind::InvalidKey) if the text is not the id of permits.
    fn from_str(text: &str) -> Result<Self, Error> {
        // The error does not show the text, because an id with a typing error is almost an id.
        let why = "the text is not the id of a permit; expected 32 hexadecimal digits, and a \
                   number from 2 to 1000 behind a colon for several permits";
        let (owner, count) = match text.split_once(':') {
            Some((owner, count)) => (owner, count.parse().unwrap_or_default()),
            None => (text, 1),
        };
        let has_count = owner.len() < text.len();
        if has_count && !(2..=MOST_AT_ONCE).contains(&count) {
            return Err(Error::new(ErrorKind::InvalidKey, why));
        }
        match owner.parse() {
            Ok(owner) => Ok(Self { owner, count }),
            Err(error) => Err(Error::with_source(ErrorKind::InvalidKey, why, error)),
        }
    }
}
