//! The common parts of all locks: a name, its settings, and how they become a lease.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::sleep;
use tracing::warn;

use crate::{
    backend::{Claim, Holding, Leases, Mode},
    error::{Chain, Error, ErrorKind},
    key::{Family, Key, Name, Namespace},
    lease::{AcquireTerms, Engine, LeaseGuard, Retry, RetryStrategy, Upkeep},
    observe::Rarely,
    time::Pauses,
};

const SHORTEST_LEASE: Duration = Duration::from_millis(20);
const LONGEST_LEASE: Duration = FENCE_LIFE;
/// How long fences grow even if the clock of the server is set back.
const FENCE_LIFE: Duration = Duration::from_secs(86_400);
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// The engine and the naming rules that all locks of one `Locks` or `Redlock` have in common.
#[derive(Clone)]
pub(super) struct LockSpace {
    pub(super) engine: Arc<Engine>,
    family: Family,
    /// An invalid namespace is reported by the first use of a lock.
    pub(super) namespace: Result<Namespace, Error>,
    pub(super) max_name: usize,
    /// The label of this process, for operators.
    pub(super) label: Option<Arc<str>>,
}

impl LockSpace {
    pub(super) fn over(backend: Arc<dyn Leases>, family: Family, namespace: &str) -> Self {
        let (engine, namespace) = (Engine::new(backend), Namespace::new(namespace));
        Self { engine, family, namespace, max_name: 512, label: None }
    }

    /// Returns whether the waiters of all processes have a queue.
    pub(super) fn has_queues(&self) -> bool {
        self.family != Family::Redlock
    }

    pub(super) fn name(&self, key: &Key) -> Result<Name, Error> {
        let namespace = self.namespace.as_ref().map_err(Error::clone)?;
        Name::new(namespace, self.family, key, self.max_name)
    }
}

/// A lock by its name, and how it is to be held. Its kind says what can be acquired.
///
/// [`Locks`](crate::Locks) creates it. Each kind has a name of its own, as [`Mutex`](super::Mutex).
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock<Kind> {
    pub(super) space: LockSpace,
    pub(super) key: Key,
    /// The name of the key in its namespace. An invalid one is reported by the first use.
    name: Result<Name, Error>,
    pub(super) lease: Duration,
    pub(super) renewal: RenewalPace,
    max_hold: Duration,
    wait_limit: Duration,
    retry: Arc<dyn RetryStrategy>,
    /// To wait for long is no fault.
    pub(super) stands_by: bool,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RenewalPace {
    Third,
    Every(Duration),
    Never,
}

/// A kind of lock whose lease is renewed while its guard lives.
pub trait Renews {}

/// A kind of lock that any process can look at.
pub trait Looks {
    /// Returns a mode of the holders.
    #[doc(hidden)]
    fn mode(&self) -> Mode;
}

impl<Kind> Lock<Kind> {
    /// Sets how long the lease lasts unless it is renewed, and so how long the waiters wait for a
    /// holder that died. Defaults to 10 s; from 20 ms to 24 h.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long an acquisition may wait for other holders. Defaults to 30 s, and to no limit
    /// for jobs and leaders. A candidate and the ticks of a job wait anew after it.
    ///
    /// A try that is under way at the limit may add up to its
    /// [`try_limit`](crate::lease::RetryStrategy::try_limit).
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// Sets when an acquisition tries again. Defaults to [on demand](Retry::on_demand).
    pub fn retry(mut self, strategy: impl RetryStrategy) -> Self {
        self.retry = Arc::new(strategy);
        self
    }
}

impl<Kind: Renews> Lock<Kind> {
    /// Sets how often the lease is renewed while its guard lives. From 1 ms to less than the lease;
    /// defaults to a third of it, so that two renewals may fail before the lease is lost.
    pub fn renew_every(mut self, interval: Duration) -> Self {
        self.renewal = RenewalPace::Every(interval);
        self
    }

    /// Turns renewal off: the lease ends by itself after the lease time, and is lost then.
    pub fn fixed_lease(mut self) -> Self {
        self.renewal = RenewalPace::Never;
        self
    }

    /// Sets how long one guard may hold in all, so that a holder that is stuck does not keep the
    /// lock for ever. At the limit the lease is lost. Defaults to no limit; at least the lease.
    pub fn max_hold(mut self, limit: Duration) -> Self {
        self.max_hold = limit;
        self
    }
}

impl<Kind: Looks> Lock<Kind> {
    /// Returns who holds it, and how many wait at the server. Returns `None` if there is no holder.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn free(mutex: bellwether::lock::Mutex) -> Result<(), bellwether::Error> {
    /// if let Some(held) = mutex.holder().await? {
    ///     println!("{:?} has the fence {}", held.owner, held.fence);
    ///     mutex.force_unlock().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn holder(&self) -> Result<Option<Holding>, Error> {
        let held = self.held().await?;
        Ok((held.holders > 0).then_some(held))
    }

    /// Ends the leases of all holders, or removes the foreign data in their place. Returns `true`
    /// if there was something to remove.
    ///
    /// Locks [of another kind](super#which-locks-of-one-name-are-one) under the name stay. A push
    /// tells the process of each holder, which asks for its lease and so learns of the loss. In a
    /// cluster, or if the push is lost, it learns of the loss at its next renewal, and with a
    /// [fixed lease](Self::fixed_lease) at its end. Until then, only a fencing token protects.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        let name = self.name()?;
        let engine = &self.space.engine;
        let was_there = engine.backend.clear(name, self.kind.mode()).await?;
        // The holder may be in this process, and hear no push.
        engine.renewals.check(|claim| claim.name == *name);
        Ok(was_there)
    }

    pub(super) async fn held(&self) -> Result<Holding, Error> {
        let backend = &self.space.engine.backend;
        Ok(backend.inspect(self.name()?, self.kind.mode().into()).await?)
    }
}

