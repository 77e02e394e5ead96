use std::{fmt, time::Duration};

use futures_util::future::{join_all, select_all};
use tracing::Instrument;

use super::{
    front::{Front, settings},
    scope::Scope,
};
use crate::{
    backend::{Claim, Mode},
    error::{Error, ErrorKind},
    key::Key,
    lease::{Held, Retry, RetryStrategy},
};

/// As many names may be locked at once: few enough for one script not to hold the server up.
const MOST: usize = 64;

/// The mutexes of several names, taken all or none. Made by [`Locks::several`](crate::Locks::several).
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Locks, MemoryBackend};
///
/// let locks = Locks::new(MemoryBackend::new());
/// let guard = locks.several(["account:7", "account:9"]).lock().await?;
/// assert!(locks.mutex("account:9").try_lock().await?.is_none());
/// // Move the money, handing guard.fence("account:7") and guard.fence("account:9") along.
/// guard.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
///
/// Nothing is held while it waits: it takes all of them in one step where the backend can do that, or one after
/// another in the order of the names, and gives back what it has as soon as one is not to be had. So no two
/// block each other, in whatever order they name what they want. Who wants many names that others take often
/// may wait for long, for they are had only when all are free at once.
///
/// From 1 to 64 names, none of them twice.
#[derive(Clone)]
#[must_use = "nothing is locked until it is asked for"]
pub struct Several {
    /// Its name stands for all of them.
    front: Front,
    names: Vec<Key>,
}

impl Several {
    pub(super) fn new(scope: Scope, names: Vec<Key>) -> Self {
        let all: Vec<_> = names.iter().map(Key::as_str).collect();
        Self { front: Front::new(scope, all.join(", ").into()), names }
    }

    settings!();
    settings!(fenced);

    /// Takes the locks if all of them are free; none, if someone else holds one.
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer, [`InvalidKey`](ErrorKind::InvalidKey) for
    /// a name outside its range, [`InvalidConfig`](ErrorKind::InvalidConfig) for no names, too many, one that is
    /// there twice, or a setting outside its range, [`ShutDown`](ErrorKind::ShutDown) after
    /// [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn try_lock(&self) -> Result<Option<SeveralGuard>, Error> {
        let once = Retry::never().try_limit(self.front.retry.try_limit());
        match self.acquire(&once, false).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.kind() == ErrorKind::NotAcquired => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the locks, and waits while someone else holds one.
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](ErrorKind::NotAcquired) if the wait limit or the retry strategy ended first, or
    /// [`Backend`](ErrorKind::Backend) if the last try before that failed; and as
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn lock(&self) -> Result<SeveralGuard, Error> {
        self.acquire(self.front.retry.as_ref(), true).await
    }

    async fn acquire(&self, retry: &dyn RetryStrategy, waits: bool) -> Result<SeveralGuard, Error> {
        let upkeep = self.front.upkeep()?;
        let (names, claims): (Vec<_>, Vec<_>) = self.claims(waits)?.into_iter().unzip();
        let span = tracing::debug_span!("lock", name = %self.front.name);
        let acquiring =
            self.front.scope.engine.acquire_all(claims, upkeep, retry, self.front.wait_limit);
        let held = acquiring.instrument(span).await?;
        Ok(SeveralGuard { held: names.into_iter().zip(held).collect() })
    }

    /// What to claim, in the order that is the same for everyone.
    fn claims(&self, waits: bool) -> Result<Vec<(Key, Claim)>, Error> {
        let invalid = |why| Err(Error::new(ErrorKind::InvalidConfig, why));
        if self.names.is_empty() {
            return invalid("there are no names to lock".to_owned());
        }
        if self.names.len() > MOST {
            return invalid(format!("{} names are more than {MOST}", self.names.len()));
        }
        let mut names = self.names.clone();
        names.sort();
        if let Some(twice) = names.windows(2).find(|two| two.first() == two.last()) {
            return invalid(format!("a name is there twice: {twice:?}"));
        }
        let claim = |key: Key| {
            let name = self.front.scope.name(&key)?;
            let (lease, fence_life) = (self.front.lease, self.front.fence_life);
            let claim = Claim::new(name, Mode::Exclusive, lease, fence_life);
            Ok((key, Claim { waits, ..claim }))
        };
        names.into_iter().map(claim).collect()
    }
}

impl fmt::Debug for Several {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "Several")
    }
}

/// [`Several`] locks that are held.
///
/// Their leases are renewed together while it lives. Dropped, they are released
/// [in the background](super#what-is-dropped); [`unlock`](Self::unlock) also says whether all were held to the end.
#[must_use = "a dropped guard gives the locks back"]
pub struct SeveralGuard {
    /// In the order of the names; never empty.
    held: Vec<(Key, Held)>,
}

impl SeveralGuard {
    /// Completes when one of the leases is lost: it could not be renewed in time, or the server no longer has
    /// it. Others may hold what it stood for from then on; the other locks stay held until they are released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; it can be asked for again.
    pub async fn lost(&self) {
        select_all(self.held.iter().map(|(_, held)| Box::pin(held.watch().lost()))).await;
    }

    /// Whether one of the leases is lost.
    pub fn is_lost(&self) -> bool {
        self.held.iter().any(|(_, held)| held.watch().is_lost())
    }

    /// How long all are held for certain if no renewal succeeds; zero, if one is lost.
    pub fn remaining(&self) -> Duration {
        self.held.iter().map(|(_, held)| held.remaining()).min().unwrap_or_default()
    }

    /// Renews the leases now, rather than when their time comes.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if one is no longer held; [`Backend`](ErrorKind::Backend) if the backend did not
    /// answer, and then they are still held for what [remains](Self::remaining).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, each lease may or may not have been renewed.
    pub async fn renew(&self) -> Result<(), Error> {
        all(join_all(self.held.iter().map(|(_, held)| held.refresh())).await)
    }

    /// The fence of one of the locks: a number that is greater than that of every earlier holder of that name.
    /// None, for a name that is not among them.
    ///
    /// Fences of different names have nothing to do with each other, so each thing that is guarded is given that
    /// of its own name.
    pub fn fence(&self, name: impl Into<Key>) -> Option<u64> {
        let name = name.into();
        self.fences().find_map(|(other, fence)| (*other == name).then_some(fence))
    }

    /// The [fence](Self::fence) of each name, in the order of the names.
    pub fn fences(&self) -> impl Iterator<Item = (&Key, u64)> {
        self.held.iter().map(|(name, held)| (name, held.fence()))
    }

    /// Gives the locks back, all at the same time.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if one was no longer held: what was done under it may have been done beside
    /// another holder. [`Backend`](ErrorKind::Backend) if the backend did not answer; the releases are then
    /// repeated in the background, and the leases end by themselves at the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the locks are released all the same.
    pub async fn unlock(self) -> Result<(), Error> {
        all(join_all(self.held.into_iter().map(|(_, held)| held.release())).await)
    }
}

/// What is true of all of them. A loss weighs more than an answer that did not come.
fn all(outcomes: Vec<Result<(), Error>>) -> Result<(), Error> {
    let errors: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    let lost = errors.iter().find(|error| error.kind() == ErrorKind::Lost);
    lost.or(errors.first()).cloned().map_or(Ok(()), Err)
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
