//! The builder of a lock: its name, its settings, and how they become a lease.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{
    space::LockSpace,
    traits::{Inspected, Renewed},
};
use crate::{
    backend::{Claim, Holding, LOCK_FENCE_LIFE, Mode},
    error::{Chain, Error, ErrorKind},
    key::{Key, Name},
    lease::{AcquireTerms, LeaseGuard, RetryStrategy, Upkeep},
    observe::Rarely,
    time::Pauses,
};

const SHORTEST_LEASE: Duration = Duration::from_millis(20);
const LONGEST_LEASE: Duration = LOCK_FENCE_LIFE;
const SHORTEST_INTERVAL: Duration = Duration::from_millis(1);

/// How long a caller whose wait is over waits for the label of the holder.
const LABEL_LIMIT: Duration = Duration::from_millis(250);

/// A lock: its name, and the settings of its leases. `Kind` says what can be acquired.
///
/// [`Locks`](crate::Locks) creates a lock. Each kind has an alias, such as [`Mutex`](super::Mutex).
/// [`kind`](super::kind) lists the kinds.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock<Kind> {
    pub(super) space: LockSpace,
    pub(super) key: Key,
    /// The name of the key in its namespace. An invalid name is reported by the first use.
    name: Result<Name, Error>,
    pub(super) lease: Duration,
    pub(super) renewal: RenewalPace,
    max_hold: Duration,
    wait_limit: Duration,
    retry: Arc<dyn RetryStrategy>,
    /// `true` for a job or a candidate. A long wait is normal there, so no metric counts it.
    pub(super) stands_by: bool,
    pub(super) kind: Kind,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum RenewalPace {
    Third,
    Every(Duration),
    Never,
}

impl<Kind> Lock<Kind> {
    /// Sets how long the lease lasts unless it is renewed. If a holder dies, the waiters wait until
    /// this time has passed. Defaults to 10 s; from 20 ms to 24 h.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets how long an acquisition may wait for other holders. Defaults to 30 s, and to no limit
    /// for jobs and leaders. After the limit, a candidate and the ticks of a job begin a new wait
    /// within 20 ms, so a short limit costs them many requests.
    ///
    /// A try that is under way at the limit may add up to its
    /// [`try_limit`](crate::lease::RetryStrategy::try_limit). With a [label](crate::Locks::owner),
    /// the look-up of the holder for the error may add 250 ms.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.wait_limit = limit;
        self
    }

    /// Sets when an acquisition tries again. Defaults to [on
    /// demand](crate::lease::Retry::on_demand).
    pub fn retry(mut self, strategy: impl RetryStrategy) -> Self {
        self.retry = Arc::new(strategy);
        self
    }
}

impl<Kind: Renewed> Lock<Kind> {
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

impl<Kind: Inspected> Lock<Kind> {
    /// Returns the state of a lock that is held: its holders, and how many claims wait at the
    /// server. Returns `None` if the lock is free.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn free(mutex: bellwether::lock::Mutex) -> Result<(), bellwether::Error> {
    /// if let Some(holding) = mutex.holder().await? {
    ///     println!("{:?} has the fence {}", holding.owner, holding.fence);
    ///     mutex.force_unlock().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn holder(&self) -> Result<Option<Holding>, Error> {
        let holding = self.state().await?;
        if holding.holders > 0 { Ok(Some(holding)) } else { Ok(None) }
    }

    /// Ends the leases of all holders, or removes the foreign data in their place. Returns `true`
    /// if there was something to remove.
    ///
    /// Locks [of another kind](super#which-locks-of-one-name-are-one) under the name stay. A push
    /// reaches the process of each holder, which then renews the lease and so notices the loss. In
    /// a cluster, or if the push is lost, the process notices the loss at the next renewal. With a
    /// [fixed lease](Self::fixed_lease), it notices the loss at the end of the lease. Until then,
    /// only a fencing token protects.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn force_unlock(&self) -> Result<bool, Error> {
        self.space.force_unlock(self.name()?, self.kind.mode()).await
    }

    /// Returns the state of the lock, whether it is held or free.
    pub(super) async fn state(&self) -> Result<Holding, Error> {
        let backend = &self.space.engine.backend;
        Ok(backend.inspect(self.name()?, self.kind.mode().into()).await?)
    }
}

impl<Kind> Lock<Kind> {
    pub(super) fn with_kind(space: &LockSpace, key: Key, kind: Kind) -> Self {
        Self {
            space: space.clone(),
            name: space.name(&key),
            key,
            lease: Duration::from_secs(10),
            renewal: RenewalPace::Third,
            max_hold: Duration::MAX,
            wait_limit: Duration::from_secs(30),
            retry: space.retry.clone(),
            stands_by: false,
            kind,
        }
    }

    /// Returns a lock whose callers wait until they hold it, however long that takes.
    pub(super) fn standing_by(mut self) -> Self {
        self.stands_by = true;
        self.wait_limit(Duration::MAX)
    }

