//! Waiting for a lease that another holder has.
//!
//! Ask, subscribe and have it confirmed, **ask again**, then sleep until a push, the next wait of
//! the strategy, or the end of the wait. The second request closes the gap in which a release could
//! fall between the first one and the subscription. If a channel of the process was confirmed
//! before the first request, and no push was missed since, there is no gap.
//!
//! A waiter with a queue entry is also woken by the [keeper](super::keeper) of its entry, and any
//! other one by the end of the lease in the way, or after 5 s.
//!
//! Without a subscription the looks come at growing intervals instead: the server forbids it, its
//! connection is broken, or the lost one is not restored yet. A server that forbids pushes makes
//! waiters a tenth of a second late then, and not a lease.

use std::{mem, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    RetryStrategy,
    keeper::{Keeper, Place},
    recovery::Failures,
    release::Janitor,
};
use crate::{
    backend::{Change, Changes, Claim, Owner},
    error::Chain,
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

/// The wait of one caller. It costs nothing before the caller has to wait.
pub(crate) struct Waiting<'a> {
    janitor: Arc<Janitor>,
    strategy: &'a dyn RetryStrategy,
    /// What is waited for.
    subject: Subject,
    changes: Option<Changes>,
    /// How many pushes may have been missed before the last request, if it had no subscription.
    missed: Option<u64>,
    /// Subscriptions to names that were waited for before, and may be again.
    others: Vec<(Name, Changes)>,
    /// Keeps the queue entry of the claim, if it has one.
    keeper: Option<Keeper>,
    place: Option<Place>,
    /// The number of looks without a subscription, and when to ask for one again.
    looks: u32,
    subscribe_at: Option<Instant>,
    /// The waits of the strategy, once one was needed.
    waits: Option<Box<dyn Iterator<Item = Duration> + Send>>,
    /// When the strategy's present wait ends.
    until: Option<Instant>,
    limit: Duration,
    deadline: Instant,
    failures: Failures,
    /// It has slept until a timer, although its subscription stood.
    unpushed: bool,
}

/// What is waited for.
enum Subject {
    Claim(Claim),
    /// A name without a claim.
    Name(Name),
}

/// What a waiter does next.
pub(crate) enum Woken {
    /// It asks again.
    Again,
    /// It was told of a change, and asks again unless that settles the matter.
    Pushed(Change),
    /// Its wait is over.
    TimeUp,
}

impl<'a> Waiting<'a> {
    /// Waits for a claim.
    pub(crate) fn new(
        janitor: &Arc<Janitor>,
        claim: &Claim,
        strategy: &'a dyn RetryStrategy,
        limit: Duration,
    ) -> Self {
        Self::on_subject(janitor, Subject::Claim(claim.clone()), strategy, limit)
    }

    /// Waits for a name without a claim.
    pub(crate) fn on(
        janitor: &Arc<Janitor>,
        name: Name,
        strategy: &'a dyn RetryStrategy,
        limit: Duration,
    ) -> Self {
        Self::on_subject(janitor, Subject::Name(name), strategy, limit)
    }

    fn on_subject(
        janitor: &Arc<Janitor>,
        subject: Subject,
        strategy: &'a dyn RetryStrategy,
        limit: Duration,
    ) -> Self {
        Self {
            janitor: janitor.clone(),
            strategy,
            subject,
            changes: None,
            missed: None,
            others: Vec::new(),
            keeper: None,
            place: None,
            looks: 0,
            subscribe_at: None,
            waits: None,
            until: None,
            limit,
            deadline: after(Instant::now(), limit),
            failures: Failures::default(),
            unpushed: false,
        }
    }

    /// Has the queue entry of its claim kept while it waits.
    pub(super) fn keep_entries(&mut self, keeper: &Keeper) {
        self.keeper = Some(keeper.clone());
    }

