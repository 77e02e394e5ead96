//! Waiting for a lease that another holder has.
//!
//! **Register**, ask, then sleep until a push, the next wait of the strategy, or the end of the
//! wait. The registration comes first, so a release that falls behind the request is not missed. If
//! the subscription is confirmed later, that wakes the waiter, which asks again.
//!
//! A waiter with a queue entry is also woken by the [keeper](super::keeper) of its entry. Any other
//! one is woken by the end of the lease in the way, or after 5 s.
//!
//! While its subscription is not confirmed, the waiter looks at intervals: the server forbids it,
//! or its connection is broken. Such a waiter is late by a tenth of a second, and not by a lease.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep_until};

use super::{
    RetryStrategy,
    keeper::{Keeper, KeptPlace},
    release::Janitor,
};
use crate::{
    backend::{Change, Changes, Claim},
    time::{Pauses, after},
};

/// The longest time between looks without a subscription.
const UNHEARD_LOOK: Duration = Duration::from_millis(100);
/// The longest time without a look, whatever pushes and leases say.
const LONGEST_SLEEP: Duration = Duration::from_secs(5);
/// The shortest wait of a strategy. Without it, a waiter whose backend answers at once would never
/// let go of its thread.
const SHORTEST_WAIT: Duration = Duration::from_millis(1);
/// After the end of a lease, its waiters look at random times within this.
const JITTER: Duration = Duration::from_millis(90);

/// The wait of one caller. It costs nothing before the caller has to wait.
pub(crate) struct Waiting<'a> {
    strategy: &'a dyn RetryStrategy,
    janitor: Arc<Janitor>,
    claim: Claim,
    /// Its registration for pushes.
    changes: Option<Changes>,
    /// Keeps the queue entry of the claim, if it has one.
    pub(super) keeper: Option<Arc<Keeper>>,
    place: Option<KeptPlace>,
    /// The waits of the strategy, once one was needed.
    waits: Option<Box<dyn Iterator<Item = Duration> + Send>>,
    /// When the strategy's present wait ends.
    until: Option<Instant>,
    limit: Duration,
    pub(super) deadline: Instant,
    /// The pauses after requests that failed.
    pauses: Pauses,
    /// When the push came that has ended the last sleep, for the metrics.
    pub(crate) pushed_at: Option<Instant>,
}

/// The next step of a waiter.
pub(crate) enum Woken {
    /// It asks again.
    Again,
    /// It was told of a change, and asks again unless that settles the matter.
    Pushed(Change),
    /// Its wait is over.
    TimeUp,
}

impl<'a> Waiting<'a> {
    pub(crate) fn new(
        janitor: &Arc<Janitor>,
        claim: Claim,
        strategy: &'a dyn RetryStrategy,
        limit: Duration,
    ) -> Self {
        Self {
            strategy,
            janitor: janitor.clone(),
            claim,
            changes: None,
            keeper: None,
            place: None,
            waits: None,
            until: None,
            limit,
            deadline: after(Instant::now(), limit),
            pauses: Pauses::default(),
            pushed_at: None,
        }
    }

    /// Waits for another claim of the same name from now on.
    pub(crate) fn turn_to(&mut self, claim: &Claim) {
        self.place = None;
        self.changes = None;
        self.claim = claim.clone();
    }

    /// Registers the waiter. This comes before each request, so that no push is missed.
    pub(crate) fn listen(&mut self) -> &mut Changes {
        let (backend, claim) = (self.janitor.backend(), &self.claim);
        self.changes.get_or_insert_with(|| backend.listen(&claim.name, Some(claim)))
    }

    /// Hands its registration on.
    pub(crate) fn take_changes(&mut self) -> Option<Changes> {
        self.changes.take()
    }

    /// Returns the limit if it has ended the wait, and not the strategy.
    pub(crate) fn limit_reached(&self) -> Option<Duration> {
        (Instant::now() >= self.deadline).then_some(self.limit)
    }

