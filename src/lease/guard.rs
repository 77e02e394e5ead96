//! A lease that is held: its record, which the renewals share, and its guard.

use std::{
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep_until, timeout},
};

use super::{
    Acquisition, Engine, Upkeep,
    queue::{QueuedCaller, Slot, SlotNotice},
    release::Release,
    trusted,
};
use crate::{
    advice,
    backend::{ANSWER_LIMIT, Claim, Marked, Mode, Owner, Renewal, Tick},
    error::{BackendError, BackendErrorKind, Error},
    observe::LockCounters,
    signal::Signal,
    sync::lock,
    time::after,
};

/// One held lease, as its guard and the renewals share it.
pub(crate) struct LeaseRecord {
    pub(super) granted: Granted,
    /// When the total hold ends.
    ends: Instant,
    lost: Signal,
    counters: Arc<LockCounters>,
    times: Mutex<Times>,
    /// The holder's slot in the local queue. It is given up when the lease is lost, so that a
    /// holder that is stuck does not keep the next callers from contending. A holder whose lease is
    /// not renewed would never be told of a loss, and has no slot.
    slot: Mutex<Option<Slot>>,
}

#[derive(Clone, Copy)]
pub(super) struct Times {
    /// When the lease counts as lost unless it is renewed before.
    pub(super) deadline: Instant,
    /// The timer that the renewals have set for it.
    pub(super) timer: Instant,
    pub(super) renewing: bool,
}

/// A grant: its fence, and since when the lease counts.
pub(crate) struct Granted {
    pub(super) claim: Claim,
    pub(super) upkeep: Upkeep,
    /// The runtime on which the lease was acquired.
    pub(super) runtime: Handle,
    pub(super) fence: u64,
    /// A time before the request that was granted.
    pub(super) since: Instant,
    /// When the lease ends, if a holder handed it over for less than its full time.
    pub(super) until: Option<Instant>,
    /// A request of the acquisition had no answer, and may be granted after the release.
    pub(super) outcome_unknown: bool,
}

impl LeaseRecord {
    pub(super) fn new(granted: Granted, slot: Option<Slot>, counters: Arc<LockCounters>) -> Self {
        let Granted { upkeep, since, until, .. } = granted;
        let ends = after(since, upkeep.max_hold);
        let deadline = until.unwrap_or_else(|| after(since, trusted(granted.claim.lease)));
        let times = Times { deadline: deadline.min(ends), timer: since, renewing: false };
        let slot = slot.filter(|_| upkeep.renew_every.is_some());
        let (times, slot) = (Mutex::new(times), Mutex::new(slot));
        Self { granted, ends, lost: Signal::default(), counters, times, slot }
    }

    /// Completes when the lease is lost, also if no renewal finds that out.
    pub(crate) async fn lost(&self) {
        loop {
            let deadline = self.deadline();
            tokio::select! {
                () = self.lost.given() => return,
                () = sleep_until(deadline) => if self.is_lost() { return },
            }
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.is_given() || self.deadline() <= Instant::now()
    }

    pub(crate) fn claim(&self) -> &Claim {
        &self.granted.claim
    }

    pub(crate) fn fence(&self) -> u64 {
        self.granted.fence
    }

    /// How long the lease is held for certain if no renewal succeeds.
    pub(crate) fn remaining(&self) -> Duration {
        match self.is_lost() {
            true => Duration::ZERO,
            false => self.deadline().saturating_duration_since(Instant::now()),
        }
    }

    pub(super) fn tell_lost(&self) {
        if self.lost.give() {
            self.counters.lost.add();
        }
        drop(self.take_slot());
    }

    /// Tells the work that still runs under the lease that it ends without a loss.
    pub(super) fn end(&self) {
        self.lost.give();
    }

    pub(super) fn take_slot(&self) -> Option<Slot> {
        lock(&self.slot).take()
    }

    pub(super) fn deadline(&self) -> Instant {
        self.times().deadline
    }

    /// Extends the lease, which a request sent at `sent` renewed.
    pub(super) fn renewed(&self, sent: Instant) {
        let deadline = after(sent, trusted(self.granted.claim.lease)).min(self.ends);
        let mut times = self.times();
        times.deadline = times.deadline.max(deadline);
    }

    pub(super) fn times(&self) -> MutexGuard<'_, Times> {
        lock(&self.times)
    }

