//! The mutexes of several names, acquired in the order of the names.

use std::ops::Deref;

use futures_util::future::{join_all, select_all};

use super::{
    builder::{Lock, ensure, none_if_not_acquired},
    mutex::MutexGuard,
    space::LockSpace,
    traits::{Renewed, sealed::Sealed},
};
#[cfg(doc)]
use crate::lease::Lease;
use crate::{
    backend::{Claim, Mode},
    error::{Error, ErrorKind},
    key::Key,
    lease::run_until,
};

/// The most names for one acquisition. Each name costs a request.
const MOST_NAMES: usize = 64;

/// The kind of several locks, with their names. The name of the lock lists all of them.
#[derive(Clone, Debug)]
pub struct Grouped(Vec<Key>);

/// The [mutexes of several names](crate::Locks::several).
pub type Several = Lock<Grouped>;

impl Several {
    pub(super) fn new(space: &LockSpace, names: Vec<Key>) -> Self {
        let all: Vec<_> = names.iter().map(Key::as_str).collect();
        Lock::with_kind(space, all.join(", ").into(), Grouped(names))
    }

    /// Acquires the locks, waiting while one of the locks has another holder.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). `InvalidConfig` also for no names, for more
    /// than 64 names, and for a name that occurs twice.
    pub async fn lock(&self) -> Result<SeveralGuard, Error> {
        self.acquire_each(true).await
    }

    /// Acquires the locks as [`lock`](Self::lock) does, if all of them are free. Returns `None` if
    /// one lock has another holder.
    pub async fn try_lock(&self) -> Result<Option<SeveralGuard>, Error> {
        none_if_not_acquired(self.acquire_each(false).await)
    }

    async fn acquire_each(&self, waits: bool) -> Result<SeveralGuard, Error> {
        let names = self.sorted_names()?;
        let mut claims = Vec::with_capacity(names.len());
        for key in &names {
            let claim = self.claim_for(self.space.name(key)?, Mode::Exclusive);
            claims.push(Claim { waits, ..claim });
        }
        let leases = self.space.engine.acquire_several(&self.key, claims, self.terms()?).await?;
        let guards = leases.into_iter().map(MutexGuard::new);
        Ok(SeveralGuard { guards: names.into_iter().zip(guards).collect() })
    }

    /// Returns the names in the order in which all callers acquire them.
    fn sorted_names(&self) -> Result<Vec<Key>, Error> {
        let mut names = self.kind.0.clone();
        names.sort();
        ensure((1..=MOST_NAMES).contains(&names.len()), || {
            format!("{} names are to be locked; pass from 1 to {MOST_NAMES}", names.len())
        })?;
        if let Some([name, ..]) = names.windows(2).find(|pair| pair.first() == pair.last()) {
            let why = format!("the name {name:?} occurs twice; pass each name once");
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        Ok(names)
    }
}

impl Sealed for Grouped {}

impl Renewed for Grouped {}

/// [Several](crate::Locks::several) locks that are held.
///
/// The leases are renewed while the guard lives. If one lease is lost, the guard counts as lost,
/// and the other locks stay held until they are released. A [dropped guard](super#dropped-guards)
/// releases all locks.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Key, Locks, MemoryBackend};
///
/// # async fn write(account: &Key, fence: u64) {}
/// let locks = Locks::new(MemoryBackend::new(), "shop");
/// let several = locks.several(["account:7", "account:9"]);
/// let guard = several.lock().await?;
/// assert!(several.try_lock().await?.is_none());
/// for (account, account_guard) in guard.iter() {
///     // The store refuses a write with a smaller fencing token than the greatest it has seen.
///     write(account, account_guard.fence()).await;
/// }
/// tokio::select! {
///     () = guard.lost() => println!("another holder may have one of the locks"),
///     written = guard.run(async { 7 }) => println!("wrote {}", written?),
/// }
/// guard.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "the locks are released when their guard is dropped"]
pub struct SeveralGuard {
    /// In the order of the names; never empty.
    guards: Vec<(Key, MutexGuard)>,
}

impl SeveralGuard {
    /// Completes when one of the leases is lost, as [`Lease::lost`] does.
    pub async fn lost(&self) {
        let losses = self.iter().map(|(_, guard)| Box::pin(guard.lost()));
        select_all(losses).await;
    }

    /// Runs a future until it completes or one of the leases is lost, as [`Lease::run`] does.
    pub async fn run<Work: Future>(&self, work: Work) -> Result<Work::Output, Error> {
        if let Some(output) = run_until(self.lost(), work).await {
            return Ok(output);
        }
        let lost = self.iter().find(|(_, guard)| guard.is_lost()).or(self.first());
        Err(Error::lost(lost.map_or("", |(name, _)| &name.text)))
    }

    /// Releases all locks at once, as [`MutexGuard::unlock`] releases one lock. If several locks
    /// report an error, a loss is returned rather than a missing answer.
    pub async fn unlock(self) -> Result<(), Error> {
        let releases = self.guards.into_iter().map(|(_, guard)| guard.unlock());
        let mut worst = Ok(());
        for outcome in join_all(releases).await {
            let Err(error) = outcome else { continue };
            if worst.is_ok() || error.kind() == ErrorKind::Lost {
                worst = Err(error);
            }
        }
        worst
    }
}

/// Each name with its guard, in the order of the names. Fencing tokens of different names are
/// unrelated, so give each resource the token of its own name.
impl Deref for SeveralGuard {
    type Target = [(Key, MutexGuard)];

    fn deref(&self) -> &Self::Target {
        &self.guards
    }
}
