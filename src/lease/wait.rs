//! Waiting for a lease that someone else holds.
//!
//! Try, subscribe and have it confirmed, **try again**, then sleep until a push, the end of the lease that
//! is in the way, 5 s, the next wait of the strategy, or the end of the wait. The second try closes the gap
//! in which a release could fall between the first try and the subscription.
//!
//! Where no subscription is to be had (the server forbids it, or its connection is broken), or the one that was
//! there is not restored yet, the looks come at growing intervals instead. A server that forbids pushes makes waiters a tenth of a second late then,
//! and not a lease.

use std::{mem, sync::Arc, time::Duration};

use tokio::{
    sync::oneshot::{self, error::RecvError},
    time::{Instant, sleep_until},
};

use super::{Claim, Engine, Owner, RetryStrategy, line::Call};
use crate::{
    backend::{Change, Changes, Handover},
    key::Name,
    time::after,
};

/// The longest time without a look, whatever pushes and leases say.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// After the end of a lease, its waiters look at random times within this.
const JITTER: Duration = Duration::from_millis(90);
/// Without a subscription: the first interval between looks, doubled up to the longest.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(100);
/// How long after a refused or a lost subscription the next one is asked for.
const RESUBSCRIBE: Duration = Duration::from_secs(1);
/// After which part of its time a place in a queue is taken anew: two tries may fail before it is lost.
const KEEP_PLACE: f64 = 0.32;

pub(crate) struct Waiting {
    engine: Arc<Engine>,
    /// What is waited for, and who waits.
    name: Name,
    owner: Owner,
    changes: Option<Changes>,
    /// Subscriptions to what was waited for before, and may be again.
    others: Vec<(Name, Changes)>,
    /// The longest time without a look, whatever pushes and leases say: a place in a queue may have to be kept.
    longest: Duration,
    /// Looks without a subscription so far, and when to ask for one again.
    looks: u32,
    subscribe_at: Option<Instant>,
    waits: Box<dyn Iterator<Item = Duration> + Send>,
    /// When the strategy's present wait ends.
    until: Option<Instant>,
    deadline: Instant,
    failures: u32,
}

/// What a waiter does next.
pub(crate) enum Turn {
    /// Try again.
    Again,
    /// This was pushed; try again if it does not settle the matter.
    Pushed(Change),
    /// The wait is over.
    TimeUp,
}

impl Waiting {
    pub(crate) fn new(
        engine: Arc<Engine>,
        claim: &Claim,
        strategy: &dyn RetryStrategy,
        limit: Duration,
    ) -> Self {
        let mut waiting = Self::on(engine, claim.name.clone(), claim.owner, strategy, limit);
        if claim.mode.is_ordered() {
            waiting.longest = claim.place_life().mul_f64(KEEP_PLACE);
        }
        waiting
    }

    /// For what is waited for without a claim.
    pub(crate) fn on(
        engine: Arc<Engine>,
        name: Name,
        owner: Owner,
        strategy: &dyn RetryStrategy,
        limit: Duration,
    ) -> Self {
        let now = Instant::now();
        Self {
            engine,
            name,
            owner,
            changes: None,
            others: Vec::new(),
            longest: LONGEST_SLEEP,
            looks: 0,
            subscribe_at: None,
            waits: strategy.waits(),
            until: None,
            deadline: after(now, limit),
            failures: 0,
        }
    }

    /// Waits for another name from now on. The subscription to the last one is kept, for of several names now
    /// one is in the way and now another, and each subscription asks for a try of its own.
    pub(crate) fn turn_to(&mut self, claim: &Claim) {
        let name = &claim.name;
        self.owner = claim.owner;
        if self.name == *name {
            return;
        }
        let last = mem::replace(&mut self.name, name.clone());
        self.others.extend(self.changes.take().map(|changes| (last, changes)));
        let known = self.others.iter().position(|(other, _)| other == name);
        self.changes = known.map(|at| self.others.swap_remove(at).1);
    }

    /// What is waited for.
    pub(crate) fn name(&self) -> &Name {
        &self.name
    }

    /// Takes a subscription over, so that none of its own is needed.
    pub(crate) fn adopt(&mut self, changes: Changes) {
        self.changes = Some(changes);
    }

    /// Hands its subscription on.
    pub(crate) fn into_changes(self) -> Option<Changes> {
        self.changes
    }