impl<Kind> Lock<Kind> {
    pub(super) fn new(space: &LockSpace, key: Key, kind: Kind) -> Self {
        Self {
            space: space.clone(),
            name: space.name(&key),
            key,
            lease: Duration::from_secs(10),
            renewal: RenewalPace::Third,
            max_hold: Duration::MAX,
            wait_limit: Duration::from_secs(30),
            retry: Arc::new(Retry::on_demand()),
            stands_by: false,
            kind,
        }
    }

    /// Returns a lock whose callers wait until it is their turn, however long that takes.
    pub(super) fn standing_by(mut self) -> Self {
        self.stands_by = true;
        self.wait_limit(Duration::MAX)
    }

    /// Acquires a lease in a mode, waiting while others are in the way.
    pub(super) async fn acquire_in(&self, mode: Mode) -> Result<LeaseGuard, Error> {
        match self.acquire_claim(self.claim(mode)?).await {
            Err(error) if self.space.label.is_some() && error.kind() == ErrorKind::NotAcquired => {
                Err(Box::pin(self.with_holder_label(error, mode)).await)
            }
            acquired => acquired,
        }
    }

    /// Tries once. Returns `None` if others are in the way.
    pub(super) async fn try_acquire_in(&self, mode: Mode) -> Result<Option<LeaseGuard>, Error> {
        let claim = Claim { waits: false, ..self.claim(mode)? };
        none_if_not_acquired(self.acquire_claim(claim).await)
    }

    async fn acquire_claim(&self, claim: Claim) -> Result<LeaseGuard, Error> {
        let held = self.acquire_leases(vec![claim]).await?;
        // There is one for each claim.
        held.into_iter().next().ok_or_else(Error::shut_down)
    }

    /// Acquires the leases of some claims, in their order. One that does not wait is tried once.
    pub(super) async fn acquire_leases(
        &self,
        claims: Vec<Claim>,
    ) -> Result<Vec<LeaseGuard>, Error> {
        let (retry, limit) = (self.retry.clone(), self.wait_limit);
        let (upkeep, stands_by) = (self.upkeep()?, self.stands_by);
        let terms = AcquireTerms { claims, upkeep, retry, limit, stands_by };
        self.space.engine.acquire(&self.key, terms).await
    }