    /// Returns whether the lease is to be renewed at `now`.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.granted.upkeep.renew_every.is_some() && now < self.ends
    }

    /// When to look at the lease next, after a renewal that began at `sent`.
    pub(super) fn next_look(&self, sent: Instant) -> Instant {
        let deadline = self.deadline();
        match self.granted.upkeep.renew_every {
            Some(every) if after(sent, every) < self.ends => deadline.min(after(sent, every)),
            _ => deadline,
        }
    }
}

impl fmt::Debug for LeaseRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseRecord")
            .field("name", &self.granted.claim.name.key())
            .field("fence", &self.granted.fence)
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Holds a lease that was granted.
    pub(crate) fn hold(self: &Arc<Self>, granted: Granted) -> LeaseGuard {
        LeaseGuard::new(self.clone(), self.renewals.start(granted, None))
    }
}

/// A lease that is held. Dropped, it is released in a task.
pub(crate) struct LeaseGuard {
    engine: Arc<Engine>,
    record: Arc<LeaseRecord>,
    released: bool,
}

impl LeaseGuard {
    pub(super) fn new(engine: Arc<Engine>, record: Arc<LeaseRecord>) -> Self {
        Self { engine, record, released: false }
    }

    /// Returns the shared record of the lease.
    pub(crate) fn record(&self) -> &Arc<LeaseRecord> {
        &self.record
    }

    /// Returns the error of a call that finds the lease lost.
    pub(crate) fn lost_error(&self) -> Error {
        Error::lost(&self.claim().name.key())
    }

    /// Sets the mark of the name to a tick, if the lease is held.
    pub(crate) async fn mark(&self, tick: Tick) -> Result<Marked, Error> {
        self.engine.mark(self.claim(), tick).await
    }

    /// Renews the lease now.
    pub(crate) async fn renew(&self) -> Result<(), Error> {
        if self.is_lost() {
            return Err(self.lost_error());
        }
        let sent = Instant::now();
        let claims = std::slice::from_ref(self.claim());
        match timeout(self.remaining(), self.engine.backend().renew(claims)).await {
            Ok(Ok(held)) if held.first() == Some(&Renewal::Held) => {
                self.record.renewed(sent);
                Ok(())
            }
            Ok(Ok(_)) => {
                self.record.tell_lost();
                Err(self.lost_error())
            }
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(self.lost_error()),
        }
    }

    /// Releases the lease, and returns [`Lost`](ErrorKind::Lost) if it was lost before.
    ///
    /// Dropping the future does not stop the release.
    pub(crate) async fn release(mut self) -> Result<(), Error> {
        let lost = self.is_lost();
        let given_back = self.give_back();
        // A reported loss stays a loss, even if the server still has the lease.
        let released = self.engine.janitor.finish(given_back).await;
        if lost { Err(self.lost_error()) } else { released }
    }

    /// Stops the renewals without a release, and returns the owner.
    pub(crate) fn detach(mut self) -> Owner {
        self.closing();
        self.released = true;
        self.claim().owner
    }

    /// Stops the renewals. The lease is about to end with the operation that it was for, and a
    /// renewal that came after that would be taken for a loss.
    pub(crate) fn closing(&self) {
        self.engine.renewals.forget(&self.record);
    }

    /// Disarms the guard: the backend has ended the lease with the operation that it was for.
    pub(crate) fn settled(mut self) {
        self.end();
        if self.record.granted.outcome_unknown {
            self.obligation().settle_late();
        }
    }

