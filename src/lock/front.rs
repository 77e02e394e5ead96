//! What every primitive shares: a name, how its lease is kept, how long to wait for it, and what a guard
//! tells of it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tracing::Instrument;

use super::scope::Scope;
use crate::{
    backend::{Claim, Mode, Occupied},
    error::{Error, ErrorKind},
    key::{Key, Name},
    lease::{Held, Retry, RetryStrategy, Upkeep},
};

/// A name and how it is to be held.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) scope: Scope,
    pub(super) name: Key,
    /// The name in its namespace, once it was needed.
    pub(super) full_name: OnceLock<Name>,
    pub(super) lease: Duration,
    pub(super) renewal: RenewalPace,
    pub(super) max_hold: Duration,
    pub(super) wait_limit: Duration,
    pub(super) retry: Arc<dyn RetryStrategy>,
    pub(super) fence_life: Duration,
}

/// How often a lease is renewed.
#[derive(Clone, Copy, Debug)]
pub(super) enum RenewalPace {
    /// Three times in its length.
    Third,
    Every(Duration),
    Never,
}

impl Front {
    pub(super) fn new(scope: Scope, name: Key) -> Self {
        Self {
            scope,
            name,
            full_name: OnceLock::new(),
            lease: Duration::from_secs(10),
            renewal: RenewalPace::Third,
            max_hold: Duration::MAX,
            wait_limit: Duration::from_secs(30),
            retry: Arc::new(Retry::on_demand()),
            fence_life: Duration::from_secs(86_400),
        }
    }

    /// Tries, and waits while others stand in the way.
    pub(super) async fn acquire(&self, mode: Mode) -> Result<Held, Error> {
        self.acquire_claim(self.claim(mode)?, self.retry.as_ref()).await
    }

