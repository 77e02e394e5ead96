//! The mutexes of several names, acquired in the order of the names.

use std::time::Duration;

use futures_util::future::{join_all, select_all};

use super::{
    Locks,
    front::{Lock, Renews, ensure, none_if_not_acquired},
};
#[cfg(doc)]
use crate::lease::Lease;
use crate::{
    backend::{Claim, Mode},
    error::{Error, ErrorKind},
    key::Key,
    lease::{LeaseGuard, run_until},
};

/// The most names for one acquisition, each of which costs a request.
const MOST_NAMES: usize = 64;

/// The kind of several locks, with their names. The name of the lock lists all of them.
#[derive(Clone, Debug)]
pub struct Grouped(Vec<Key>);

/// The [mutexes of several names](crate::Locks::several).
pub type Several = Lock<Grouped>;

impl Renews for Grouped {}

impl Locks {
    /// Returns the [mutexes](Self::mutex) of several names, from 1 to 64, to acquire them together.
    ///
    /// They are acquired in the order of their names, so two callers never wait for each other.
    /// While the caller waits for one name, it holds the names before it. If one lock is not
    /// acquired, the others are released.
    pub fn several<K: Into<Key>>(&self, names: impl IntoIterator<Item = K>) -> Several {
        let names: Vec<Key> = names.into_iter().map(Into::into).collect();
        let all: Vec<_> = names.iter().map(Key::as_str).collect();
        Lock::new(&self.space, all.join(", ").into(), Grouped(names))
    }
}

impl Several {
    /// Acquires the locks, waiting while one of them has another holder.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). `InvalidConfig` also for no names, for
    /// more than 64, and for one that occurs twice.
    pub async fn lock(&self) -> Result<SeveralGuard, Error> {
        self.acquire_each(true).await
    }

    /// Acquires the locks as [`lock`](Self::lock) does, if all of them are free. Returns `None` if
    /// one has another holder.
    pub async fn try_lock(&self) -> Result<Option<SeveralGuard>, Error> {
        none_if_not_acquired(self.acquire_each(false).await)
    }

    async fn acquire_each(&self, waits: bool) -> Result<SeveralGuard, Error> {
        let (names, claims): (Vec<_>, Vec<_>) = self.claims(waits)?.into_iter().unzip();
        let held = self.acquire_leases(claims).await?;
        Ok(SeveralGuard { held: names.into_iter().zip(held).collect() })
    }

    /// Returns the claims in the order of the names, which is the same for all callers.
    fn claims(&self, waits: bool) -> Result<Vec<(Key, Claim)>, Error> {
        let mut names = self.kind.0.clone();
        names.sort();
        ensure((1..=MOST_NAMES).contains(&names.len()), || {
            format!("{} names are to be locked; pass from 1 to {MOST_NAMES}", names.len())
        })?;
        if let Some([name, ..]) = names.windows(2).find(|pair| pair.first() == pair.last()) {
            let why = format!("the name {name:?} occurs twice; pass each name once");
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        let claim = |key: Key| {
            let claim = self.claim_for(self.space.name(&key)?, Mode::Exclusive);
            Ok((key, Claim { waits, ..claim }))
        };
        names.into_iter().map(claim).collect()
    }
}

/// [Several](crate::Locks::several) locks that are held.
///
/// Their leases are renewed while the guard lives. If one of them is lost, the guard is, and the
/// other locks stay held until they are released. A [dropped guard](super#dropped-guards) releases
/// all.
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
/// for (account, fence) in guard.fences() {
///     // The store refuses a write with a smaller fencing token than the greatest it has seen.
///     write(account, fence).await;
/// }
/// tokio::select! {
///     () = guard.lost() => println!("another holder may have one of the locks"),
///     written = guard.run(async { 7 }) => println!("wrote {}", written?),
/// }
/// guard.renew().await?;
/// guard.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "the locks are released when their guard is dropped"]
pub struct SeveralGuard {
    /// In the order of the names; never empty.
    held: Vec<(Key, LeaseGuard)>,
}

impl SeveralGuard {
    /// Completes when one of the leases is lost, as [`Lease::lost`] does.
    pub async fn lost(&self) {
        select_all(self.each().map(|held| Box::pin(held.lost()))).await;
    }

    /// Returns `true` if one of the leases is lost.
    pub fn is_lost(&self) -> bool {
        self.each().any(|held| held.is_lost())
    }

    /// Runs a future until it completes or one of the leases is lost, as [`Lease::run`] does.
    pub async fn run<Work: Future>(&self, work: Work) -> Result<Work::Output, Error> {
        run_until(self.lost(), work).await.ok_or_else(|| {
            let lost = self.each().find(|held| held.is_lost()).or(self.each().next());
            lost.map_or_else(|| Error::lost(""), |held| held.lost_error())
        })
    }

    /// Returns how long all leases are certain to last if no renewal succeeds. Zero if one is lost.
    pub fn remaining(&self) -> Duration {
        self.each().map(|held| held.remaining()).min().unwrap_or_default()
    }

    /// Renews the leases now, as [`Lease::renew`] does.
    pub async fn renew(&self) -> Result<(), Error> {
        combined(join_all(self.each().map(|held| held.renew())).await)
    }

    /// Returns each name with its [fencing token](super::MutexGuard::fence), in the order of the
    /// names.
    ///
    /// Tokens of different names are unrelated. Give each resource the token of its own name.
    pub fn fences(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.held.iter().map(|(name, held)| (name, held.fence()))
    }

    /// Releases all locks at once, as [`MutexGuard::unlock`](super::MutexGuard::unlock) does one.
    pub async fn unlock(self) -> Result<(), Error> {
        combined(join_all(self.held.into_iter().map(|(_, held)| held.release())).await)
    }

    fn each(&self) -> impl Iterator<Item = &LeaseGuard> {
        self.held.iter().map(|(_, held)| held)
    }
}

/// Makes one outcome of the outcomes of several leases. A loss outweighs a missing answer.
fn combined(outcomes: Vec<Result<(), Error>>) -> Result<(), Error> {
    let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    let lost = errors.iter().find(|error| error.kind() == ErrorKind::Lost);
    lost.or(errors.first()).cloned().map_or(Ok(()), Err)
}