    /// Passes the lease on to another mode in one step. Returns the guard unchanged if other
    /// holders are in the way.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, both leases are released in tasks.
    pub(crate) async fn pass_to(
        self,
        mode: Mode,
        limit: Duration,
    ) -> Result<Result<Self, Self>, Error> {
        let from = self.claim();
        let to = Claim { owner: Owner::fresh(), mode, ..from.clone() };
        let mut acquisition = Acquisition::new(self.engine.janitor.clone(), to);
        // The first try may have begun the lease, and the second one only tells of it.
        let (mut tries, begun) = (0, Instant::now());
        let passed = loop {
            tries += 1;
            match acquisition.ask(limit, |backend, to| backend.pass(from, to)).await {
                Ok((grant, _)) => break grant.map(|grant| grant.fence()),
                // It may have happened: the same owner asks once more.
                Err(error) if error.kind() == BackendErrorKind::Unknown && tries < 2 => {}
                Err(error) => return Err(error.into()),
            }
        };
        if let Some(fence) = passed {
            let granted = acquisition.settle(self.record.granted.upkeep, fence, begun, None);
            let passed_on = self.engine.hold(granted);
            self.settled();
            return Ok(Ok(passed_on));
        }
        // Other holders are in the way, or the lease is lost. A renewal finds out which.
        self.renew().await.map(|()| Err(self))
    }

    fn obligation(&self) -> Release {
        let (janitor, claim) = (self.engine.janitor.clone(), self.claim().clone());
        let runtime = self.record.granted.runtime.clone();
        Release::new(janitor, claim, self.record.granted.outcome_unknown, runtime)
    }

    fn end(&mut self) {
        self.closing();
        self.released = true;
        let result = if self.record.is_lost() { "lost" } else { "held" };
        self.engine.meter.ended("bellwether_lock_hold_seconds", self.record.granted.since, result);
        let is_fixed = self.record.granted.upkeep.renew_every.is_none();
        if is_fixed && self.record.is_lost() {
            advice::fixed_lease_ended(&self.engine.outlasted, self.claim());
        }
    }

    fn give_back(&mut self) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        self.end();
        // Work under the lease learns that it ends, before another holder has it.
        self.record.end();
        give_back(self.engine.clone(), self.obligation(), self.record.take_slot())
    }
}

impl Deref for LeaseGuard {
    type Target = LeaseRecord;

    fn deref(&self) -> &LeaseRecord {
        &self.record
    }
}

impl fmt::Debug for LeaseGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.record.fmt(f)
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        if !self.released {
            let given_back = self.give_back();
            self.engine.janitor.spawn_on(given_back, &self.record.granted.runtime);
        }
    }
}

/// Gives a lease back: to the next caller of this process, or to the backend.
async fn give_back(
    engine: Arc<Engine>,
    release: Release,
    mut slot: Option<Slot>,
) -> Result<(), Error> {
    let next = slot.as_mut().and_then(Slot::next);
    let answer = match (next, slot) {
        (Some(next), Some(slot)) => Box::pin(pass(&engine, release.claim(), next, slot)).await,
        (_, slot) => {
            let answer = release.once().await;
            // The next caller contends from here on, since other processes were told first.
            drop(slot);
            answer
        }
    };
    release.ended(answer)
}

/// Passes a lease to the next caller of this process, and the slot with it. Returns whether the
/// lease was held.
///
/// Until the caller has the lease, its acquisition owes the release.
async fn pass(
    engine: &Arc<Engine>,
    from: &Claim,
    next: QueuedCaller,
    slot: Slot,
) -> Result<bool, BackendError> {
    let QueuedCaller { mut acquisition, upkeep, notify } = next;
    let limit = engine.backend().time_limit().unwrap_or_default().max(ANSWER_LIMIT);
    let answer = acquisition.ask(limit, |backend, to| backend.pass(from, to)).await;
    let (notice, was_held) = match answer {
        Ok((Some(grant), sent)) => {
            let granted = acquisition.settle(upkeep, grant.fence(), sent, None);
            let record = engine.renewals.start(granted, Some(slot));
            (SlotNotice::Passed(LeaseGuard::new(engine.clone(), record)), Ok(true))
        }
        Ok((None, _)) => (SlotNotice::Contend(acquisition, slot), Ok(false)),
        Err(error) => {
            acquisition.restart();
            // Where too few replicas confirmed it, it was given away all the same.
            let is_away = error.kind() == BackendErrorKind::Unreplicated;
            let was_held = if is_away { Ok(true) } else { Err(error) };
            (SlotNotice::Contend(acquisition, slot), was_held)
        }
    };
    // If the caller has left, the drop releases the lease, or gives up the slot.
    drop(notify.send(notice));
    was_held
}
