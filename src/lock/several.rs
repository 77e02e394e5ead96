//! The mutexes of several names, acquired in the order of the names.

use std::{fmt, time::Duration};

use futures_util::future::{join_all, select_all};

use super::{
    front::{FENCE_LIFE, Front, LockSpace, ensure, none_if_not_acquired},
    macros::{guard, settings},
};
use crate::{
    backend::{Claim, Mode},
    error::{Error, ErrorKind},
    key::Key,
    lease::LeaseGuard,
};

/// The most names for one acquisition, each of which costs a request.
const MOST_NAMES: usize = 64;

/// The mutexes of several names, from 1 to 64, each of them once.
///
/// Created by [`Locks::several`](crate::Locks::several).
///
/// The locks are acquired one after another in the order of their names, however they are given.
/// So two callers never wait for each other. While the caller waits for one name, it holds the
/// names before it. If one lock is not acquired, the others are released.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Locks, MemoryBackend};
///
/// let locks = Locks::new(MemoryBackend::new(), "shop");
/// let several = locks.several(["account:7", "account:9"]);
/// let guard = several.lock().await?;
/// assert!(several.try_lock().await?.is_none());
/// assert!(locks.mutex("account:9").try_lock().await?.is_none());
/// guard.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is locked until it is asked for"]
pub struct Several {
    /// Its name lists all names.
    front: Front,
    names: Vec<Key>,
}

impl Several {
    pub(super) fn new(space: LockSpace, names: Vec<Key>) -> Self {
        let all: Vec<_> = names.iter().map(Key::as_str).collect();
        Self { front: Front::new(space, all.join(", ").into()), names }
    }

    /// Acquires the locks, waiting while one of them has another holder.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). `InvalidConfig` also for no names, for
    /// more than 64, and for one that occurs twice.
    pub async fn lock(&self) -> Result<SeveralGuard, Error> {
        self.acquire(true).await
    }

    /// Acquires the locks if all of them are free. Returns `None` if one has another holder.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`lock`](Self::lock), but no `NotAcquired`.
    pub async fn try_lock(&self) -> Result<Option<SeveralGuard>, Error> {
        none_if_not_acquired(self.acquire(false).await)
    }

    settings!(acquisition);
    settings!(renewal);

    async fn acquire(&self, waits: bool) -> Result<SeveralGuard, Error> {
        let terms = self.front.terms(waits)?;
        let (names, claims): (Vec<_>, Vec<_>) = self.claims(waits)?.into_iter().unzip();
        let engine = &self.front.space.engine;
        let held = engine.observed(&self.front.name, engine.acquire_each(claims, terms)).await?;
        Ok(SeveralGuard { held: SeveralLeases(names.into_iter().zip(held).collect()) })
    }

    /// Returns the claims in the order of the names, which is the same for all callers.
    fn claims(&self, waits: bool) -> Result<Vec<(Key, Claim)>, Error> {
        let claim = |key: Key| {
            let name = self.front.space.name(&key)?;
            let claim = Claim::new(name, Mode::Exclusive, self.front.lease, FENCE_LIFE);
            Ok((key, Claim { waits, label: self.front.space.label.clone(), ..claim }))
        };
        self.sorted_names()?.into_iter().map(claim).collect()
    }

    fn sorted_names(&self) -> Result<Vec<Key>, Error> {
        let mut names = self.names.clone();
        names.sort();
        ensure(!names.is_empty(), || {
            format!("there are no names to lock; pass from 1 to {MOST_NAMES}")
        })?;
        ensure(names.len() <= MOST_NAMES, || {
            format!("{} names are too many to lock; pass at most {MOST_NAMES}", names.len())
        })?;
        if let Some([name, ..]) = names.windows(2).find(|pair| pair.first() == pair.last()) {
            let why = format!("the name {name:?} occurs twice; pass each name once");
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        Ok(names)
    }
}

/// [`Several`] locks that are held.
///
/// Their leases are renewed together while the guard lives. If one of them is lost, the guard is,
/// and the other locks stay held until they are released. If the guard is dropped, the locks are
/// released [in the background](super#dropped-guards). [`unlock`](Self::unlock) also reports
/// whether all were held to the end.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Key, Locks, MemoryBackend};
///
/// # async fn write(account: &Key, fence: u64) {}
/// let locks = Locks::new(MemoryBackend::new(), "shop");
/// let guard = locks.several(["account:7", "account:9"]).lock().await?;
/// for (account, fence) in guard.fences() {
///     assert_eq!(guard.fence(account), Some(fence));
///     // The store refuses a write with a smaller fencing token than the greatest it has seen.
///     write(account, fence).await;
/// }
/// guard.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[must_use = "the locks are released when their guard is dropped"]
pub struct SeveralGuard {
    held: SeveralLeases,
}

impl SeveralGuard {
    guard!(lease);

    /// Returns the fencing token of one lock, a number that grows with each holder of that name.
    /// Returns `None` for a name that is not among them.
    ///
    /// Tokens of different names are unrelated. Give each resource the token of its own name.
    pub fn fence(&self, name: impl Into<Key>) -> Option<u64> {
        let name = name.into();
        self.fences().find_map(|(other, fence)| (*other == name).then_some(fence))
    }

    /// Returns each name with its [fencing token](Self::fence), in the order of the names.
    pub fn fences(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.held.0.iter().map(|(name, held)| (name, held.fence()))
    }

    guard!(unlock = SeveralLeases::release, "Releases all locks at the same time.");
}

impl fmt::Debug for SeveralGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fences: Vec<_> = self.fences().collect();
        f.debug_struct("SeveralGuard")
            .field("fences", &fences)
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// Leases that are held together, in the order of their names; never empty. They are lost when one
/// of them is.
struct SeveralLeases(Vec<(Key, LeaseGuard)>);

impl SeveralLeases {
    async fn lost(&self) {
        select_all(self.each().map(|held| Box::pin(held.lost()))).await;
    }

    fn is_lost(&self) -> bool {
        self.each().any(|held| held.is_lost())
    }

    fn lost_error(&self) -> Error {
        let lost = self.0.iter().find(|(_, held)| held.is_lost()).or(self.0.first());
        Error::lost(lost.map_or("", |(name, _)| name.as_str()))
    }

    fn remaining(&self) -> Duration {
        self.each().map(|held| held.remaining()).min().unwrap_or_default()
    }

    async fn renew(&self) -> Result<(), Error> {
        combined(join_all(self.each().map(LeaseGuard::renew)).await)
    }

    async fn release(self) -> Result<(), Error> {
        combined(join_all(self.0.into_iter().map(|(_, held)| held.release())).await)
    }

    fn each(&self) -> impl Iterator<Item = &LeaseGuard> {
        self.0.iter().map(|(_, held)| held)
    }
}

/// Makes one outcome of the outcomes of several leases. A loss outweighs a missing answer.
fn combined(outcomes: Vec<Result<(), Error>>) -> Result<(), Error> {
    let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    let lost = errors.iter().find(|error| error.kind() == ErrorKind::Lost);
    lost.or(errors.first()).cloned().map_or(Ok(()), Err)
}