    /// Waits for another claim from now on.
    ///
    /// The subscription to the last name is kept: of several names now one is in the way and now
    /// another, and each new subscription costs a request.
    pub(crate) fn turn_to(&mut self, claim: &Claim) {
        let name = &claim.name;
        let last = mem::replace(&mut self.subject, Subject::Claim(claim.clone()));
        (self.place, self.missed) = (None, None);
        if last.name() != name {
            let last = last.name().clone();
            self.others.extend(self.changes.take().map(|changes| (last, changes)));
            let known = self.others.iter().position(|(other, _)| other == name);
            self.changes = known.map(|at| self.others.swap_remove(at).1);
        }
        self.address();
    }

    /// Gets the changes for the owner that waits now.
    fn address(&mut self) {
        if let (Some(changes), Some(owner)) = (&mut self.changes, self.subject.owner()) {
            changes.address(owner);
        }
    }

    /// The name that is waited for.
    pub(crate) fn name(&self) -> &Name {
        self.subject.name()
    }

    /// Returns the limit if it has ended the wait, and not the strategy.
    pub(crate) fn limit_reached(&self) -> Option<Duration> {
        (Instant::now() >= self.deadline).then_some(self.limit)
    }

    /// Returns how long it still waits at most.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// Takes a subscription over, so that none of its own is needed.
    pub(crate) fn adopt(&mut self, changes: Changes) {
        self.changes = Some(changes);
        self.address();
    }

    /// Notes before a request how many pushes were missed until now.
    pub(crate) fn note_missed(&mut self) {
        self.missed = match (&self.changes, &self.subject) {
            (None, Subject::Claim(claim)) => Some(self.janitor.backend().missed_pushes(claim)),
            _ => None,
        };
    }

    /// Subscribes before a request, if that costs nothing.
    pub(crate) fn listen_along(&mut self) {
        self.note_missed();
        self.listen_since();
    }

    /// Subscribes after a request, if that costs nothing, and no push was missed since.
    fn listen_since(&mut self) {
        if let (Some(missed), Subject::Claim(claim)) = (self.missed.take(), &self.subject) {
            self.changes = self.janitor.backend().changes_since(claim, missed);
        }
    }

    /// Hands its subscription on.
    pub(crate) fn take_changes(&mut self) -> Option<Changes> {
        self.changes.take()
    }

    /// Forgets the pushes until now: the request that comes next sees what they were about.
    pub(crate) fn forget_pushes(&mut self) {
        let others = self.others.iter_mut().map(|(_, changes)| changes);
        self.changes.iter_mut().chain(others).for_each(Changes::forget);
    }

    /// Notes that its last look found what a push should have told.
    pub(crate) fn found(&mut self) {
        if mem::take(&mut self.unpushed) {
            self.janitor.turns(self.name()).untold.note();
        }
    }

    /// Waits for something else than a push. Returns `None` if the wait is over first.
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
    pub(crate) async fn after(&mut self, remaining: Option<Duration>) -> Woken {
        let Some(remaining) = remaining else { return self.after_failure().await };
        if !mem::take(&mut self.failures).is_none() {
            self.janitor.turns(self.subject.name()).recovery.heard(true);
        }
        // Counted from here, since a subscription that is refused takes its time.
        let told = Instant::now();
        let Some(until) = self.until() else { return Woken::TimeUp };
        self.listen_since();
        let has_entry = self.keep_entry(remaining);
        self.check_subscription(told);
        if self.changes.is_none()
            && self.subscribe_at.is_none_or(|at| at <= told)
            && let Some(woken) = self.subscribe().await
        {
            return woken;
        }
        let mut look = match has_entry {
            true => self.deadline,
            false => self.look_at_end(told, remaining),
        };
        let is_subscribed = self.changes.as_ref().is_some_and(|changes| !changes.is_lost());
        if !is_subscribed {
            let interval = FIRST_LOOK.saturating_mul(1 << self.looks.min(6)).min(LONGEST_LOOK);
            self.looks += 1;
            look = look.min(Instant::now() + interval.mul_f64(0.5 + fastrand::f64() / 2.0));
        }
        let wake = look.min(until).min(self.deadline);
        let owner = self.subject.owner();
        self.unpushed = false;
        tokio::select! {
            biased;
            change = pushed(self.changes.as_mut(), owner) => Woken::Pushed(change),
            () = kept(self.place.as_ref()) => Woken::Again,
            () = sleep_until(wake) => {
                self.unpushed = is_subscribed;
                self.woken(wake)
            }
        }
    }

