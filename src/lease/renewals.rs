//! Renews the leases that are held, and tells their holders when they are lost.
//!
//! One task for each engine does it, while something is held and for a moment longer, so that a
//! caller that locks and unlocks in turn does not start it each time. The task is woken for what it
//! would not see in time by itself. Renewals that fall due together are one batch. A renewal that
//! fails is tried again while the lease can still be held: only a refusal or the deadline is a
//! loss.
//!
//! The invariant: `deadline` is a monotonic time taken *before* the request was sent, plus the
//! lease, less the drift. So it passes here before the lease ends on the server.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use hashbrown::HashMap;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, warn};

use super::record::{Granted, LeaseRecord};
use crate::{
    backend::{ANSWER_LIMIT, DynLeases, Owner, Renewal},
    error::Chain,
};

/// How long the task stays when nothing is held any more.
const LINGER: Duration = Duration::from_millis(50);
/// After how long a lease that was handed over is renewed. Most holders of a contended lease have
/// released it by then.
const SOON: Duration = Duration::from_millis(100);

/// The renewals of one engine.
pub(super) struct Renewals(Arc<RenewalCore>);

struct RenewalCore {
    backend: Arc<dyn DynLeases>,
    schedule: Mutex<Schedule>,
    /// Notified when the task must look earlier than it would.
    changed: Notify,
}

#[derive(Default)]
struct Schedule {
    held: HashMap<Owner, Arc<LeaseRecord>>,
    /// When to look at a lease: to renew it, or because its deadline has come.
    timers: BTreeSet<(Instant, Owner)>,
    running: bool,
    /// When the task looks by itself; `None` if it is about to.
    looks: Option<Instant>,
    /// The task stays for a moment, with nothing to do.
    lingers: bool,
    /// A lease has come since the task looked last.
    came: bool,
}

impl Renewals {
    pub(super) fn new(backend: Arc<dyn DynLeases>) -> Self {
        let schedule = Mutex::default();
        Self(Arc::new(RenewalCore { backend, schedule, changed: Notify::new() }))
    }

    /// Begins to renew a lease that counts since `since`. A lease that was handed over is short,
    /// and is renewed soon.
    pub(super) fn start(&self, granted: Granted) -> Arc<LeaseRecord> {
        let (since, is_short) = (granted.since, granted.until.is_some());
        let record = LeaseRecord::new(granted);
        let look = record.next_look(since);
        let look = if is_short { look.min(since + SOON) } else { look };
        let record = Arc::new(record);
        let mut schedule = self.0.schedule();
        schedule.held.insert(record.claim().owner, record.clone());
        schedule.set_timer(&record, look);
        schedule.came = true;
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
        schedule.forget(record);
        // The task would sleep on for a lease that is gone.
        if schedule.held.is_empty() && schedule.looks.is_some() && !schedule.lingers {
            self.0.tell(schedule);
        }
    }
}

impl RenewalCore {
    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the task look now.
    fn tell(&self, mut schedule: MutexGuard<'_, Schedule>) {
        schedule.looks = None;
        drop(schedule);
        self.changed.notify_one();
    }

    /// Takes the leases that are due, and tells the losses among them.
    fn due(&self) -> Vec<Arc<LeaseRecord>> {
        let now = Instant::now();
        let mut schedule = self.schedule();
        // Leases that fall due within a tenth of the first one's interval come along, so that
        // batches form.
        let first = schedule.timers.first().and_then(|(_, owner)| schedule.held.get(owner));
        let slack = first.and_then(|record| record.upkeep().renew_every).unwrap_or_default() / 10;
        let any = schedule.timers.first().is_some_and(|(at, _)| *at <= now);
        let past: Vec<_> = schedule
            .timers
            .iter()
            .take_while(|(at, _)| any && *at <= now + slack)
            .filter_map(|(_, owner)| schedule.held.get(owner).cloned())
            .collect();
        let mut due = Vec::new();
        for record in past {
            if record.is_lost() {
                let name = &record.claim().name;
                warn!(?name, "lease lost: it could not be renewed in time");
                record.tell_lost();
                schedule.forget(&record);
                continue;
            }
            let mut times = record.times();
            let renew = !times.renewing && record.is_due(now);
            times.renewing |= renew;
            let deadline = times.deadline;
            drop(times);
            schedule.set_timer(&record, deadline);
            if renew {
                due.push(record);
            }
        }
        due
    }