    /// Forgets what was pushed until now: the try that comes next will see what it was about.
    pub(crate) fn forget_pushes(&mut self) {
        let others = self.others.iter_mut().map(|(_, changes)| changes);
        self.changes.iter_mut().chain(others).for_each(Changes::forget);
    }

    /// Waits in a line to be called; none, if the wait is over first. An error, if nobody calls any more.
    pub(crate) async fn in_line(
        &mut self,
        mut called: oneshot::Receiver<Call>,
    ) -> Option<Result<Call, RecvError>> {
        loop {
            let wake = self.until()?.min(self.deadline);
            tokio::select! {
                biased;
                call = &mut called => return Some(call),
                () = sleep_until(wake) => if let Turn::TimeUp = self.woken(wake) { return None },
            }
        }
    }

    /// After a try: one that found the lease held for another so long, or one that failed.
    pub(crate) async fn after(&mut self, remaining: Option<Duration>) -> Turn {
        match remaining {
            Some(remaining) => self.next(remaining).await,
            None => self.after_failure().await,
        }
    }

    /// After a try that found the lease held for another `remaining`.
    pub(crate) async fn next(&mut self, remaining: Duration) -> Turn {
        self.failures = 0;
        // Counted from here, for a subscription that is not to be had takes its time.
        let told = Instant::now();
        let Some(until) = self.until() else { return Turn::TimeUp };
        if self.changes.as_ref().is_some_and(Changes::is_mute) {
            self.changes = None;
            self.subscribe_at = Some(told + RESUBSCRIBE);
        }
        match self.changes.as_ref().is_some_and(Changes::is_lost) {
            // Whoever was to restore it may be gone; who asks anew has it done.
            true if self.subscribe_at.is_some_and(|at| at <= told) => self.changes = None,
            true => drop(self.subscribe_at.get_or_insert(told + RESUBSCRIBE)),
            false if self.changes.is_some() => self.subscribe_at = None,
            false => {}
        }
        if self.changes.is_none() && self.subscribe_at.is_none_or(|at| at <= told) {
            let backend = self.engine.backend().clone();
            tokio::select! {
                changes = backend.changes(&self.name) => {
                    match changes {
                        Ok(changes) => {
                            self.changes = Some(changes);
                            return Turn::Again;
                        }
                        Err(error) => {
                            tracing::debug!(name = ?self.name, error = %crate::error::Chain(&error), "no subscription; looking");
                            self.subscribe_at = Some(Instant::now() + RESUBSCRIBE);
                        }
                    }
                }
                () = sleep_until(self.deadline) => return Turn::TimeUp,
            }
        }
        let jitter = JITTER.mul_f64(fastrand::f64());
        let mut look = told + remaining.saturating_add(jitter).min(self.longest);
        if self.changes.as_ref().is_none_or(Changes::is_lost) {
            let interval = FIRST_LOOK.saturating_mul(1 << self.looks.min(6)).min(LONGEST_LOOK);
            self.looks += 1;
            look = look.min(Instant::now() + interval.mul_f64(0.5 + fastrand::f64() / 2.0));
        }
        let wake = look.min(until).min(self.deadline);
        let pushed = async {
            match &mut self.changes {
                Some(changes) => loop {
                    match changes.next().await {
                        // Another's turn, and nothing to look at.
                        Change::Turn(owner) | Change::Granted(Handover { owner, .. })
                            if owner != self.owner => {}
                        change => return change,
                    }
                },
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            change = pushed => Turn::Pushed(change),
            () = sleep_until(wake) => self.woken(wake),
        }
    }

    /// After a try that failed: with a pause that grows, for the backend may be in trouble.
    pub(crate) async fn after_failure(&mut self) -> Turn {
        let Some(until) = self.until() else { return Turn::TimeUp };
        let bound = Duration::from_millis(20).saturating_mul(1 << self.failures.min(6));
        self.failures += 1;
        let pause = bound.mul_f64(0.5 + fastrand::f64() / 2.0);
        let wake = (Instant::now() + pause).min(until).min(self.deadline);
        sleep_until(wake).await;
        self.woken(wake)
    }

    fn woken(&mut self, wake: Instant) -> Turn {
        if wake >= self.deadline {
            return Turn::TimeUp;
        }
        if self.until.is_some_and(|until| until <= wake) {
            self.until = None;
        }
        Turn::Again
    }

    /// The end of the strategy's present wait, or of its next one; none, if it has no more.
    fn until(&mut self) -> Option<Instant> {
        if self.until.is_none() {
            let wait = self.waits.next()?;
            self.until = Some(after(Instant::now(), wait));
        }
        self.until
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::{
            Acquired, Channels, Grant, Leases, Mode, Occupied, Renewal, channels::Subscription,
        },
        error::{BackendError, BackendErrorKind},
        key::{Family, Key, Namespace},
        lease::Retry,
    };

    const MS: Duration = Duration::from_millis(1);

    /// Gives a subscription, or takes its time to say that there is none.
    struct Pushes(Option<Channels>);

    impl Leases for Pushes {
        async fn acquire(&self, _: &Claim) -> Result<Acquired, BackendError> {
            std::future::pending().await
        }

        async fn renew(&self, _: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
            std::future::pending().await
        }

        async fn release(&self, _: &Claim) -> Result<bool, BackendError> {
            std::future::pending().await
        }

        async fn pass(&self, _: &Claim, _: &Claim) -> Result<Option<Grant>, BackendError> {
            std::future::pending().await
        }

        async fn holder(&self, _: &Name, _: Mode) -> Result<Option<Occupied>, BackendError> {
            std::future::pending().await
        }

        async fn clear(&self, _: &Name, _: Mode) -> Result<bool, BackendError> {
            std::future::pending().await
        }

        async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
            if let Some(channels) = &self.0 {
                return Ok(channels.listen(name.prefix()));
            }
            tokio::time::sleep(250 * MS).await;
            Err(BackendError::new(BackendErrorKind::Unavailable, "no push connection"))
        }
    }

