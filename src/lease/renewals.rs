//! Renews the leases that are held, and tells their holders when they are lost.
//!
//! One task for each engine does it, while something is held and for a moment longer. So a caller
//! that locks and unlocks in turn does not start it each time. The task is woken for what it would
//! not see in time by itself. Renewals that fall due together go out in [batches](batches). A
//! renewal that fails is tried again while the lease can still be held: only a refusal or the
//! deadline is a loss.
//!
//! With each new connection, all leases are renewed at once. The server behind it may be a new
//! master without some of them, whose holders must learn of that.
//!
//! The invariant: `deadline` is a monotonic time taken *before* the request was sent, plus the
//! lease, less the drift. So it passes here before the lease ends on the server.

mod batches;
mod schedule;

use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{Notify, watch},
    task::yield_now,
    time::{Instant, sleep_until},
};
use tracing::warn;

use self::{
    batches::{BatchAnswer, Batches, RenewalBatch},
    schedule::RenewalSchedule,
};
use super::record::{Granted, LeaseRecord};
use crate::{
    backend::{DynLeases, Renewal},
    observe::LockCounters,
    sync::lock,
};

/// After how long a lease that was handed over is renewed. Most holders of a contended lease have
/// released it by then.
const SOON: Duration = Duration::from_millis(100);

/// The renewals of one engine.
pub(super) struct Renewals(Arc<RenewalCore>);

struct RenewalCore {
    backend: Arc<dyn DynLeases>,
    counters: Arc<LockCounters>,
    schedule: Mutex<RenewalSchedule>,
    /// Notified when the task must look earlier than it would.
    changed: Notify,
}

impl Renewals {
    pub(super) fn new(backend: Arc<dyn DynLeases>, counters: Arc<LockCounters>) -> Self {
        let (schedule, changed) = (Mutex::default(), Notify::new());
        Self(Arc::new(RenewalCore { backend, counters, schedule, changed }))
    }

    /// Returns how many leases are held.
    pub(super) fn held(&self) -> usize {
        self.0.schedule().held()
    }

    /// Begins to renew a lease that counts since `since`. A lease that was handed over is short,
    /// and is renewed soon.
    pub(super) fn start(&self, granted: Granted) -> Arc<LeaseRecord> {
        let (since, is_short) = (granted.since, granted.until.is_some());
        let record = LeaseRecord::new(granted, self.0.counters.clone());
        self.0.counters.acquired.add();
        let look = record.next_look(since);
        let look = if is_short { look.min(since + SOON) } else { look };
        let record = Arc::new(record);
        let mut schedule = self.0.schedule();
        schedule.hold(&record, look);
        if !schedule.running {
            schedule.running = true;
            drop(schedule);
            tokio::spawn(run(RenewalTask::new(&self.0)));
        } else if schedule.looks.is_some_and(|by_itself| look < by_itself) {
            self.0.tell(schedule);
        }
        record
    }

    /// Renews a lease no more.
    pub(super) fn forget(&self, record: &LeaseRecord) {
        let mut schedule = self.0.schedule();
        if schedule.forget(record) {
            self.0.tell(schedule);
        }
    }
}

impl RenewalCore {
    fn schedule(&self) -> MutexGuard<'_, RenewalSchedule> {
        lock(&self.schedule)
    }

    /// Makes the task look now.
    fn tell(&self, mut schedule: MutexGuard<'_, RenewalSchedule>) {
        schedule.looks = None;
        drop(schedule);
        self.changed.notify_one();
    }

    /// Moves leases that are due to the batches. Returns whether more of them are due.
    fn collect(&self, batches: &mut Batches) -> bool {
        let due = self.schedule().take_due(Instant::now());
        for record in due.renewals {
            batches.add(self.backend.shard(&record.claim().name), record);
        }
        due.is_more
    }

    /// Notes the answers to a batch.
    fn renewed(&self, batch: &RenewalBatch, answered: &BatchAnswer) {
        let mut schedule = self.schedule();
        for (at, record) in batch.records.iter().enumerate() {
            record.times().renewing = false;
            if !schedule.holds(record) {
                continue;
            }
            match answered.of(at) {
                Renewal::Held => {
                    self.counters.renewed.add();
                    record.renewed(answered.sent);
                    schedule.renew_after(record, answered.sent);
                }
                Renewal::NotHeld => {
                    let name = &record.claim().name;
                    warn!(?name, "lease lost: the server no longer has it");
                    record.tell_lost();
                    schedule.forget(record);
                }
                Renewal::Unknown => {
                    self.counters.unrenewed.add();
                    let (now, deadline) = (Instant::now(), record.deadline());
                    // A lease that was handed over has less than its full time left.
                    let pause = (record.claim().lease / 20).min((deadline - now) / 8);
                    let look = deadline.min(now + pause.max(Duration::from_millis(10)));
                    schedule.set_timer(record, look);
                }
            }
        }
    }
}

/// The task that renews. If its runtime goes away, it goes on in that of a lease that is held.
struct RenewalTask {
    shared: Arc<RenewalCore>,
    ended: bool,
    /// The task is being spawned.
    spawning: Arc<AtomicBool>,
}

impl RenewalTask {
    fn new(shared: &Arc<RenewalCore>) -> Self {
        Self { shared: shared.clone(), ended: false, spawning: Arc::default() }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut schedule = self.shared.schedule();
        schedule.running = false;
        if self.spawning.load(Ordering::SeqCst) {
            return;
        }
        schedule.renew_again();
        drop(schedule);
        let mut tried = Vec::new();
        loop {
            let mut schedule = self.shared.schedule();
            let other = schedule.runtime_but(&tried);
            let Some(runtime) = other.filter(|_| !schedule.running) else { return };
            schedule.running = true;
            drop(schedule);
            tried.push(runtime.id());
            let next = Self::new(&self.shared);
            let spawning = next.spawning.clone();
            spawning.store(true, Ordering::SeqCst);
            // A runtime that is gone, as this one is, drops the task at once.
            runtime.spawn(run(next));
            spawning.store(false, Ordering::SeqCst);
        }
    }
}

/// Completes when there is a new connection.
async fn changed(connections: &mut Option<watch::Receiver<()>>) {
    if let Some(connections) = connections
        && connections.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

async fn run(mut task: RenewalTask) {
    let shared = task.shared.clone();
    let mut batches = Batches::default();
    let mut connections = shared.backend.new_connections();
    let mut renewals: FuturesUnordered<BoxFuture<'static, (RenewalBatch, BatchAnswer)>> =
        FuturesUnordered::new();
    loop {
        let is_more = shared.collect(&mut batches);
        while let Some(batch) = batches.next(|record| shared.schedule().holds(record)) {
            renewals.push(batch.renew(shared.backend.clone()).boxed());
        }
        let next = {
            let mut schedule = shared.schedule();
            let Some(next) = schedule.next_look(Instant::now()) else {
                // Set under the lock, so that a lease that comes now starts a new task.
                schedule.running = false;
                task.ended = true;
                return;
            };
            next
        };
        let rest = async {
            match is_more {
                true => yield_now().await,
                false => sleep_until(next).await,
            }
        };
        tokio::select! {
            Some((batch, answered)) = renewals.next() => {
                batches.ended(&batch);
                shared.renewed(&batch, &answered);
            }
            () = rest => {}
            () = shared.changed.notified() => {}
            () = changed(&mut connections) => shared.schedule().renew_all(),
        }
    }
}