    /// Makes a batch for each shard: a shard that does not answer costs the others nothing.
    fn by_shard(&self, due: Vec<Arc<LeaseRecord>>) -> impl Iterator<Item = Vec<Arc<LeaseRecord>>> {
        let mut shards: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for record in due {
            shards.entry(self.backend.shard(&record.claim().name)).or_default().push(record);
        }
        shards.into_values()
    }

    fn renewed(&self, batch: Batch) {
        let mut schedule = self.schedule();
        for (at, record) in batch.records.iter().enumerate() {
            record.times().renewing = false;
            if !schedule.held.contains_key(&record.claim().owner) {
                continue;
            }
            let answer = batch.answer.as_ref();
            // An answer with too few parts says of the rest that it is not held.
            match answer.map(|each| each.get(at).copied().unwrap_or(Renewal::NotHeld)) {
                Some(Renewal::Held) => {
                    record.renewed(batch.sent);
                    let look = record.next_look(batch.sent);
                    schedule.set_timer(record, look);
                }
                Some(Renewal::NotHeld) => {
                    let name = &record.claim().name;
                    warn!(?name, "lease lost: the server no longer has it");
                    record.tell_lost();
                    schedule.forget(record);
                }
                None | Some(Renewal::Unknown) => {
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

impl Schedule {
    /// Sets the one timer of a lease.
    fn set_timer(&mut self, record: &LeaseRecord, at: Instant) {
        let owner = record.claim().owner;
        let mut times = record.times();
        self.timers.remove(&(times.timer, owner));
        times.timer = at;
        self.timers.insert((at, owner));
    }

    /// When the task looks next, after a look at `now`. Returns `None` if it is to end.
    fn next_look(&mut self, now: Instant) -> Option<Instant> {
        let came = std::mem::take(&mut self.came);
        let lingered = std::mem::replace(&mut self.lingers, self.held.is_empty());
        self.looks = match self.timers.first() {
            Some((at, _)) => Some(*at),
            None if lingered && !came => None,
            None => Some(now + LINGER),
        };
        self.looks
    }

    fn forget(&mut self, record: &LeaseRecord) {
        let owner = record.claim().owner;
        self.held.remove(&owner);
        self.timers.remove(&(record.times().timer, owner));
    }
}

struct Batch {
    records: Vec<Arc<LeaseRecord>>,
    sent: Instant,
    answer: Option<Vec<Renewal>>,
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
        // Renewals that were under way are due at once.
        let renewing = |record: &&Arc<LeaseRecord>| std::mem::take(&mut record.times().renewing);
        let cut_off: Vec<_> = schedule.held.values().filter(renewing).cloned().collect();
        for record in cut_off {
            schedule.set_timer(&record, Instant::now());
        }
        drop(schedule);
        let mut tried = Vec::new();
        loop {
            let mut schedule = self.shared.schedule();
            let mut runtimes = schedule.held.values().map(|record| record.runtime());
            let other = runtimes.find(|runtime| !tried.contains(&runtime.id())).cloned();
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

async fn run(mut task: RenewalTask) {
    let shared = task.shared.clone();
    let mut renewals: FuturesUnordered<BoxFuture<'static, Batch>> = FuturesUnordered::new();
    loop {
        for due in shared.by_shard(shared.due()) {
            renewals.push(renew(shared.backend.clone(), due).boxed());
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
        tokio::select! {
            Some(batch) = renewals.next() => shared.renewed(batch),
            () = sleep_until(next) => {}
            () = shared.changed.notified() => {}
        }
    }
}

async fn renew(backend: Arc<dyn DynLeases>, records: Vec<Arc<LeaseRecord>>) -> Batch {
    let sent = Instant::now();
    let claims: Vec<_> = records.iter().map(|record| record.claim().clone()).collect();
    // A renewal may take as long as the shortest lease in the batch lasts. A backend that does not
    // bound its own operations must not use up a lease by one renewal.
    let shortest = records.iter().map(|record| record.deadline()).min().unwrap_or(sent) - sent;
    let limit = shortest.min(ANSWER_LIMIT);
    let answer = match timeout(limit, backend.renew(&claims)).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            debug!(error = %Chain(&error), leases = claims.len(), "renewal failed");
            None
        }
        Err(_) => None,
    };
    Batch { records, sent, answer }
}