    /// Acquires a lease in a mode, waiting while other holders are in the way.
    pub(super) async fn acquire_in(&self, mode: Mode) -> Result<LeaseGuard, Error> {
        // A lock that stands by begins a new wait, and shows the error to no caller.
        let names_holder = self.space.label.is_some() && !self.stands_by;
        match self.acquire_claim(self.claim(mode)?).await {
            Err(error) if names_holder && error.kind() == ErrorKind::NotAcquired => {
                Err(Box::pin(self.with_holder_label(error, mode)).await)
            }
            acquired => acquired,
        }
    }

    /// Tries once. Returns `None` if other holders or waiters are in the way.
    pub(super) async fn try_acquire_in(&self, mode: Mode) -> Result<Option<LeaseGuard>, Error> {
        let claim = Claim { waits: false, ..self.claim(mode)? };
        none_if_not_acquired(self.acquire_claim(claim).await)
    }

    async fn acquire_claim(&self, claim: Claim) -> Result<LeaseGuard, Error> {
        self.space.engine.acquire(&self.key, claim, self.terms()?).await
    }

    /// Returns how leases of this lock are acquired and kept.
    pub(super) fn terms(&self) -> Result<AcquireTerms, Error> {
        Ok(AcquireTerms {
            upkeep: self.checked_upkeep()?,
            retry: self.retry.clone(),
            limit: self.wait_limit,
            stands_by: self.stands_by,
        })
    }

    pub(super) fn claim(&self, mode: Mode) -> Result<Claim, Error> {
        Ok(self.claim_for(self.name()?.clone(), mode))
    }

    pub(super) fn claim_for(&self, name: Name, mode: Mode) -> Claim {
        let owner = self.space.engine.backend.new_owner();
        self.space.claim(owner, name, mode, self.lease)
    }

    /// Adds to an error which process holds the lock, if the backend says so soon.
    async fn with_holder_label(&self, error: Error, mode: Mode) -> Error {
        let Ok(name) = self.name() else { return error };
        let holding = self.space.engine.backend.inspect(name, mode.into());
        match timeout(LABEL_LIMIT, holding).await {
            Ok(Ok(Holding { owner: Some(owner), .. })) => {
                Error::new(error.kind(), format!("{error}; {owner:?} holds it"))
            }
            _ => error,
        }
    }

    fn name(&self) -> Result<&Name, Error> {
        self.name.as_ref().map_err(Error::clone)
    }

    /// Checks the settings, and returns how the lease is to be kept.
    pub(super) fn checked_upkeep(&self) -> Result<Upkeep, Error> {
        let renew_every = match self.renewal {
            RenewalPace::Third => Some(self.lease / 3),
            RenewalPace::Every(interval) => Some(interval),
            RenewalPace::Never => None,
        };
        let name = &self.key.text;
        let lease = self.lease;
        ensure((SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease), || {
            format!("the lease of {name:?} is {lease:?}; set it from 20 ms to 24 h")
        })?;
        if let Some(every) = renew_every {
            ensure(every >= SHORTEST_INTERVAL && every < lease, || {
                format!(
                    "{name:?} is to be renewed every {every:?}; \
                     set an interval from 1 ms to less than its lease of {lease:?}"
                )
            })?;
        }
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
    if is_right { Ok(()) } else { Err(Error::new(ErrorKind::InvalidConfig, why())) }
}

pub(super) fn none_if_not_acquired<T>(outcome: Result<T, Error>) -> Result<Option<T>, Error> {
    match outcome {
        Ok(guard) => Ok(Some(guard)),
        Err(error) if error.kind() == ErrorKind::NotAcquired => Ok(None),
        Err(error) => Err(error),
    }
}

/// Repeats an attempt after errors that may pass. Returns the first other outcome. The log says
/// that `what` cannot wait.
pub(super) async fn through_outages<T, Answer: Future<Output = Result<T, Error>>>(
    what: &str,
    mut attempt: impl FnMut() -> Answer,
) -> Result<T, Error> {
    let logged = Rarely::default();
    let mut pauses = Pauses::default();
    loop {
        let error = match attempt().await {
            // The wait limit or the strategy has ended one acquisition, and another begins. The
            // pause does not grow, because no push reaches a candidate that pauses.
            Err(error) if error.kind() == ErrorKind::NotAcquired => {
                sleep(Pauses::default().next()).await;
                continue;
            }
            Err(error) if may_pass(&error) => error,
            answer => return answer,
        };
        if logged.first() {
            warn!(error = %Chain(&error), "{what} cannot wait, and tries again");
        }
        sleep(pauses.next()).await;
    }
}

/// Returns whether the next attempt may do without this error.
fn may_pass(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::ShutDown | ErrorKind::InvalidKey | ErrorKind::InvalidConfig)
}