    /// Returns when to look without a queue entry: after the end of the lease in the way, or
    /// earlier if pushes may not tell of it.
    fn look_at_end(&self, told: Instant, remaining: Duration) -> Instant {
        let jitter = JITTER.mul_f64(fastrand::f64());
        let sleep = remaining.saturating_add(jitter).min(LONGEST_SLEEP);
        let untold = self.janitor.turns(self.name()).untold.interval(1);
        told + untold.map_or(sleep, |interval| interval.min(sleep))
    }

    /// Has the queue entry kept, whose lease in the way lasts for another `remaining`. Returns
    /// `false` if the claim has no entry.
    fn keep_entry(&mut self, remaining: Duration) -> bool {
        let (Some(keeper), Subject::Claim(claim)) = (&self.keeper, &self.subject) else {
            return false;
        };
        match &self.place {
            Some(place) => place.met(remaining),
            None if claim.waits => self.place = Some(keeper.enter(claim, remaining)),
            None => return false,
        }
        true
    }

    /// Drops a subscription of which no push can be expected, and decides when to ask for one.
    fn check_subscription(&mut self, now: Instant) {
        if self.changes.as_ref().is_some_and(Changes::is_mute) {
            self.changes = None;
            self.subscribe_at = Some(now + RESUBSCRIBE);
        }
        match self.changes.as_ref().is_some_and(Changes::is_lost) {
            // The waiter that was to restore it may be gone; a new request restores it.
            true if self.subscribe_at.is_some_and(|at| at <= now) => self.changes = None,
            true => drop(self.subscribe_at.get_or_insert(now + RESUBSCRIBE)),
            false if self.changes.is_some() => self.subscribe_at = None,
            false => {}
        }
    }

    /// Subscribes. Returns what to do next, unless there is no subscription to be had.
    async fn subscribe(&mut self) -> Option<Woken> {
        let backend = self.janitor.backend().clone();
        let changes = match &self.subject {
            Subject::Claim(claim) => backend.changes_for(claim),
            Subject::Name(name) => backend.changes(name),
        };
        let subscribed = tokio::select! {
            changes = changes => changes,
            () = sleep_until(self.deadline) => return Some(Woken::TimeUp),
        };
        match subscribed {
            Ok(changes) => {
                self.changes = Some(changes);
                Some(Woken::Again)
            }
            Err(error) => {
                let name = self.name();
                tracing::debug!(?name, error = %Chain(&error), "no subscription; looking");
                self.subscribe_at = Some(Instant::now() + RESUBSCRIBE);
                None
            }
        }
    }

    /// Waits after a request that failed, until the shard can be expected to answer.
    async fn after_failure(&mut self) -> Woken {
        let Some(until) = self.until() else { return Woken::TimeUp };
        // The request may have left a queue entry.
        self.listen_since();
        let wake = until.min(self.deadline);
        let shard = self.janitor.turns(self.subject.name());
        let owner = self.subject.owner();
        tokio::select! {
            biased;
            change = pushed(self.changes.as_mut(), owner) => Woken::Pushed(change),
            () = shard.recovery.pause(&mut self.failures) => Woken::Again,
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
            self.until = Some(after(Instant::now(), wait));
        }
        self.until
    }
}