    fn waiting(pushes: Pushes) -> Result<(Waiting, Name), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let claim = Claim::new(name.clone(), Mode::Exclusive, 5000 * MS, 5000 * MS);
        let engine = Engine::new(Arc::new(pushes));
        let strategy = Retry::on_demand();
        Ok((Waiting::new(engine, &claim, &strategy, Duration::from_secs(60)), name))
    }

    /// Nobody will push anything, so the waiter looks by itself: soon after the attempt to subscribe, which
    /// took its time, and then at intervals that grow.
    #[tokio::test(start_paused = true)]
    async fn without_a_subscription_the_looks_come_at_growing_intervals() -> Result<(), crate::Error>
    {
        let (mut waiting, _) = waiting(Pushes(None))?;
        let told = Instant::now();
        assert!(matches!(waiting.next(5000 * MS).await, Turn::Again));
        // A timer fires within the millisecond after its time.
        let took = told.elapsed();
        assert!(took >= 250 * MS && took <= 251 * MS + FIRST_LOOK, "{took:?}");
        let mut looks = 0;
        while told.elapsed() < 1200 * MS {
            let before = Instant::now();
            assert!(matches!(waiting.next(5000 * MS).await, Turn::Again));
            assert!(before.elapsed() <= LONGEST_LOOK + MS, "{:?}", before.elapsed());
            looks += 1;
        }
        assert!((9..30).contains(&looks), "{looks} looks in a second");
        // The end of a lease is still looked for in its time.
        let before = Instant::now();
        waiting.next(MS).await;
        assert!(before.elapsed() <= 250 * MS + JITTER + 2 * MS, "{:?}", before.elapsed());
        Ok(())
    }

    /// The connection for pushes broke, and is not made anew at once. Who waits was woken by that, looked, and
    /// saw the lease held; that it is released now, nobody tells him. He looks by himself, until it is restored.
    #[tokio::test(start_paused = true)]
    async fn while_a_subscription_is_lost_the_looks_come_at_intervals() -> Result<(), crate::Error>
    {
        let channels = Channels::default();
        let (mut waiting, name) = waiting(Pushes(Some(channels.clone())))?;
        assert!(matches!(waiting.next(5000 * MS).await, Turn::Again), "it has subscribed");
        channels.answer(name.prefix(), Subscription::Confirmed);
        channels.forget_answers(|_| true);
        for _ in 0..8 {
            let before = Instant::now();
            assert!(matches!(waiting.next(5000 * MS).await, Turn::Again));
            assert!(before.elapsed() <= LONGEST_LOOK + MS, "{:?}", before.elapsed());
        }
        channels.answer(name.prefix(), Subscription::Confirmed);
        assert!(matches!(waiting.next(5000 * MS).await, Turn::Pushed(Change::Wake)));
        let before = Instant::now();
        assert!(matches!(waiting.next(4000 * MS).await, Turn::Again));
        assert!(before.elapsed() >= 4000 * MS, "{:?}", before.elapsed());
        Ok(())
    }
}
