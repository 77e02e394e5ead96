//! A claim on its way to a lease, with its undo, and the wait for a lease that another holder has.
//!
//! A waiter is woken by a push, the next wait of its strategy, or the end of its wait. The
//! [keeper](super::keeper) wakes one with a queue entry. Any other one is woken by the end of the
//! lease in the way, or after 5 s.

use std::{iter::empty, mem::replace, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};
use tracing::debug;

use super::{Engine, Janitor, Release, RetryStrategy, keeper::KeptPlace, trusted};
use crate::{
    backend::{
        Change, Changes, Claim, Claimed, Grant, HANDOVER_LIFE, Handover, Leases, Owner,
        SemaphoreKind, answered_by,
    },
    error::{BackendError, Error, ErrorKind},
    time::{Pauses, after},
};

/// The longest time between looks without a subscription.
const UNHEARD_LOOK: Duration = Duration::from_millis(100);
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// After the end of a lease, its waiters look at random times within this.
const JITTER: Duration = Duration::from_millis(90);

/// The shortest wait of a strategy, so that a waiter lets go of its thread.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);

/// One claim on its way to a lease. Dropped before it is [settled](Self::settle), it undoes itself.
///
/// A release may hand the lease over to the first claim in the queue. The push says when that lease
/// ends, counted from the time at which the queue entry was taken. This side counts from a time
/// *before* the first request, so a late push tells of a lease that has ended here first.
pub(crate) struct Acquisition {
    /// Its outcome is unknown while a request is under way, and for ever after one that had no
    /// answer.
    pub(crate) release: Release,
    state: AcquisitionState,
    /// A time before the first request.
    since: Option<Instant>,
    /// The greatest fence that was in the way, once another holder was.
    met: Option<u64>,
    changes: Option<Changes>,
    place: Option<KeptPlace>,
}

/// The state of the claim at the backend, after the last answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum AcquisitionState {
    /// Nothing: no request was sent, or none left anything behind.
    Idle,
    /// A holder with this fence was in the way. The claim may have a queue entry, which the undo
    /// leaves.
    Waiting(u64),
    Granted,
}

impl From<&Claimed> for AcquisitionState {
    fn from(answer: &Claimed) -> Self {
        match answer {
            Claimed::Granted(_) => Self::Granted,
            Claimed::Occupied(occupied) => Self::Waiting(occupied.fence),
            Claimed::Newer(_) | Claimed::BacksOff(..) => Self::Idle,
        }
    }
}

impl From<&Option<Grant>> for AcquisitionState {
    fn from(answer: &Option<Grant>) -> Self {
        if answer.is_some() { Self::Granted } else { Self::Idle }
    }
}

impl Acquisition {
    pub(crate) fn new(janitor: &Arc<Janitor>, claim: Claim) -> Self {
        let (release, state) = (Release::new(janitor, claim), AcquisitionState::Idle);
        let (since, met, changes, place) = Default::default();
        Self { release, state, since, met, changes, place }
    }