    pub(super) fn claim(&self, mode: Mode) -> Result<Claim, Error> {
        ensure(mode != Mode::Fair || self.space.has_queues(), || {
            "a Redlock has no queue, so it has no fair mutex".to_owned()
        })?;
        Ok(self.claim_for(self.name()?.clone(), mode))
    }

    pub(super) fn claim_for(&self, name: Name, mode: Mode) -> Claim {
        let owner = self.space.engine.backend.new_owner();
        let claim = Claim::under(owner, name, mode, self.lease, FENCE_LIFE);
        Claim { label: self.space.label.clone(), ..claim }
    }

    /// Adds to an error which process holds the lock, if that is known.
    async fn with_holder_label(&self, error: Error, mode: Mode) -> Error {
        let Ok(name) = self.name() else { return error };
        match self.space.engine.backend.inspect(name, mode.into()).await {
            Ok(Holding { owner: Some(owner), .. }) => {
                Error::new(error.kind(), format!("{error}; {owner:?} holds it"))
            }
            _ => error,
        }
    }

    fn name(&self) -> Result<&Name, Error> {
        self.name.as_ref().map_err(Error::clone)
    }

    /// Checks the settings, and returns how the lease is to be kept.
    pub(super) fn upkeep(&self) -> Result<Upkeep, Error> {
        let renew_every = match self.renewal {
            RenewalPace::Third => Some(self.lease / 3),
            RenewalPace::Every(interval) => Some(interval),
            RenewalPace::Never => None,
        };
        let (name, lease) = (&self.key.text, self.lease);
        ensure((SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease), || {
            format!("the lease of {name:?} is {lease:?}; set it from 20 ms to 24 h")
        })?;
        let every = renew_every.unwrap_or(SHORTEST_INTERVAL);
        ensure(every >= SHORTEST_INTERVAL && every < lease, || {
            format!(
                "{name:?} is to be renewed every {every:?}; \
                 set an interval from 1 ms to less than its lease of {lease:?}"
            )
        })?;
        let max_hold = self.max_hold;
        ensure(max_hold >= lease, || {
            format!("`max_hold` of {name:?} is {max_hold:?}; set at least its lease of {lease:?}")
        })?;
        Ok(Upkeep { renew_every, max_hold })
    }
}

impl<Kind: fmt::Debug> fmt::Debug for Lock<Kind> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("kind", &self.kind)
            .field("name", &self.key)
            .field("lease", &self.lease)
            .field("wait_limit", &self.wait_limit)
            .finish_non_exhaustive()
    }
}

/// Returns an error with this reason unless the settings are right.
pub(super) fn ensure(is_right: bool, why: impl FnOnce() -> String) -> Result<(), Error> {
    is_right.then_some(()).ok_or_else(|| Error::new(ErrorKind::InvalidConfig, why()))
}

pub(super) fn none_if_not_acquired<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(held) => Ok(Some(held)),
        Err(error) if error.kind() == ErrorKind::NotAcquired => Ok(None),
        Err(error) => Err(error),
    }
}

/// Asks until there is an answer, through errors that may pass.
pub(super) async fn through_outages<T, Answer: Future<Output = Result<T, Error>>>(
    asker: &str,
    mut ask: impl FnMut() -> Answer,
) -> Result<T, Error> {
    let (told, mut pauses) = (Rarely::default(), Pauses::default());
    loop {
        let error = match ask().await {
            // The limit that it may wait at once.
            Err(error) if error.kind() == ErrorKind::NotAcquired => {
                sleep(Pauses::default().next()).await;
                continue;
            }
            Err(error) if may_pass(&error) => error,
            answer => return answer,
        };
        if told.first() {
            warn!(error = %Chain(&error), "{asker} cannot wait, and tries again");
        }
        sleep(pauses.next()).await;
    }
}

fn may_pass(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::ShutDown | ErrorKind::InvalidKey | ErrorKind::InvalidConfig)
}