    /// Tries once; none, if others stand in the way.
    pub(super) async fn try_acquire(&self, mode: Mode) -> Result<Option<Held>, Error> {
        let once = Retry::never().try_limit(self.retry.try_limit());
        let mut claim = self.claim(mode)?;
        claim.waits = false;
        match self.acquire_claim(claim, &once).await {
            Ok(held) => Ok(Some(held)),
            Err(error) if error.kind() == ErrorKind::NotAcquired => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn acquire_claim(&self, claim: Claim, retry: &dyn RetryStrategy) -> Result<Held, Error> {
        let upkeep = self.upkeep()?;
        let span = tracing::debug_span!("lock", name = %self.name);
        let engine = &self.scope.engine;
        engine.acquire(claim, upkeep, retry, self.wait_limit).instrument(span).await
    }

    pub(super) fn claim(&self, mode: Mode) -> Result<Claim, Error> {
        let mut claim = Claim::new(self.full_name()?.clone(), mode, self.lease, self.fence_life);
        claim.waits = self.scope.queues();
        Ok(claim)
    }

    /// Who holds it, in a mode.
    pub(super) async fn holder(&self, mode: Mode) -> Result<Option<Occupied>, Error> {
        Ok(self.scope.engine.backend().holder(self.full_name()?, mode).await?)
    }

    /// Ends what is held in a mode. Says whether something was there.
    pub(super) async fn clear(&self, mode: Mode) -> Result<bool, Error> {
        Ok(self.scope.engine.backend().clear(self.full_name()?, mode).await?)
    }

    fn full_name(&self) -> Result<&Name, Error> {
        match self.full_name.get() {
            Some(name) => Ok(name),
            None => {
                let name = self.scope.name(&self.name)?;
                Ok(self.full_name.get_or_init(|| name))
            }
        }
    }

    pub(super) fn upkeep(&self) -> Result<Upkeep, Error> {
        let refresh = match self.renewal {
            RenewalPace::Third => Some(self.lease / 3),
            RenewalPace::Every(interval) => Some(interval),
            RenewalPace::Never => None,
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
            Some((_, broken)) => {
                let (lease, fence_life, max_hold) = (self.lease, self.fence_life, self.max_hold);
                let why = format!(
                    "{broken} (of {:?}: lease {lease:?}, refresh {refresh:?}, cap {max_hold:?}, fence {fence_life:?})",
                    self.name.as_str()
                );
                Err(Error::new(ErrorKind::InvalidConfig, why))
            }
            None => Ok(Upkeep { refresh, max_hold: self.max_hold }),
        }
    }

    pub(super) fn debug(&self, f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
        f.debug_struct(what)
            .field("name", &self.name)
            .field("lease", &self.lease)
            .field("wait_limit", &self.wait_limit)
            .finish_non_exhaustive()
    }
}

/// Shows a guard: its fence, where there is one.
pub(super) fn debug_guard(
    f: &mut fmt::Formatter<'_>,
    what: &str,
    name: &Key,
    held: &Held,
) -> fmt::Result {
    let mut shown = f.debug_struct(what);
    shown.field("name", name);
    // A majority of servers has no fence, and grants zero.
    if held.fence() > 0 {
        shown.field("fence", &held.fence());
    }
    shown.field("remaining", &held.remaining()).finish()
}

/// The settings of a primitive, which has a `front`.
macro_rules! settings {
    () => {
        crate::lock::front::settings!(bounded);

        /// How often the lease is renewed while its guard lives: a third of the lease unless set, so that
        /// two renewals may fail before it is lost. From 1 ms to under the lease.
        pub fn renew_every(mut self, interval: std::time::Duration) -> Self {
            self.front.renewal = crate::lock::front::RenewalPace::Every(interval);
            self
        }

        /// Never renews the lease: it ends by itself after the lease time, and is lost then.
        pub fn fixed_lease(mut self) -> Self {
            self.front.renewal = crate::lock::front::RenewalPace::Never;
            self
        }

        /// How long one guard may hold in all: without limit unless set. Then the lease is lost, so that a
        /// holder that is stuck does not keep it for ever. Not under the lease.
        pub fn max_hold(mut self, limit: std::time::Duration) -> Self {
            self.front.max_hold = limit;
            self
        }
    };
    (bounded) => {
        /// How long the lease lasts unless it is renewed: 10 s unless set. From 20 ms to a day.
        ///
        /// This is how long everyone waits for a holder that died.
        pub fn lease(mut self, lease: std::time::Duration) -> Self {
            self.front.lease = lease;
            self
        }

        /// How long to wait while others stand in the way: 30 s unless set.
        pub fn wait_limit(mut self, limit: std::time::Duration) -> Self {
            self.front.wait_limit = limit;
            self
        }

        /// When to try again: [on demand](crate::lease::Retry::on_demand) unless set.
        pub fn retry(mut self, strategy: impl crate::lease::RetryStrategy) -> Self {
            self.front.retry = std::sync::Arc::new(strategy);
            self
        }
    };
    (fenced) => {
        /// How long the last fence is remembered after the lock was granted or last renewed: 24 h unless set. Not
        /// under the lease.
        ///
        /// For this long, fences grow even if the server's clock is set back.
        pub fn fence_life(mut self, life: std::time::Duration) -> Self {
            self.front.fence_life = life;
            self
        }
    };
}

/// What every guard tells, which has something `held` in it.
macro_rules! guard {
    () => {
        /// Completes when the lease is lost: it could not be renewed in time, or the server no longer has
        /// it. Others may hold what it stood for from then on.
        ///
        /// # Cancel safety
        ///
        /// Dropping the future changes nothing; it can be asked for again.
        pub async fn lost(&self) {
            self.held.watch().lost().await;
        }

        /// Whether the lease is lost.
        pub fn is_lost(&self) -> bool {
            self.held.watch().is_lost()
        }

        /// How long it is held for certain if no renewal succeeds; zero, if it is lost.
        pub fn remaining(&self) -> std::time::Duration {
            self.held.remaining()
        }

        /// Renews the lease now, rather than when its time comes.
        ///
        /// # Errors
        ///
        /// [`Lost`](crate::ErrorKind::Lost) if it is no longer held;
        /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer, and then it is still held
        /// for what [remains](Self::remaining).
        ///
        /// # Cancel safety
        ///
        /// If the future is dropped, the lease may or may not have been renewed.
        pub async fn renew(&self) -> Result<(), crate::Error> {
            self.held.refresh().await
        }
    };
    (fenced) => {
        /// A number that is greater than that of every earlier holder of this lock.
        ///
        /// The idea is from M. Kleppmann, "How to do distributed locking" (2016): what the lock guards
        /// remembers the greatest fence it has seen, and refuses smaller ones.
        pub fn fence(&self) -> u64 {
            self.held.fence()
        }
    };
}

/// What anyone may see of a lock from outside, and do to it.
macro_rules! looks {
    ($this:ident => $mode:expr) => {
        /// Whether anyone holds the lock, at the moment of asking.
        ///
        /// # Errors
        ///
        /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer, or if something stands under
        /// the name that is not a lock; [`InvalidKey`](crate::ErrorKind::InvalidKey) for a name outside its
        /// range.
        ///
        /// # Cancel safety
        ///
        /// Dropping the future changes nothing.
        pub async fn is_locked(&$this) -> Result<bool, crate::Error> {
            Ok($this.expires_in().await?.is_some())
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
        pub async fn expires_in(&$this) -> Result<Option<std::time::Duration>, crate::Error> {
            Ok($this.front.holder($mode).await?.map(|occupied| occupied.remaining))
        }

        /// Ends the lock, whoever holds it, or whatever else stands in its place. Says whether something was
        /// there. Locks [of another kind](crate::lock#which-locks-of-one-name-are-one) under the name stay.
        ///
        /// The holder is told of the loss at his next renewal, with a [fixed lease](Self::fixed_lease) at its
        /// end; until then two may hold it, and only a fence protects.
        ///
        /// # Errors
        ///
        /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer: it may or may not have been
        /// ended; [`InvalidKey`](crate::ErrorKind::InvalidKey) for a name outside its range.
        ///
        /// # Cancel safety
        ///
        /// If the future is dropped, it may or may not have been ended.
        pub async fn force_unlock(&$this) -> Result<bool, crate::Error> {
            $this.front.clear($mode).await
        }
    };
}

pub(super) use {guard, looks, settings};
