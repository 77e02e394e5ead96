//! The mutexes of several names, acquired in the order of the names.

use std::ops::Deref;

use futures_util::future::{join_all, select_all};

use super::{
    Locks, MutexGuard,
    front::{Lock, Renews, ensure, none_if_not_acquired},
};
#[cfg(doc)]
use crate::lease::Lease;
use crate::{
    backend::{Claim, Mode},
    error::{Error, ErrorKind},
    key::Key,
    lease::run_until,
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
        let held = self.acquire_leases(claims).await?.into_iter().map(MutexGuard::from);
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
/// for (account, held) in guard.iter() {
///     // The store refuses a write with a smaller fencing token than the greatest it has seen.
///     write(account, held.fence()).await;
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
    held: Vec<(Key, MutexGuard)>,
}

impl SeveralGuard {
    /// Completes when one of the leases is lost, as [`Lease::lost`] does.
    pub async fn lost(&self) {
        select_all(self.iter().map(|(_, held)| Box::pin(held.lost()))).await;
    }

    /// Runs a future until it completes or one of the leases is lost, as [`Lease::run`] does.
    pub async fn run<Work: Future>(&self, work: Work) -> Result<Work::Output, Error> {
        run_until(self.lost(), work).await.ok_or_else(|| {
            let lost = self.iter().find(|(_, held)| held.is_lost()).or(self.first());
            Error::lost(lost.map_or("", |(name, _)| &name.text))
        })
    }

    /// Releases all locks at once, as [`MutexGuard::unlock`] does one. A loss outweighs a missing
    /// answer.
    pub async fn unlock(self) -> Result<(), Error> {
        let outcomes = join_all(self.held.into_iter().map(|(_, held)| held.unlock())).await;
        let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
        let lost = errors.iter().find(|error| error.kind() == ErrorKind::Lost);
        lost.or(errors.first()).cloned().map_or(Ok(()), Err)
    }
}

/// Each name with its guard, in the order of the names. Fencing tokens of different names are
/// unrelated, so give each resource the token of its own name.
impl Deref for SeveralGuard {
    type Target = [(Key, MutexGuard)];

    fn deref(&self) -> &Self::Target {
        &self.held
    }
}
