use std::{fmt, sync::Arc, time::Duration};

use tracing::Instrument;

use super::Locks;
use crate::{
    error::{Error, ErrorKind},
    key::Key,
    lease::{Claim, Held, Mode, Retry, RetryStrategy, Upkeep},
};

/// A lock that one holder has at a time: a name and how it is to be held. Made by [`Locks::mutex`].
#[derive(Clone)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex {
    locks: Locks,
    name: Key,
    lease: Duration,
    refresh: Refresh,
    max_hold: Duration,
    wait: Duration,
    retry: Arc<dyn RetryStrategy>,
    fence_life: Duration,
}

impl Mutex {
    pub(super) fn new(locks: Locks, name: Key) -> Self {
        Self {
            locks,
            name,
            lease: Duration::from_secs(10),
            refresh: Refresh::Third,
            max_hold: Duration::MAX,
            wait: Duration::from_secs(30),
            retry: Arc::new(Retry::on_demand()),
            fence_life: Duration::from_secs(86_400),
        }
    }

    /// How long the lease lasts unless it is renewed: 10 s unless set. At least 20 ms.
    ///
    /// This is how long everyone waits for a holder that died.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How often the lease is renewed while the guard lives: a third of the lease unless set, so that two
    /// renewals may fail before it is lost.
    pub fn refresh_every(mut self, interval: Duration) -> Self {
        self.refresh = Refresh::Every(interval);
        self
    }

    /// Never renews the lease: it ends by itself after the lease time, and the lock is lost then.
    pub fn fixed_lease(mut self) -> Self {
        self.refresh = Refresh::Never;
        self
    }

    /// How long one guard may hold the lock in all: without limit unless set. Then it is lost, so that a
    /// holder that is stuck does not keep it for ever.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = limit;
        self
    }

    /// How long [`lock`](Self::lock) waits: 30 s unless set.
    pub fn wait(mut self, limit: Duration) -> Self {
        self.wait = limit;
        self
    }

    /// When [`lock`](Self::lock) tries again: [on demand](Retry::on_demand) unless set.
    pub fn retry(mut self, strategy: impl RetryStrategy) -> Self {
        self.retry = Arc::new(strategy);
        self
    }

    /// How long the last fence is remembered after the lock was last held: 24 h unless set.
    ///
    /// For this long, fences grow even if the server's clock is set back.
    pub fn fence_life(mut self, life: Duration) -> Self {
        self.fence_life = life;
        self
    }

    /// Takes the lock if it is free; none, if someone else holds it.
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer,
    /// [`InvalidKey`](ErrorKind::InvalidKey) and [`InvalidConfig`](ErrorKind::InvalidConfig) for a name or
    /// a setting outside its range, [`ShutDown`](ErrorKind::ShutDown) after [`Locks::shutdown`].
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        let once = Retry::never().try_limit(self.retry.try_limit());
        match self.acquire(&once).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.kind() == ErrorKind::NotAcquired => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock, and waits for it while someone else holds it.
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
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        self.acquire(self.retry.as_ref()).await
    }

    /// Whether anyone holds the lock, at the moment of asking.
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer, or if something stands under the name
    /// that is not a lock; [`InvalidKey`](ErrorKind::InvalidKey) for a name outside its range.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.remaining().await?.is_some())
    }

    /// How long whoever holds the lock will hold it unless he renews it; none, if nobody does.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn remaining(&self) -> Result<Option<Duration>, Error> {
        let name = self.locks.name(&self.name)?;
        let holder = self.locks.engine.backend().holder(&name).await?;
        Ok(holder.map(|occupied| occupied.remaining))
    }

    /// Ends the lock, whoever holds it, and clears whatever else stands under its name. Says whether
    /// something was there.
    ///
    /// The holder is told of the loss at his next renewal; until then two may hold it, and only the fence
    /// protects.
    ///
    /// # Errors
    ///
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer: it may or may not have been ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have been ended.
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let name = self.locks.name(&self.name)?;
        Ok(self.locks.engine.backend().clear(&name).await?)
    }

    async fn acquire(&self, retry: &dyn RetryStrategy) -> Result<MutexGuard, Error> {
        let name = self.locks.name(&self.name)?;
        let upkeep = self.upkeep()?;
        let claim = Claim::new(name, Mode::Exclusive, self.lease, self.fence_life);
        let span = tracing::debug_span!("lock", name = %self.name);
        let engine = &self.locks.engine;
        let held = engine.acquire(claim, upkeep, retry, self.wait).instrument(span).await?;
        Ok(MutexGuard { name: self.name.clone(), held })
    }

    fn upkeep(&self) -> Result<Upkeep, Error> {
        let refresh = match self.refresh {
            Refresh::Third => Some(self.lease / 3),
            Refresh::Every(interval) => Some(interval),
            Refresh::Never => None,
        };
        let millisecond = Duration::from_millis(1);
        let day = Duration::from_secs(86_400);
        let rules = [
            (self.lease >= 20 * millisecond, "the lease is under 20 ms"),
            (self.lease <= day, "the lease is over a day"),
            (
                refresh.is_none_or(|every| every >= millisecond),
                "the refresh interval is under 1 ms",
            ),
            (
                refresh.is_none_or(|every| every < self.lease),
                "the refresh interval is not under the lease",
            ),
            (self.max_hold >= self.lease, "the cap on the hold is under the lease"),
            (self.fence_life >= self.lease, "the fence is forgotten before the lease ends"),
        ];
        match rules.iter().find(|(kept, _)| !kept) {
            Some((_, broken)) => Err(Error::new(ErrorKind::InvalidConfig, *broken)),
            None => Ok(Upkeep { refresh, max_hold: self.max_hold }),
        }
    }
}

