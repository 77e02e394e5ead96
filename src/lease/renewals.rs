//! Renews the leases that are held, and tells their holders when they are lost.
//!
//! One task for each engine renews, while something is held and for a moment longer. So a caller
//! that locks and unlocks in turn does not start the task each time. Leases that fall due together
//! are renewed in chunks, of which a few are under way at each shard. A renewal that fails is tried
//! again while the lease can still be held: only a refusal or the deadline is a loss.
//!
//! With each new connection, all leases are renewed at once that are not fixed: a new master may
//! lack some of them.
//!
//! The invariant: `deadline` is a monotonic time taken *before* the request was sent, plus the
//! lease, less the drift. So it passes here before the lease ends on the server.

use std::{
    collections::{BTreeMap, HashMap},
    mem::take,
    sync::{Arc, Mutex, OnceLock, atomic::AtomicU32},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::{Handle, Id},
    sync::{Notify, Semaphore},
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::{Acquisition, Lease, Upkeep, local_queue::Slot};
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
/// How long the task stays when nothing is held any more.
const LINGER: Duration = Duration::from_millis(250);
/// How many leases one look takes at most, while other callers wait for the lock.
const LOOK: usize = 2 * RENEWAL_BATCH;

/// The leases that are held through one engine.
pub(crate) struct Renewals {
    backend: Arc<dyn Leases>,
    pub(super) counters: Arc<LockCounters>,
    schedule: Mutex<Schedule>,
    /// The chunks under way. A shard that does not answer costs the others nothing.
    chunks: Shards<OnceLock<Semaphore>>,
    /// Notified when the task must look earlier than it would.
    changed: Notify,
    pub(crate) meter: Meter,
    /// How many fixed leases ended before their guards.
    outlasted: AtomicU32,
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
        Arc::new(Self {
            backend,
            counters,
            schedule: Mutex::default(),
            chunks: Shards::default(),
            changed: Notify::new(),
            meter: Meter::default(),
            outlasted: AtomicU32::new(0),
        })
    }

    /// Returns the number of leases that are held.
    pub(super) fn held(&self) -> usize {
        let schedule = lock(&self.schedule);
        schedule.held.values().filter(|lease| !lease.lost.initialized()).count()
    }

    /// Holds the lease that an acquisition was granted, with the slot of the local queue if it has
    /// one, and begins to renew it. Returns `None` if the acquisition was granted nothing.
    pub(super) fn hold(
        self: &Arc<Self>,
        acquisition: &mut Acquisition,
        upkeep: Upkeep,
        slot: Option<Slot>,
    ) -> Option<Arc<Lease>> {
        let lease = Lease::new(acquisition, upkeep, slot, self.counters.clone())?;
        let lease = Arc::new(lease);
        self.counters.acquired.add();
        let look = lease.first_look();
        let mut schedule = lock(&self.schedule);
        schedule.look_at(look, lease.clone());
        match schedule.looks {
            None => {
                drop(schedule);
                self.ensure_task();
            }
            Some(by_itself) if look < by_itself => self.changed.notify_one(),
            Some(_) => {}
        }
        Some(lease)
    }

    /// Measures a lease whose guard ends.
    pub(super) fn guard_ended(&self, lease: &Lease) {
        let is_lost = lease.is_over();
        let result = if is_lost { "lost" } else { "held" };
        self.meter.ended("bellwether_lock_hold_seconds", lease.granted.since, result);
        if is_lost && lease.upkeep.renew_every.is_none() {
            advice::fixed_lease_ended(&self.outlasted, &lease.release.claim);
        }
    }

    /// Stops the renewals of a lease, which is about to end with an operation. A renewal that came
    /// after that would be taken for a loss.
    pub(super) fn close(&self, lease: &Lease) {
        let mut schedule = lock(&self.schedule);
        schedule.remove(lease);
        let ends = Instant::now() + LINGER;
        if schedule.held.is_empty() && schedule.looks.is_some_and(|by_itself| by_itself > ends) {
            schedule.looks = Some(ends);
            self.changed.notify_one();
        }
    }

    /// Renews leases at once that the backend may have ended, and so finds out.
    pub(crate) fn check(&self, which: impl Fn(&Claim) -> bool) {
        let mut schedule = lock(&self.schedule);
        let all = schedule.held.values();
        let found: Vec<_> = all.filter(|lease| which(&lease.release.claim)).cloned().collect();
        for lease in &found {
            schedule.remove(lease);
            lock(&lease.times).is_in_doubt = true;
            schedule.look_at(Instant::now(), lease.clone());
        }
        if !found.is_empty() {
            self.changed.notify_one();
        }
    }

    /// Returns whether a lease of this owner is held here. This is asked seldom, so all leases are
    /// looked through.
    pub(super) fn has(&self, owner: Owner) -> bool {
        lock(&self.schedule).held.keys().any(|(_, holder)| *holder == owner)
    }

    /// Starts the task in this runtime, unless it runs.
    fn ensure_task(self: &Arc<Self>) {
        let mut schedule = lock(&self.schedule);
        if schedule.looks.is_none() {
            schedule.looks = Some(Instant::now() + LINGER);
            drop(schedule);
            let runtime = Handle::current().id();
            let task = RenewalTask { renewals: self.clone(), runtime, has_ended: false };
            tokio::spawn(task.run());
        }
    }

    /// Returns how long the lease that is held for longest has been held.
    #[cfg(feature = "metrics")]
    pub(super) fn longest_hold(&self) -> Duration {
        let schedule = lock(&self.schedule);
        let since = schedule.held.values().map(|lease| lease.granted.since).min();
        since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Returns when the task looks next. Returns `None` if it ends.
    fn next_look(&self) -> Option<Instant> {
        let mut schedule = lock(&self.schedule);
        let first = schedule.held.first_key_value().map(|((at, _), _)| *at);
        let lingers = schedule.looks.filter(|looks| *looks > Instant::now());
        schedule.looks = first.or(lingers);
        schedule.looks
    }

    /// Returns the leases to be renewed now, in chunks of one shard, and tells the losses. Leases
    /// that fall due within a tenth of the first one's interval come along, so that chunks form.
    fn due(&self) -> Vec<Vec<Arc<Lease>>> {
        let now = Instant::now();
        let mut shards = BTreeMap::<usize, Vec<Arc<Lease>>>::new();
        for lease in lock(&self.schedule).due(now) {
            let shard = self.backend.shard(&lease.release.claim.name);
            shards.entry(shard).or_default().push(lease);
        }
        let mut chunks = Vec::new();
        for due in shards.values() {
            chunks.extend(due.chunks(RENEWAL_BATCH).map(<[_]>::to_vec));
        }
        chunks
    }

    /// Renews a chunk of leases when its shard has few others under way.
    async fn renew(&self, chunk: Vec<Arc<Lease>>) {
        let Some(first) = chunk.first() else { return };
        let shard = self.chunks.of(self.backend.shard(&first.release.claim.name));
        let _permit = shard.get_or_init(|| Semaphore::new(CHUNKS)).acquire().await;
        // A lease that was lost meanwhile is left to others.
        let chunk: Vec<_> = chunk.into_iter().filter(|lease| !lease.is_lost()).collect();
        if chunk.is_empty() {
            return;
        }
        let sent = Instant::now();
        let claims: Vec<_> = chunk.iter().map(|lease| lease.release.claim.clone()).collect();
        // It leaves time for a second try.
        let limit = claims.iter().map(|claim| claim.lease).min().unwrap_or_default() / 2;
        let answer = in_time(limit, self.backend.renew(&claims)).await;
        self.renewed(&chunk, sent, &answer);
    }

    /// Notes the answer to a renewal that was sent at `sent`.
    fn renewed(
        &self,
        leases: &[Arc<Lease>],
        sent: Instant,
        answer: &Result<Vec<Renewal>, BackendError>,
    ) {
        static SAID: Rarely = Rarely::once_in(1);
        if let Err(error) = answer
            && SAID.first()
        {
            debug!(error = %Chain(error), leases = leases.len(), "renewal failed");
        }
        let mut schedule = lock(&self.schedule);
        for (at, lease) in leases.iter().enumerate() {
            let is_in_doubt = {
                let mut times = lock(&lease.times);
                times.renewing = false;
                times.is_in_doubt
            };
            let Some(lease) = schedule.remove(lease) else { continue };
            // An answer with too few parts says of the rest that it is not held.
            let renewal = match answer {
                Ok(each) => each.get(at).copied().unwrap_or(Renewal::NotHeld),
                Err(_) => Renewal::Unknown,
            };
            if let Some(look) = lease.renewed(sent, renewal) {
                // The doubt came while this renewal was under way, and may be about what followed.
                let look = if is_in_doubt { Instant::now() } else { look };
                schedule.look_at(look, lease);
            }
        }
    }
}

impl Schedule {
    fn look_at(&mut self, at: Instant, lease: Arc<Lease>) {
        lock(&lease.times).timer = at;
        self.held.insert((at, lease.release.claim.owner), lease);
    }

    /// Takes a lease out, if it is still held.
    fn remove(&mut self, lease: &Lease) -> Option<Arc<Lease>> {
        let timer = lock(&lease.times).timer;
        self.held.remove(&(timer, lease.release.claim.owner))
    }

    /// Returns the leases to be renewed now. Tells the losses of those whose deadline has passed.
    fn due(&mut self, now: Instant) -> Vec<Arc<Lease>> {
        let Some(((at, _), first)) = self.held.first_key_value() else { return Vec::new() };
        if *at > now {
            return Vec::new();
        }
        let until = now + first.upkeep.renew_every.unwrap_or_default() / 10;
        let past = self.held.iter().take_while(|((at, _), _)| *at <= until).take(LOOK);
        let mut due: Vec<_> = past.map(|(_, lease)| lease.clone()).collect();
        due.retain(|lease| self.is_due(lease, now));
        due
    }

    /// Returns whether a lease is to be renewed now. Tells its loss if its deadline has passed.
    fn is_due(&mut self, lease: &Arc<Lease>, now: Instant) -> bool {
        self.remove(lease);
        if lease.is_lost() {
            lease.give_slot_up();
            return false;
        }
        let mut times = lock(&lease.times);
        let is_wanted = lease.is_renewable(now) || times.is_in_doubt;
        let renews = is_wanted && !times.renewing && !times.is_passing;
        times.renewing |= renews;
        times.is_in_doubt &= !renews;
        let deadline = times.deadline;
        drop(times);
        self.look_at(deadline, lease.clone());
        renews
    }

    /// Makes the renewals due that are not under way.
    fn renew_all(&mut self) {
        let now = Instant::now();
        for lease in take(&mut self.held).into_values() {
            self.look_at(now, lease);
        }
    }
}

/// The task that renews. If its runtime goes away, it goes on in the runtime of a held lease.
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
            let Some(next) = renewals.next_look() else {
                self.has_ended = true;
                return;
            };
            tokio::select! {
                Some(()) = under_way.next() => {}
                () = sleep_until(next) => {}
                () = renewals.changed.notified() => {}
                Ok(()) = connections.changed() => lock(&renewals.schedule).renew_all(),
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
        schedule.looks = None;
        for lease in schedule.held.values() {
            lock(&lease.times).renewing = false;
        }
        schedule.renew_all();
        let mut others = HashMap::new();
        for lease in schedule.held.values() {
            let runtime = &lease.release.runtime;
            if runtime.id() != self.runtime {
                others.entry(runtime.id()).or_insert_with(|| runtime.clone());
            }
        }
        drop(schedule);
        // The first that still runs starts the task.
        for runtime in others.into_values() {
            let renewals = self.renewals.clone();
            runtime.spawn(async move { renewals.ensure_task() });
        }
    }
}
