//! Renews the held leases, and reports a loss to the holder.
//!
//! One task for each engine renews, while a lease is held and for a moment longer. So a caller that
//! locks and unlocks again and again does not start the task each time. Leases that fall due
//! together are renewed in chunks, of which a few are under way at each shard. A renewal that fails
//! is repeated while the lease can still be held: only a refusal or the deadline is a loss.
//!
//! With each new connection, all leases that are not fixed are renewed at once, because a new
//! master may lack some leases. So is a lease whose grant is read late, after a new connection.
//!
//! The invariant: `deadline` is a monotonic time taken *before* the request was sent, plus the
//! lease, less the drift. So the deadline passes here before the lease ends at the server.

use std::{
    collections::{BTreeMap, HashMap},
    mem::take,
    sync::{Arc, Mutex, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::{Handle, Id},
    sync::{Notify, Semaphore, watch},
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::{Acquisition, Lease, Upkeep, held::renewal_at, local_queue::Slot};
use crate::{
    advice,
    backend::{Claim, Leases, Owner, RENEWAL_BATCH, Renewal, in_time},
    error::{BackendError, Chain},
    meter::Meter,
    observe::{LockCounters, Rarely},
    shards::Shards,
    sync::lock,
};

/// The chunks that may be under way at one shard.
const CHUNKS: usize = 4;
/// How long the task stays when no lease is held any more.
const LINGER: Duration = Duration::from_millis(250);
/// How long after its question a grant is read late.
const READ_LATE: Duration = Duration::from_millis(20);
/// How many leases are checked under one lock of the schedule, for which other callers wait.
const MOST_CHECKED: usize = 2 * RENEWAL_BATCH;

/// The leases that are held through one engine.
pub(crate) struct Renewals {
    backend: Arc<dyn Leases>,
    pub(super) counters: Arc<LockCounters>,
    schedule: Mutex<Schedule>,
    /// The chunks under way at each shard. A shard that does not answer delays no other shard.
    chunks: Shards<OnceLock<Semaphore>>,
    /// Notified when the next check of the task becomes earlier.
    earlier: Notify,
    pub(crate) meter: Meter,
    /// How many guards have outlasted their fixed lease.
    outlasted: AtomicU32,
}

struct Schedule {
    /// The held leases, each at the time of its next check: a renewal, or its deadline.
    held: BTreeMap<(Instant, Owner), Arc<Lease>>,
    /// When the task checks next, or ends. `None` without a task.
    next_check: Option<Instant>,
    /// Changes with each new connection.
    connections: watch::Receiver<()>,
    /// When the last new connection was noticed.
    connected_at: Option<Instant>,
}

impl Renewals {
    pub(super) fn new(backend: Arc<dyn Leases>, counters: Arc<LockCounters>) -> Arc<Self> {
        let schedule = Schedule {
            held: BTreeMap::new(),
            next_check: None,
            connections: backend.new_connections(),
            connected_at: None,
        };
        Arc::new(Self {
            backend,
            counters,
            schedule: Mutex::new(schedule),
            chunks: Shards::default(),
            earlier: Notify::new(),
            meter: Meter::default(),
            outlasted: AtomicU32::new(0),
        })
    }

    /// Returns the number of leases that are held.
    pub(super) fn held(&self) -> usize {
        let schedule = lock(&self.schedule);
        schedule.held.values().filter(|lease| !lease.lost.initialized()).count()
    }

    /// Begins the hold of a granted lease and its renewals. `slot` is the slot of the local queue,
    /// if the mode has a local queue. Returns `None` if the acquisition was granted nothing.
    pub(super) fn hold(
        self: &Arc<Self>,
        acquisition: &mut Acquisition,
        upkeep: Upkeep,
        slot: Option<Slot>,
    ) -> Option<Arc<Lease>> {
        let lease = Lease::new(acquisition, upkeep, slot, self.counters.clone())?;
        let lease = Arc::new(lease);
        self.counters.acquired.add();
        let mut check = lease.first_check();
        let mut schedule = lock(&self.schedule);
        if schedule.may_lack(&lease) {
            check = Instant::now();
        }
        schedule.insert(check, lease.clone());
        match schedule.next_check {
            None => {
                drop(schedule);
                self.ensure_task();
            }
            Some(next) if check < next => self.earlier.notify_one(),
            Some(_) => {}
        }
        Some(lease)
    }

    /// Publishes how long a lease was held, and whether it was lost, at the end of its guard.
    pub(super) fn guard_ended(&self, lease: &Lease, is_lost: bool) {
        let result = if is_lost { "lost" } else { "held" };
        self.meter.ended("bellwether_lock_hold_seconds", lease.granted.since, result);
        if is_lost && lease.upkeep.renew_every.is_none() {
            advice::fixed_lease_ended(&self.outlasted, &lease.release.claim);
        }
    }

    /// Stops the renewals of a lease, which is about to end with an operation. A renewal that came
    /// after the operation would be taken for a loss.
    pub(super) fn close(&self, lease: &Lease) {
        let mut schedule = lock(&self.schedule);
        schedule.remove(lease);
        let ends = Instant::now() + LINGER;
        if schedule.held.is_empty() && schedule.next_check.is_some_and(|next| next > ends) {
            schedule.next_check = Some(ends);
            self.earlier.notify_one();
        }
    }

    /// Renews at once the leases that the backend may have ended. The answer shows which are lost.
    pub(crate) fn check(&self, which: impl Fn(&Claim) -> bool) {
        let mut schedule = lock(&self.schedule);
        let held = schedule.held.values();
        let found: Vec<_> = held.filter(|lease| which(&lease.release.claim)).cloned().collect();
        for lease in &found {
            schedule.remove(lease);
            lock(&lease.times).is_in_doubt = true;
            schedule.insert(Instant::now(), lease.clone());
        }
        if !found.is_empty() {
            self.earlier.notify_one();
        }
    }

    /// Returns whether a lease of this owner is held here. Calls are rare, so the method searches
    /// all leases.
    pub(super) fn has(&self, owner: Owner) -> bool {
        lock(&self.schedule).held.keys().any(|(_, holder)| *holder == owner)
    }

    /// Starts the renewal task in this runtime, unless a renewal task runs.
    fn ensure_task(self: &Arc<Self>) {
        let mut schedule = lock(&self.schedule);
        if schedule.next_check.is_none() {
            schedule.next_check = Some(Instant::now() + LINGER);
            drop(schedule);
            let runtime = Handle::current().id();
            let task = RenewalTask { renewals: self.clone(), runtime, has_ended: false };
            tokio::spawn(task.run());
        }
    }

    /// Returns the longest time for which a held lease has been held.
    #[cfg(feature = "metrics")]
    pub(super) fn longest_hold(&self) -> Duration {
        let schedule = lock(&self.schedule);
        let begins = schedule.held.values().map(|lease| lease.granted.since);
        begins.min().map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns when the task checks next. Returns `None` if the task ends.
    fn next_check(&self) -> Option<Instant> {
        let mut schedule = lock(&self.schedule);
        let first = schedule.held.first_key_value().map(|((at, _), _)| *at);
        let lingers_until = schedule.next_check.filter(|next| *next > Instant::now());
        schedule.next_check = first.or(lingers_until);
        schedule.next_check
    }

    /// Returns the leases to be renewed now, in chunks of one shard, and reports the losses. Leases
    /// that fall due within a tenth of the first lease's interval are renewed too, so that chunks
    /// form.
    fn due(&self) -> Vec<Vec<Arc<Lease>>> {
        let now = Instant::now();
        let mut shards = BTreeMap::<usize, Vec<Arc<Lease>>>::new();
        for lease in lock(&self.schedule).due(now) {
            let shard = self.backend.shard(&lease.release.claim.name);
            let due_there = shards.entry(shard).or_default();
            due_there.push(lease);
        }
        let mut chunks = Vec::new();
        for due in shards.values() {
            chunks.extend(due.chunks(RENEWAL_BATCH).map(<[_]>::to_vec));
        }
        chunks
    }

    /// Renews a chunk of leases, when few other chunks are under way at the shard.
    async fn renew(&self, chunk: Vec<Arc<Lease>>) {
        let Some(first) = chunk.first() else { return };
        let shard = self.chunks.of(self.backend.shard(&first.release.claim.name));
        let _permit = shard.get_or_init(|| Semaphore::new(CHUNKS)).acquire().await;
        // A lease that was lost meanwhile must not be renewed, because another caller may wait.
        let mut leases = Vec::with_capacity(chunk.len());
        let mut claims = Vec::with_capacity(chunk.len());
        for lease in chunk {
            if !lease.is_lost() {
                claims.push(lease.release.claim.clone());
                leases.push(lease);
            }
        }
        let Some(shortest) = claims.iter().map(|claim| claim.lease).min() else { return };
        let sent = Instant::now();
        // Half of the shortest lease leaves time for a second try.
        let answer = in_time(shortest / 2, self.backend.renew(&claims)).await;
        self.renewed(&leases, sent, &answer);
    }

    /// Notes the answer to a renewal that was sent at `sent`.
    fn renewed(
        &self,
        leases: &[Arc<Lease>],
        sent: Instant,
        answer: &Result<Vec<Renewal>, BackendError>,
    ) {
        static LOGGED: Rarely = Rarely::once_in(1);
        if let Err(error) = answer
            && LOGGED.first()
        {
            debug!(error = %Chain(error), leases = leases.len(), "renewal failed");
        }
        let mut schedule = lock(&self.schedule);
        for (at, lease) in leases.iter().enumerate() {
            let renewal = renewal_at(answer, at);
            let is_in_doubt = {
                let mut times = lock(&lease.times);
                times.is_renewing = false;
                let came_meanwhile = times.is_in_doubt;
                // Without an answer, a fixed lease is checked again for this reason only.
                times.is_in_doubt |= renewal == Renewal::Unknown;
                came_meanwhile
            };
            let Some(lease) = schedule.remove(lease) else { continue };
            if let Some(check) = lease.renewed(sent, renewal) {
                // The doubt came while this renewal was under way, so the backend may have ended
                // the lease after the renewal.
                let check = if is_in_doubt { Instant::now() } else { check };
                schedule.insert(check, lease);
            }
        }
    }
}

impl Schedule {
    /// Returns whether the server may lack a lease that begins to be held: the caller has read the
    /// grant late, and there has been a new connection since the question.
    fn may_lack(&mut self, lease: &Lease) -> bool {
        self.note_connection();
        let since = lease.granted.since;
        since.elapsed() > READ_LATE && self.connected_at.is_some_and(|at| at > since)
    }

    fn note_connection(&mut self) {
        if self.connections.has_changed().unwrap_or(false) {
            self.connections.mark_unchanged();
            self.connected_at = Some(Instant::now());
        }
    }

    /// Sets the next check of a held lease.
    fn insert(&mut self, at: Instant, lease: Arc<Lease>) {
        lock(&lease.times).timer = at;
        self.held.insert((at, lease.release.claim.owner), lease);
    }

    /// Takes a lease out of the schedule. Returns `None` if the lease was not held any more.
    fn remove(&mut self, lease: &Lease) -> Option<Arc<Lease>> {
        let timer = lock(&lease.times).timer;
        self.held.remove(&(timer, lease.release.claim.owner))
    }

    /// Returns the leases to be renewed now. Reports the loss of each lease whose deadline has
    /// passed.
    fn due(&mut self, now: Instant) -> Vec<Arc<Lease>> {
        let Some(((at, _), first)) = self.held.first_key_value() else { return Vec::new() };
        if *at > now {
            return Vec::new();
        }
        let until = now + first.upkeep.renew_every.unwrap_or_default() / 10;
        let past = self.held.iter().take_while(|((at, _), _)| *at <= until).take(MOST_CHECKED);
        let mut due: Vec<_> = past.map(|(_, lease)| lease.clone()).collect();
        due.retain(|lease| self.is_due(lease, now));
        due
    }

    /// Returns whether a lease is to be renewed now. Reports the loss of the lease if its deadline
    /// has passed.
    fn is_due(&mut self, lease: &Arc<Lease>, now: Instant) -> bool {
        self.remove(lease);
        if lease.is_lost() {
            lease.give_slot_up();
            return false;
        }
        let mut times = lock(&lease.times);
        let is_wanted = lease.is_renewable(now) || times.is_in_doubt;
        let renews = is_wanted && !times.is_renewing && !times.is_converting;
        if renews {
            times.is_renewing = true;
            times.is_in_doubt = false;
        }
        let deadline = times.deadline;
        let waits_for_conversion = is_wanted && times.is_converting;
        drop(times);
        let check = if waits_for_conversion { lease.next_try() } else { deadline };
        self.insert(check, lease.clone());
        renews
    }

    /// Makes all leases due. The next check passes over fixed leases, and over renewals that are
    /// under way.
    fn renew_all(&mut self) {
        let now = Instant::now();
        for lease in take(&mut self.held).into_values() {
            self.insert(now, lease);
        }
    }
}

/// The task that renews. If its runtime ends, another task goes on in the runtime of a held lease.
struct RenewalTask {
    renewals: Arc<Renewals>,
    runtime: Id,
    has_ended: bool,
}

impl RenewalTask {
    async fn run(mut self) {
        let renewals = self.renewals.clone();
        let mut connections = renewals.backend.new_connections();
        let mut under_way = FuturesUnordered::new();
        loop {
            for chunk in renewals.due() {
                under_way.push(renewals.renew(chunk));
            }
            let Some(next) = renewals.next_check() else {
                self.has_ended = true;
                return;
            };
            tokio::select! {
                Some(()) = under_way.next() => {}
                () = sleep_until(next) => {}
                () = renewals.earlier.notified() => {}
                Ok(()) = connections.changed() => {
                    #[cfg(bellwether_sim)]
                    if crate::sim::is_planted("slow-after-failover") {
                        continue;
                    }
                    let mut schedule = lock(&renewals.schedule);
                    schedule.note_connection();
                    schedule.renew_all();
                }
            }
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut schedule = lock(&self.renewals.schedule);
        schedule.next_check = None;
        for lease in schedule.held.values() {
            let mut times = lock(&lease.times);
            // The answer to a renewal that is under way is lost.
            times.is_in_doubt |= times.is_renewing;
            times.is_renewing = false;
        }
        schedule.renew_all();
        let mut runtimes = HashMap::new();
        for lease in schedule.held.values() {
            let runtime = &lease.release.runtime;
            if runtime.id() != self.runtime {
                runtimes.entry(runtime.id()).or_insert_with(|| runtime.clone());
            }
        }
        drop(schedule);
        // The first runtime that still runs starts the next task.
        for runtime in runtimes.into_values() {
            let renewals = self.renewals.clone();
            runtime.spawn(async move { renewals.ensure_task() });
        }
    }
}