impl Subject {
    fn owner(&self) -> Option<Owner> {
        match self {
            Self::Claim(claim) => Some(claim.owner),
            Self::Name(_) => None,
        }
    }

    fn name(&self) -> &Name {
        match self {
            Self::Claim(claim) => &claim.name,
            Self::Name(name) => name,
        }
    }
}

/// Completes when the keeper of the queue entry wants the waiter to ask.
async fn kept(place: Option<&Place>) {
    match place {
        Some(place) => place.asks().await,
        None => std::future::pending().await,
    }
}

/// The next push for a waiter.
async fn pushed(changes: Option<&mut Changes>, owner: Option<Owner>) -> Change {
    let Some(changes) = changes else { return std::future::pending().await };
    loop {
        let change = changes.next().await;
        // An unread push may be for the owner that this waiter had before.
        if change.addressee().is_none_or(|addressee| Some(addressee) == owner) {
            return change;
        }
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

    /// Gives a subscription, or takes its time to refuse one.
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

    static ON_DEMAND: Retry = Retry::on_demand();

    fn waiting(pushes: Pushes) -> Result<(Waiting<'static>, Name), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let limit = Duration::from_secs(60);
        Ok((Waiting::on(&Janitor::new(Arc::new(pushes)), name.clone(), &ON_DEMAND, limit), name))
    }

    /// No push will come, so the waiter looks by itself: soon after the attempt to subscribe, which
    /// took its time, and then at intervals that grow.
    #[tokio::test(start_paused = true)]
    async fn without_a_subscription_looks_come_at_growing_intervals() -> Result<(), crate::Error> {
        let (mut waiting, _) = waiting(Pushes(None))?;
        let told = Instant::now();
        assert!(matches!(waiting.after(Some(5000 * MS)).await, Woken::Again));
        // A timer fires within the millisecond after its time.
        let took = told.elapsed();
        assert!(took >= 250 * MS && took <= 251 * MS + FIRST_LOOK, "{took:?}");
        let mut looks = 0;
        while told.elapsed() < 1200 * MS {
            let before = Instant::now();
            assert!(matches!(waiting.after(Some(5000 * MS)).await, Woken::Again));
            assert!(before.elapsed() <= LONGEST_LOOK + MS, "{:?}", before.elapsed());
            looks += 1;
        }
        assert!((9..30).contains(&looks), "{looks} looks in a second");
        // The end of a lease is still looked for in its time.
        let before = Instant::now();
        waiting.after(Some(MS)).await;
        assert!(before.elapsed() <= 250 * MS + JITTER + 2 * MS, "{:?}", before.elapsed());
        Ok(())
    }

    /// The connection for pushes broke, and is not restored at once. The waiter was woken by that,
    /// looked, and saw the lease held. No push tells it of a release now, so it looks by itself.
    #[tokio::test(start_paused = true)]
    async fn while_a_subscription_is_lost_the_looks_come_at_intervals() -> Result<(), crate::Error>
    {
        let channels = Channels::default();
        let (mut waiting, name) = waiting(Pushes(Some(channels.clone())))?;
        assert!(matches!(waiting.after(Some(5000 * MS)).await, Woken::Again), "it has subscribed");
        channels.answer(name.prefix(), Subscription::Confirmed);
        channels.forget_answers(|_| true);
        for _ in 0..8 {
            let before = Instant::now();
            assert!(matches!(waiting.after(Some(5000 * MS)).await, Woken::Again));
            assert!(before.elapsed() <= LONGEST_LOOK + MS, "{:?}", before.elapsed());
        }
        channels.answer(name.prefix(), Subscription::Confirmed);
        assert!(matches!(waiting.after(Some(5000 * MS)).await, Woken::Pushed(Change::Wake)));
        let before = Instant::now();
        assert!(matches!(waiting.after(Some(4000 * MS)).await, Woken::Again));
        assert!(before.elapsed() >= 4000 * MS, "{:?}", before.elapsed());
        Ok(())
    }
}