    /// Sends one request. Returns the answer and a time before it was sent. A waiter
    /// [registers](Self::listen) first.
    pub(crate) async fn ask<'a, T, F>(
        &'a mut self,
        limit: Duration,
        send: impl FnOnce(&'a dyn Leases, &'a Claim) -> F,
    ) -> Result<(T, Instant), BackendError>
    where
        F: Future<Output = Result<T, BackendError>> + 'a,
        for<'t> AcquisitionState: From<&'t T>,
    {
        let sent = Instant::now();
        self.since.get_or_insert(sent);
        let Release { janitor, claim, outcome_unknown, .. } = &mut self.release;
        let was_unknown = replace(outcome_unknown, true);
        let backend: &'a dyn Leases = &*janitor.backend;
        let answer = answered_by(backend, limit, send(backend, claim)).await;
        let may_happen = answer.as_ref().is_err_and(BackendError::may_have_happened);
        *outcome_unknown = was_unknown || may_happen;
        let answer = answer?;
        self.state = AcquisitionState::from(&answer);
        if let AcquisitionState::Waiting(fence) = self.state {
            self.met = self.met.max(Some(fence));
        }
        Ok((answer, sent))
    }

    /// Registers the claim for pushes, so that it misses none from its next request on.
    pub(crate) fn listen(&mut self) -> &mut Changes {
        let Release { janitor, claim, .. } = &self.release;
        let backend = &janitor.backend;
        self.changes.get_or_insert_with(|| backend.listen(&claim.name, Some(claim)))
    }

    /// Takes its registration, if another holder was in the way.
    pub(super) fn take_changes(&mut self) -> Option<Changes> {
        self.changes.take().filter(|_| self.met.is_some())
    }

    /// Returns when to look again at a lease that is held for another `remaining`, if nothing wakes
    /// the waiter before the `deadline`. Has its queue entry kept, if the claim has one.
    ///
    /// Without pushes it looks every tenth of a second.
    fn next_look(
        &mut self,
        engine: &Arc<Engine>,
        remaining: Duration,
        deadline: Instant,
    ) -> Instant {
        let now = Instant::now();
        let changes = self.listen();
        let (is_heard, inbox) = (changes.subscribe(), changes.inbox().clone());
        let claim = &self.release.claim;
        let look = if claim.waits {
            self.place = Some(engine.keep_entry(claim, inbox, remaining));
            deadline
        } else {
            let jitter = JITTER.mul_f64(fastrand::f64());
            now + remaining.saturating_add(jitter).min(LONGEST_SLEEP)
        };
        match is_heard {
            true => look,
            false => look.min(now + UNHEARD_LOOK.mul_f64(0.5 + fastrand::f64() / 2.0)),
        }
    }

    /// Goes on with a fresh owner. A late release under the old one must not end what the next
    /// request is granted.
    pub(super) fn restart(&mut self) {
        self.release.outcome_unknown = true;
        self.settle().undo();
        self.release.claim.owner = Owner::fresh();
        (self.since, self.met, self.changes, self.place) = Default::default();
    }

    /// Returns whether the last request was granted, and every request had an answer.
    pub(crate) fn is_granted(&self) -> bool {
        self.state == AcquisitionState::Granted && !self.release.outcome_unknown
    }

    /// Returns until when a lease is held that was handed over to the claim. Returns `None` if that
    /// is not certain or nearly over: a request that is on its way could be granted the lease again
    /// after its end, and a push that is older than a holder that was in the way came late.
    pub(super) fn trusts(&self, handover: &Handover) -> Option<Instant> {
        let now = Instant::now();
        // The clock of the server may be set forward during the wait.
        let until = after(self.since?, trusted(handover.ends)).min(now + trusted(HANDOVER_LIFE));
        let left = until.saturating_duration_since(now);
        let is_newer = self.met.is_none_or(|met| handover.fence > met);
        let is_certain = is_newer && !self.release.outcome_unknown;
        (left >= HANDOVER_LIFE / 2 && is_certain).then_some(until)
    }

    /// Ends the acquisition. Returns its duty to release what the claim may have.
    pub(super) fn settle(&mut self) -> Release {
        let release = self.release.clone();
        (self.state, self.release.outcome_unknown) = (AcquisitionState::Idle, false);
        release
    }

    /// Releases the lease that was granted. Dropping the future does not stop the release.
    pub(crate) async fn give_back(mut self) -> Result<bool, BackendError> {
        self.settle().end().await
    }

    /// Keeps the lease beyond the acquisition: there is nothing to undo any more.
    pub(crate) fn keep(mut self) {
        self.settle();
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        let Release { claim, outcome_unknown, .. } = &self.release;
        let is_left = match self.state {
            AcquisitionState::Idle => false,
            AcquisitionState::Waiting(_) => claim.waits,
            AcquisitionState::Granted => true,
        };
        if *outcome_unknown {
            debug!(name = ?claim.name, "an acquisition with an unknown outcome is undone");
        }
        if is_left || *outcome_unknown {
            self.release.undo();
        }
    }
}

/// The wait of one caller. It costs nothing before the caller has to wait.
pub(crate) struct Waiting<'a> {
    pub(super) strategy: &'a dyn RetryStrategy,
    /// The waits of the strategy, once one was needed.
    waits: Option<Box<dyn Iterator<Item = Duration> + Send>>,
    /// When the strategy's present wait ends.
    until: Option<Instant>,
    limit: Duration,
    deadline: Instant,
    /// The pauses after requests that failed.
    pauses: Pauses,
    /// When the push came that has ended the last sleep, for the metrics.
    pub(crate) pushed_at: Option<Instant>,
}

pub(crate) enum Woken {
    Again,
    /// It was told of a change, and asks again unless that settles the matter.
    Pushed(Change),
    TimeUp,
}

impl<'a> Waiting<'a> {
    /// Returns the wait of a caller with this limit, which began at `since`.
    pub(crate) fn new(strategy: &'a dyn RetryStrategy, limit: Duration, since: Instant) -> Self {
        let (waits, until, pauses, pushed_at) = Default::default();
        Self { strategy, waits, until, limit, deadline: after(since, limit), pauses, pushed_at }
    }

