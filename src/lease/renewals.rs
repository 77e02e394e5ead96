//! Renews the leases that are held, and tells their holders when they are lost.
//!
//! One task for each engine does it, while something is held and for a moment longer. So a caller
//! that locks and unlocks in turn does not start it each time. Leases that fall due together are
//! renewed in chunks, of which a few are under way at each shard. A renewal that fails is tried
//! again while the lease can still be held: only a refusal or the deadline is a loss.
//!
//! With each new connection, all leases are renewed at once: a new master may lack some of them.
//!
//! The invariant: `deadline` is a monotonic time taken *before* the request was sent, plus the
//! lease, less the drift. So it passes here before the lease ends on the server.

use std::{
    collections::{BTreeMap, HashMap},
    mem::take,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use super::{Granted, Lease, Release, ShardPermits, queue::Slot};
use crate::{
    backend::{Leases, Owner, RENEWAL_BATCH, Renewal, answer_limit, in_time},
    error::{BackendError, Chain},
    observe::{LockCounters, Rarely},
    shards::Shards,
    sync::lock,
};

/// After how long a lease that was handed over is renewed. Most holders of a contended lease have
/// released it by then.
const SOON: Duration = Duration::from_millis(100);
/// How long the task stays when nothing is held any more.
const LINGER: Duration = Duration::from_millis(50);
/// How many leases one look takes at most, while other callers wait for the lock.
const LOOK: usize = 2 * RENEWAL_BATCH;

pub(super) struct Renewals {
    backend: Arc<dyn Leases>,
    counters: Arc<LockCounters>,
    schedule: Mutex<Schedule>,
    /// The chunks that may be under way. A shard that does not answer costs the others nothing.
    chunks: Shards<ShardPermits<4>>,
    /// Notified when the task must look earlier than it would.
    changed: Notify,
}

#[derive(Default)]
struct Schedule {
    /// The leases that are held, each at its next look: to renew it, or at its deadline.
    held: BTreeMap<(Instant, Owner), Arc<Lease>>,
    /// When the task looks by itself; `None` without a task.
    looks: Option<Instant>,
}

impl Renewals {
    pub(super) fn new(backend: Arc<dyn Leases>, counters: Arc<LockCounters>) -> Arc<Self> {
        let (schedule, chunks, changed) = Default::default();
        Arc::new(Self { backend, counters, schedule, chunks, changed })
    }

    pub(super) fn held(&self) -> usize {
        lock(&self.schedule).held.len()
    }

    /// Begins to renew a lease that was granted. A lease that was handed over is short, and is
    /// renewed soon.
    pub(super) fn start(
        self: &Arc<Self>,
        release: Release,
        granted: Granted,
        slot: Option<Slot>,
    ) -> Arc<Lease> {
        let Granted { since, until, .. } = granted;
        let record = Arc::new(Lease::new(release, granted, slot, self.counters.clone()));
        self.counters.acquired.add();
        let look = record.next_look(since);
        let look = if until.is_some() { look.min(since + SOON) } else { look };
        let mut schedule = lock(&self.schedule);
        schedule.look_at(look, record.clone());
        match schedule.looks {
            None => {
                drop(schedule);
                self.ensure_task();
            }
            Some(by_itself) if look < by_itself => self.changed.notify_one(),
            Some(_) => {}
        }
        record
    }

    pub(super) fn forget(&self, record: &Lease) {
        let mut schedule = lock(&self.schedule);
        schedule.remove(record);
        let ends = Instant::now() + LINGER;
        if schedule.held.is_empty() && schedule.looks.is_some_and(|by_itself| by_itself > ends) {
            schedule.looks = Some(ends);
            self.changed.notify_one();
        }
    }
}

impl Schedule {
    fn look_at(&mut self, at: Instant, record: Arc<Lease>) {
        lock(&record.times).timer = at;
        self.held.insert((at, record.claim().owner), record);
    }

    /// Takes a lease out, if it is still held.
    fn remove(&mut self, record: &Lease) -> Option<Arc<Lease>> {
        let timer = lock(&record.times).timer;
        self.held.remove(&(timer, record.claim().owner))
    }

    /// Returns the leases to be renewed now, and tells the losses. Leases that fall due within a
    /// tenth of the first one's interval come along, so that chunks form.
    fn take_due(&mut self, now: Instant) -> Vec<Arc<Lease>> {
        let first = self.held.first_key_value().filter(|((at, _), _)| *at <= now);
        let Some((_, first)) = first else { return Vec::new() };
        let until = now + first.granted.upkeep.renew_every.unwrap_or_default() / 10;
        let past = self.held.iter().take_while(|((at, _), _)| *at <= until).take(LOOK);
        let past: Vec<_> = past.map(|(_, record)| record.clone()).collect();
        past.into_iter().filter(|record| self.is_due(record, now)).collect()
    }

    /// Returns whether a lease is to be renewed now. Tells its loss if its deadline has passed.
    fn is_due(&mut self, record: &Arc<Lease>, now: Instant) -> bool {
        self.remove(record);
        if record.is_lost() {
            warn!(name = ?record.claim().name, "lease lost: it could not be renewed in time");
            record.tell_lost();
            return false;
        }
        let (renews, deadline) = {
            let mut times = lock(&record.times);
            let is_renewable = record.granted.upkeep.renew_every.is_some() && now < record.ends;
            let renews = is_renewable && !times.renewing;
            times.renewing |= renews;
            (renews, times.deadline)
        };
        self.look_at(deadline, record.clone());
        renews
    }

    /// Makes the renewals due that are not under way.
    fn renew_all(&mut self) {
        let now = Instant::now();
        for record in take(&mut self.held).into_values() {
            self.look_at(now, record);
        }
    }
}

impl Renewals {
    /// Starts the task in this runtime, unless it runs.
    fn ensure_task(self: &Arc<Self>) {
        let mut schedule = lock(&self.schedule);
        if schedule.looks.is_none() {
            schedule.looks = Some(Instant::now());
            drop(schedule);
            let runtime = Handle::current().id();
            tokio::spawn(RenewalTask { shared: self.clone(), runtime, has_ended: false }.run());
        }
    }

    /// Returns the leases to be renewed now, in chunks of one shard.
    fn due(&self) -> Vec<Vec<Arc<Lease>>> {
        let mut shards = BTreeMap::<usize, Vec<_>>::new();
        for record in lock(&self.schedule).take_due(Instant::now()) {
            shards.entry(self.backend.shard(&record.claim().name)).or_default().push(record);
        }
        shards.values().flat_map(|due| due.chunks(RENEWAL_BATCH)).map(<[_]>::to_vec).collect()
    }

    /// Renews a chunk of leases when its shard has few others under way.
    async fn renew(self: Arc<Self>, chunk: Vec<Arc<Lease>>) {
        let Some(first) = chunk.first() else { return };
        let shard = self.chunks.of(self.backend.shard(&first.claim().name));
        let _permit = shard.0.acquire().await;
        let sent = Instant::now();
        let claims: Vec<_> = chunk.iter().map(|record| record.claim().clone()).collect();
        let leases = claims.iter().map(|claim| claim.lease);
        // It leaves time for a second try.
        let limit = answer_limit(self.backend.as_ref());
        let limit = limit.min(leases.min().unwrap_or_default() / 2);
        let answer = in_time(limit, self.backend.renew(&claims)).await;
        self.answered(&chunk, sent, answer);
    }

    fn answered(
        &self,
        chunk: &[Arc<Lease>],
        sent: Instant,
        answer: Result<Vec<Renewal>, BackendError>,
    ) {
        static SAID: Rarely = Rarely::once_in(1);
        if let Err(error) = &answer
            && SAID.first()
        {
            debug!(error = %Chain(error), leases = chunk.len(), "renewal failed");
        }
        let mut schedule = lock(&self.schedule);
        for (at, record) in chunk.iter().enumerate() {
            lock(&record.times).renewing = false;
            let Some(record) = schedule.remove(record) else { continue };
            // An answer with too few parts says of the rest that it is not held.
            let renewal = match &answer {
                Ok(each) => each.get(at).copied().unwrap_or(Renewal::NotHeld),
                Err(_) => Renewal::Unknown,
            };
            match renewal {
                Renewal::Held => {
                    self.counters.renewed.add();
                    record.renewed(sent);
                    schedule.look_at(record.next_look(sent), record);
                }
                Renewal::NotHeld => {
                    warn!(name = ?record.claim().name, "lease lost: the server no longer has it");
                    record.tell_lost();
                }
                Renewal::Unknown => {
                    self.counters.unrenewed.add();
                    schedule.look_at(record.next_try(), record);
                }
            }
        }
    }

    /// Returns when the task looks next. Returns `None` if it ends.
    fn next_look(&self) -> Option<Instant> {
        let mut schedule = lock(&self.schedule);
        let lingers = schedule.looks.filter(|looks| *looks > Instant::now());
        schedule.looks = schedule.held.first_key_value().map(|((at, _), _)| *at).or(lingers);
        schedule.looks
    }
}

/// The task that renews. If its runtime goes away, it goes on in the runtime of a held lease.
struct RenewalTask {
    shared: Arc<Renewals>,
    runtime: Id,
    has_ended: bool,
}

impl RenewalTask {
    async fn run(mut self) {
        let shared = self.shared.clone();
        let mut connections = shared.backend.new_connections();
        let mut renewals = FuturesUnordered::<BoxFuture<'static, ()>>::new();
        loop {
            renewals.extend(shared.due().into_iter().map(|it| shared.clone().renew(it).boxed()));
            let Some(next) = shared.next_look() else {
                self.has_ended = true;
                return;
            };
            tokio::select! {
                Some(()) = renewals.next() => {}
                () = sleep_until(next) => {}
                () = shared.changed.notified() => {}
                Ok(()) = connections.changed() => lock(&shared.schedule).renew_all(),
            }
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut schedule = lock(&self.shared.schedule);
        schedule.looks = None;
        schedule.held.values().for_each(|record| lock(&record.times).renewing = false);
        schedule.renew_all();
        let runtimes = schedule.held.values().map(|record| record.release.runtime.clone());
        let others: HashMap<_, _> = runtimes.map(|runtime| (runtime.id(), runtime)).collect();
        drop(schedule);
        // The first that still runs starts the task.
        for runtime in others.into_values().filter(|other| other.id() != self.runtime) {
            let shared = self.shared.clone();
            runtime.spawn(async move { shared.ensure_task() });
        }
    }
}
