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
    borrow::Borrow,
    collections::{BTreeMap, HashMap},
    mem::take,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use tokio::{
    runtime::{Handle, Id},
    sync::{Notify, Semaphore, SetOnce},
    time::{Instant, sleep_until},
};
use tracing::{debug, warn};

use super::{Acquisition, Engine, Granted, Lease, LeaseGuard, Upkeep, queue::Slot, record::Times};
use crate::{
    backend::{Owner, RENEWAL_BATCH, Renewal, in_time},
    error::{BackendError, Chain},
    observe::Rarely,
    shards::Shards,
    sync::lock,
    time::after,
};

/// After how long a lease that was handed over is renewed. Most holders of a contended lease have
/// released it by then.
const SOON: Duration = Duration::from_millis(100);
/// The chunks that may be under way at one shard.
const CHUNKS: usize = 4;
/// How long the task stays when nothing is held any more.
const LINGER: Duration = Duration::from_millis(50);
/// How many leases one look takes at most, while other callers wait for the lock.
const LOOK: usize = 2 * RENEWAL_BATCH;

#[derive(Default)]
pub(super) struct Renewals {
    schedule: Mutex<Schedule>,
    /// The chunks under way. A shard that does not answer costs the others nothing.
    chunks: Shards<OnceLock<Semaphore>>,
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
    pub(super) fn held(&self) -> usize {
        lock(&self.schedule).held.len()
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
        let lingers = schedule.looks.filter(|looks| *looks > Instant::now());
        schedule.looks = schedule.held.first_key_value().map(|((at, _), _)| *at).or(lingers);
        schedule.looks
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

    /// Returns whether a lease is to be renewed now. Tells its loss if its deadline has passed.
    fn is_due(&mut self, lease: &Arc<Lease>, now: Instant) -> bool {
        self.remove(lease);
        if lease.is_lost() {
            warn!(name = ?lease.release.claim.name, "lease lost: it could not be renewed in time");
            lease.tell_lost();
            return false;
        }
        let (renews, deadline) = {
            let mut times = lock(&lease.times);
            let is_renewable = lease.granted.upkeep.renew_every.is_some() && now < lease.ends;
            let renews = is_renewable && !times.renewing;
            times.renewing |= renews;
            (renews, times.deadline)
        };
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

impl Lease {
    /// Stops the renewals. The lease is about to end with an operation, and a renewal that came
    /// after that would be taken for a loss.
    pub(crate) fn closing(&self) {
        let renewals = &self.engine.renewals;
        let mut schedule = lock(&renewals.schedule);
        schedule.remove(self);
        let ends = Instant::now() + LINGER;
        if schedule.held.is_empty() && schedule.looks.is_some_and(|by_itself| by_itself > ends) {
            schedule.looks = Some(ends);
            renewals.changed.notify_one();
        }
    }
}

impl Engine {
    /// Holds the lease that an acquisition was granted, with the slot of the local queue if it has
    /// one, and begins to renew it. A lease that was handed over is short, and is renewed soon.
    pub(crate) fn hold(
        self: &Arc<Self>,
        acquisition: &mut Acquisition,
        granted: Granted,
        slot: Option<Slot>,
    ) -> LeaseGuard {
        let Granted { upkeep: Upkeep { renew_every, max_hold }, since, until, .. } = granted;
        let ends = after(since, max_hold);
        // Until it is extended, it has no time of its own.
        let deadline = until.unwrap_or(since).min(ends);
        let times = Mutex::new(Times { deadline, timer: since, renewing: false });
        let slot = Mutex::new(slot.filter(|_| renew_every.is_some()));
        let (engine, release, lost) = (self.clone(), acquisition.settle(), SetOnce::new());
        let lease = Arc::new(Lease { engine, release, granted, ends, lost, times, slot });
        self.counters.acquired.add();
        let look = match until {
            None => lease.extend(since),
            Some(_) => deadline.min(since + renew_every.map_or(SOON, |every| every.min(SOON))),
        };
        let mut schedule = lock(&self.renewals.schedule);
        schedule.look_at(look, lease.clone());
        match schedule.looks {
            None => {
                drop(schedule);
                self.ensure_renewal_task();
            }
            Some(by_itself) if look < by_itself => self.renewals.changed.notify_one(),
            Some(_) => {}
        }
        LeaseGuard { record: lease, released: false }
    }

    /// Starts the task in this runtime, unless it runs.
    fn ensure_renewal_task(self: &Arc<Self>) {
        let mut schedule = lock(&self.renewals.schedule);
        if schedule.looks.is_none() {
            schedule.looks = Some(Instant::now());
            drop(schedule);
            let runtime = Handle::current().id();
            tokio::spawn(RenewalTask { engine: self.clone(), runtime, has_ended: false }.run());
        }
    }

    /// Returns the leases to be renewed now, in chunks of one shard, and tells the losses. Leases
    /// that fall due within a tenth of the first one's interval come along, so that chunks form.
    fn due(&self) -> Vec<Vec<Arc<Lease>>> {
        let (mut schedule, now) = (lock(&self.renewals.schedule), Instant::now());
        let first = schedule.held.first_key_value().filter(|((at, _), _)| *at <= now);
        let Some((_, first)) = first else { return Vec::new() };
        let until = now + first.granted.upkeep.renew_every.unwrap_or_default() / 10;
        let past = schedule.held.iter().take_while(|((at, _), _)| *at <= until).take(LOOK);
        let mut due: Vec<_> = past.map(|(_, lease)| lease.clone()).collect();
        due.retain(|lease| schedule.is_due(lease, now));
        drop(schedule);
        let mut shards = BTreeMap::<usize, Vec<_>>::new();
        for lease in due {
            shards.entry(self.backend.shard(&lease.release.claim.name)).or_default().push(lease);
        }
        shards.values().flat_map(|due| due.chunks(RENEWAL_BATCH)).map(<[_]>::to_vec).collect()
    }

    /// Renews a chunk of leases when its shard has few others under way.
    async fn renew(&self, chunk: Vec<Arc<Lease>>) {
        let Some(first) = chunk.first() else { return };
        let shard = self.renewals.chunks.of(self.backend.shard(&first.release.claim.name));
        let _permit = shard.get_or_init(|| Semaphore::new(CHUNKS)).acquire().await;
        let sent = Instant::now();
        let claims: Vec<_> = chunk.iter().map(|lease| lease.release.claim.clone()).collect();
        // It leaves time for a second try.
        let limit = claims.iter().map(|claim| claim.lease).min().unwrap_or_default() / 2;
        let answer = in_time(limit, self.backend.renew(&claims)).await;
        self.renewed(&chunk, sent, &answer);
    }

    /// Notes the answer to a renewal that was sent at `sent`.
    pub(super) fn renewed<L: Borrow<Lease>>(
        &self,
        leases: &[L],
        sent: Instant,
        answer: &Result<Vec<Renewal>, BackendError>,
    ) {
        static SAID: Rarely = Rarely::once_in(1);
        if let Err(error) = answer
            && SAID.first()
        {
            debug!(error = %Chain(error), leases = leases.len(), "renewal failed");
        }
        let mut schedule = lock(&self.renewals.schedule);
        for (at, lease) in leases.iter().enumerate() {
            lock(&lease.borrow().times).renewing = false;
            let Some(lease) = schedule.remove(lease.borrow()) else { continue };
            // An answer with too few parts says of the rest that it is not held.
            let renewal = match answer {
                Ok(each) => each.get(at).copied().unwrap_or(Renewal::NotHeld),
                Err(_) => Renewal::Unknown,
            };
            match renewal {
                Renewal::Held => {
                    self.counters.renewed.add();
                    schedule.look_at(lease.extend(sent), lease);
                }
                Renewal::NotHeld => {
                    let name = &lease.release.claim.name;
                    warn!(?name, "lease lost: the server no longer has it");
                    lease.tell_lost();
                }
                Renewal::Unknown => {
                    self.counters.unrenewed.add();
                    schedule.look_at(lease.next_try(), lease);
                }
            }
        }
    }
}

/// The task that renews. If its runtime goes away, it goes on in the runtime of a held lease.
struct RenewalTask {
    engine: Arc<Engine>,
    runtime: Id,
    has_ended: bool,
}

impl RenewalTask {
    async fn run(mut self) {
        let engine = self.engine.clone();
        let mut connections = engine.backend.new_connections();
        let mut renewals = FuturesUnordered::new();
        loop {
            renewals.extend(engine.due().into_iter().map(|chunk| engine.renew(chunk)));
            let Some(next) = engine.renewals.next_look() else {
                self.has_ended = true;
                return;
            };
            tokio::select! {
                Some(()) = renewals.next() => {}
                () = sleep_until(next) => {}
                () = engine.renewals.changed.notified() => {}
                Ok(()) = connections.changed() => lock(&engine.renewals.schedule).renew_all(),
            }
        }
    }
}

impl Drop for RenewalTask {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut schedule = lock(&self.engine.renewals.schedule);
        schedule.looks = None;
        schedule.held.values().for_each(|lease| lock(&lease.times).renewing = false);
        schedule.renew_all();
        let runtimes = schedule.held.values().map(|lease| lease.release.runtime.clone());
        let others: HashMap<_, _> = runtimes.map(|runtime| (runtime.id(), runtime)).collect();
        drop(schedule);
        // The first that still runs starts the task.
        for runtime in others.into_values().filter(|other| other.id() != self.runtime) {
            let engine = self.engine.clone();
            runtime.spawn(async move { engine.ensure_renewal_task() });
        }
    }
}