    /// Returns how long it still waits at most.
    pub(crate) fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
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
        self.pushed_at = None;
        if remaining.is_some() && self.changes.is_none() {
            // What happened since the request was missed.
            self.listen();
            return Woken::Again;
        }
        let Some(until) = self.until() else { return Woken::TimeUp };
        let look = match remaining {
            Some(remaining) => self.next_look(remaining),
            // Until the shard can be expected to answer.
            None => after(Instant::now(), self.pauses.next()),
        };
        let wake = look.min(until).min(self.deadline);
        tokio::select! {
            biased;
            change = pushed(self.changes.as_mut()) => {
                self.pushed_at = self.changes.as_ref().and_then(Changes::last);
                Woken::Pushed(change)
            }
            () = kept(self.place.as_ref()) => Woken::Again,
            () = sleep_until(wake) => self.woken(wake),
        }
    }

    /// Returns when to look again at a lease that is held for another `remaining`, if nothing wakes
    /// the waiter. Has its queue entry kept, if the claim has one.
    fn next_look(&mut self, remaining: Duration) -> Instant {
        self.pauses = Pauses::default();
        let now = Instant::now();
        let look = match self.keeper.as_ref().filter(|_| self.claim.waits) {
            Some(keeper) => {
                if !self.place.as_ref().is_some_and(|place| place.met(remaining)) {
                    self.place = Some(keeper.enter(&self.claim, remaining));
                }
                self.deadline
            }
            None => {
                let jitter = JITTER.mul_f64(fastrand::f64());
                now + remaining.saturating_add(jitter).min(LONGEST_SLEEP)
            }
        };
        match self.listen().subscribe() {
            true => look,
            false => look.min(now + UNHEARD_LOOK.mul_f64(0.5 + fastrand::f64() / 2.0)),
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

/// Returns the next push, if the waiter is registered.
async fn pushed(changes: Option<&mut Changes>) -> Change {
    match changes {
        Some(changes) => changes.next().await,
        None => std::future::pending().await,
    }
}

/// Completes when the keeper of the queue entry wants the waiter to ask.
async fn kept(place: Option<&KeptPlace>) {
    match place {
        Some(place) => place.asks().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        MemoryBackend,
        backend::{Channels, Mode},
        key::{Family, Key, Name, Namespace},
        lease::Retry,
    };

    const MS: Duration = Duration::from_millis(1);

    static ON_DEMAND: Retry = Retry::on_demand();

    /// Returns a waiter with the subscriptions of a server.
    fn waiting(channels: &Channels) -> Result<(Waiting<'static>, Name), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let limit = Duration::from_secs(60);
        let janitor = Janitor::new(Arc::new(MemoryBackend::new()));
        let claim = Claim::new(name.clone(), Mode::Exclusive, limit, limit);
        let mut waiting = Waiting::new(&janitor, claim, &ON_DEMAND, limit);
        let channel = Some(name.prefix().clone());
        waiting.changes = Some(channels.register(name.prefix(), [channel, None], None));
        Ok((waiting, name))
    }

    /// No push will come, so the waiter looks by itself.
    #[tokio::test(start_paused = true)]
    async fn without_a_subscription_looks_come_at_intervals() -> Result<(), crate::Error> {
        let (mut waiting, _) = waiting(&Channels::default())?;
        for _ in 0..20 {
            let told = Instant::now();
            assert!(matches!(waiting.after(Some(5000 * MS)).await, Woken::Again));
            // A timer fires within the millisecond after its time.
            let took = told.elapsed();
            assert!(took >= UNHEARD_LOOK / 2 && took <= UNHEARD_LOOK + MS, "{took:?}");
        }
        Ok(())
    }

    /// The connection for pushes broke, and is not restored at once. The waiter was woken by that,
    /// looked, and saw the lease held. No push tells it of a release now, so it looks by itself.
    #[tokio::test(start_paused = true)]
    async fn while_a_subscription_is_lost_the_looks_come_at_intervals() -> Result<(), crate::Error>
    {
        let channels = Channels::default();
        let (mut waiting, _) = waiting(&channels)?;
        assert!(matches!(waiting.after(Some(5000 * MS)).await, Woken::Again));
        for lost in [false, true] {
            if lost {
                channels.lost(|_| true);
                let woken = waiting.after(Some(5000 * MS)).await;
                assert!(matches!(woken, Woken::Pushed(Change::Wake)));
            }
            for _ in 0..8 {
                let before = Instant::now();
                assert!(matches!(waiting.after(Some(5000 * MS)).await, Woken::Again));
                assert!(before.elapsed() <= UNHEARD_LOOK + MS, "{:?}", before.elapsed());
            }
            // It may have missed a push until now, and looks once more.
            channels.answer(|_| true, Ok(()));
            let woken = waiting.after(Some(5000 * MS)).await;
            assert!(matches!(woken, Woken::Pushed(Change::Wake)));
            let before = Instant::now();
            assert!(matches!(waiting.after(Some(4000 * MS)).await, Woken::Again));
            let took = before.elapsed();
            assert!(took >= 4000 * MS && took <= 4000 * MS + JITTER + MS, "{took:?}");
        }
        Ok(())
    }

    /// A caller that asked before it registered may have missed a push, and asks again.
    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_registers_late_asks_again() -> Result<(), crate::Error> {
        let (mut waiting, _) = waiting(&Channels::default())?;
        drop(waiting.take_changes());
        let told = Instant::now();
        assert!(matches!(waiting.after(Some(5000 * MS)).await, Woken::Again));
        assert!(told.elapsed() < MS, "{:?}", told.elapsed());
        Ok(())
    }
}