    /// Ends the wait after one try, whatever the strategy.
    pub(super) fn try_once(&mut self) {
        self.waits = Some(Box::new(empty()));
    }

    /// Returns the error of a wait that its limit has ended, or the strategy.
    pub(super) fn not_acquired(&self, claim: &Claim) -> Error {
        let why = match Instant::now() >= self.deadline {
            true => format!("within its wait limit of {:?}", self.limit),
            false => "before its retry strategy ended".to_owned(),
        };
        let (key, kind) = (claim.name.key(), SemaphoreKind::from(claim.mode));
        Error::new(ErrorKind::NotAcquired, format!("{key:?} ({kind}) was not acquired {why}"))
    }

    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Waits for an event. Returns `None` if the wait is over first.
    pub(crate) async fn bounded<T>(&mut self, event: impl Future<Output = T>) -> Option<T> {
        let mut event = std::pin::pin!(event);
        loop {
            let wake = self.until()?.min(self.deadline);
            tokio::select! {
                biased;
                outcome = &mut event => return Some(outcome),
                () = sleep_until(wake) => if let Woken::TimeUp = self.woken(wake) { return None },
            }
        }
    }

    /// Waits after a request that found the lease held for another `remaining`, or that failed.
    pub(crate) async fn after(
        &mut self,
        engine: &Arc<Engine>,
        acquisition: &mut Acquisition,
        remaining: Option<Duration>,
    ) -> Woken {
        self.pushed_at = None;
        let Some(until) = self.until() else { return Woken::TimeUp };
        let look = match remaining {
            Some(remaining) => {
                self.pauses = Pauses::default();
                acquisition.next_look(engine, remaining, self.deadline)
            }
            // Until the shard can be expected to answer.
            None => after(Instant::now(), self.pauses.next()),
        };
        let wake = look.min(until).min(self.deadline);
        tokio::select! {
            biased;
            (change, at) = acquisition.listen().next_push() => {
                self.pushed_at = at;
                Woken::Pushed(change)
            }
            () = sleep_until(wake) => self.woken(wake),
        }
    }

    fn woken(&mut self, wake: Instant) -> Woken {
        if wake >= self.deadline {
            return Woken::TimeUp;
        }
        if self.until.is_some_and(|until| until <= wake) {
            self.until = None;
        }
        Woken::Again
    }

    /// The end of the strategy's present wait, or of its next one. Returns `None` if there is none.
    fn until(&mut self) -> Option<Instant> {
        if self.until.is_none() {
            let wait = self.waits.get_or_insert_with(|| self.strategy.waits()).next()?;
            self.until = Some(after(Instant::now(), wait.max(SHORTEST_WAIT)));
        }
        self.until
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;
    use crate::{
        MemoryBackend,
        backend::Mode,
        key::{Family, Key, Name, Namespace},
    };

    /// The answer to the first request is late, and so is the push.
    #[tokio::test(start_paused = true)]
    async fn a_handover_is_counted_from_before_the_first_request() -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let claim = Claim::new(name, Mode::Fair, HANDOVER_LIFE, HANDOVER_LIFE);
        let janitor = Janitor::new(Arc::new(MemoryBackend::new()));
        let mut acquisition = Acquisition::new(&janitor, claim);
        let handover = |fence, ends| Handover { owner: Owner::fresh(), fence, ends };
        assert_eq!(acquisition.trusts(&handover(8, HANDOVER_LIFE)), None);
        let sent = Instant::now();
        (acquisition.since, acquisition.met) = (Some(sent), Some(7));
        sleep(HANDOVER_LIFE / 4).await;
        let until = acquisition.trusts(&handover(8, HANDOVER_LIFE));
        assert!(until.is_some_and(|until| until < sent + HANDOVER_LIFE));
        assert_eq!(acquisition.trusts(&handover(7, HANDOVER_LIFE)), None, "that one was met");
        let longest = acquisition.trusts(&handover(8, Duration::MAX));
        assert!(longest.is_some_and(|until| until < Instant::now() + HANDOVER_LIFE));
        sleep(HANDOVER_LIFE / 2).await;
        assert_eq!(acquisition.trusts(&handover(8, HANDOVER_LIFE)), None, "too little is left");
        // Two clocks that both count a long wait run apart by up to a hundredth of it.
        let long = 110 * HANDOVER_LIFE / 2;
        sleep(long).await;
        let ends = sent.elapsed();
        assert_eq!(acquisition.trusts(&handover(8, ends + HANDOVER_LIFE)), None);
        assert!(acquisition.trusts(&handover(8, ends + 2 * HANDOVER_LIFE)).is_some());
        Ok(())
    }
}