/// How often a lease is renewed.
#[derive(Clone, Copy, Debug)]
enum Refresh {
    /// Three times in its length.
    Third,
    Every(Duration),
    Never,
}

impl fmt::Debug for Mutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex")
            .field("name", &self.name)
            .field("lease", &self.lease)
            .field("wait", &self.wait)
            .finish_non_exhaustive()
    }
}

/// A [`Mutex`] that is held.
///
/// Its lease is renewed while it lives. Dropped, it is released in the background;
/// [`unlock`](Self::unlock) also says whether it was held to the end.
#[must_use = "a dropped guard gives the lock back"]
pub struct MutexGuard {
    name: Key,
    held: Held,
}

impl MutexGuard {
    /// A number that is greater than that of every earlier holder of this lock.
    ///
    /// The idea is from M. Kleppmann, "How to do distributed locking" (2016): what the lock guards remembers
    /// the greatest fence it has seen, and refuses smaller ones.
    pub fn fence(&self) -> u64 {
        self.held.fence()
    }

    /// Completes when the lock is lost: its lease could not be renewed in time, or the server no longer has
    /// it. Someone else may hold it from then on.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing; it can be asked for again.
    pub async fn lost(&self) {
        self.held.watch().lost().await;
    }

    /// Whether the lock is lost.
    pub fn is_lost(&self) -> bool {
        self.held.watch().is_lost()
    }

    /// How long the lock is held for certain if no renewal succeeds; zero, if it is lost.
    pub fn remaining(&self) -> Duration {
        self.held.remaining()
    }

    /// Renews the lease now, rather than when its time comes.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if the lock is no longer held; [`Backend`](ErrorKind::Backend) if the
    /// backend did not answer, and then it is still held for what [remains](Self::remaining).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease may or may not have been renewed.
    pub async fn refresh(&self) -> Result<(), Error> {
        self.held.refresh().await
    }

    /// Gives the lock back.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if it was no longer held: what was done under it may have been done beside
    /// another holder. [`Backend`](ErrorKind::Backend) if the backend did not answer; the release is then
    /// repeated in the background, and the lease ends by itself at the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released all the same.
    pub async fn unlock(self) -> Result<(), Error> {
        self.held.release().await
    }
}

impl fmt::Debug for MutexGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MutexGuard")
            .field("name", &self.name)
            .field("fence", &self.fence())
            .field("remaining", &self.remaining())
            .finish()
    }
}
