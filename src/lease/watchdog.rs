//! Keeps leases alive, and tells their holders when they are lost.
//!
//! One task for each engine, while something is held and a moment longer, so that who locks and unlocks in turn
//! does not start it each time. It is woken for what it would not see in time by itself. Renewals that fall due together are one
//! batch. A renewal that fails is tried again while the lease can still be held: only a refusal or the
//! deadline is a loss.
//!
//! The invariant: `deadline` is a monotonic time taken *before* the request was sent, plus the lease, less
//! the drift; so it fires here before the lease ends on the server.

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
    runtime::Handle,
    sync::Notify,
    time::{Instant, sleep_until, timeout},
};
use tracing::{debug, warn};

use super::{Claim, Owner, Upkeep, Watch};
use crate::backend::{ANSWER_LIMIT, DynLeases, Renewal};

/// How long the task stays when nothing is held any more.
const LINGER: Duration = Duration::from_millis(50);
/// After how long what was handed over is renewed. Most who hold what others want have given it back by then.
const SOON: Duration = Duration::from_millis(100);

pub(crate) struct Watchdog(Arc<Shared>);

struct Shared {
    backend: Arc<dyn DynLeases>,
    rounds: Mutex<Rounds>,
    /// Told when the task must look earlier than it would.
    changed: Notify,
}

#[derive(Default)]
struct Rounds {
    watched: HashMap<Owner, Arc<Watch>>,
    /// When to look at which lease: to renew it, or because its deadline has come.
    timers: BTreeSet<(Instant, Owner)>,
    running: bool,
    /// When the task looks by itself; none, if it is about to.
    looks: Option<Instant>,
    /// It stays for a moment, with nothing to do.
    lingers: bool,
    /// A lease has come since it looked last.
    came: bool,
}

impl Watchdog {
    pub(crate) fn new(backend: Arc<dyn DynLeases>) -> Self {
        let rounds = Mutex::default();
        Self(Arc::new(Shared { backend, rounds, changed: Notify::new() }))
    }

    /// Starts to watch a lease that was asked for at `sent`; whose it is lives in that runtime.
    pub(crate) fn watch(
        &self,
        claim: Claim,
        upkeep: Upkeep,
        runtime: Handle,
        sent: Instant,
    ) -> Arc<Watch> {
        let watch = Watch::new(claim, upkeep, runtime, sent, sent);
        watch.renewed(sent);
        let look = watch.next_look(sent);
        self.add(watch, look)
    }

    /// Starts to watch a lease that was handed over, and lasts until `deadline`. It is renewed soon, for it is short.
    pub(crate) fn watch_until(
        &self,
        claim: Claim,
        upkeep: Upkeep,
        runtime: Handle,
        deadline: Instant,
    ) -> Arc<Watch> {
        let now = Instant::now();
        let watch = Watch::new(claim, upkeep, runtime, now, deadline);
        let look = watch.next_look(now).min(now + SOON);
        self.add(watch, look)
    }

    fn add(&self, watch: Watch, look: Instant) -> Arc<Watch> {
        let watch = Arc::new(watch);
        let mut rounds = self.0.rounds();
        rounds.watched.insert(watch.claim.owner, watch.clone());
        rounds.set_timer(&watch, look);
        rounds.came = true;
        if !rounds.running {
            rounds.running = true;
            drop(rounds);
            tokio::spawn(run(Run::new(&self.0)));
        } else if rounds.looks.is_some_and(|by_itself| look < by_itself) {
            self.0.tell(rounds);
        }
        watch
    }

    /// Stops watching: what is no longer held is no longer renewed.
    pub(crate) fn forget(&self, watch: &Watch) {
        let mut rounds = self.0.rounds();
        rounds.forget(watch);
        // It would sleep on for a lease that is gone.
        if rounds.watched.is_empty() && rounds.looks.is_some() && !rounds.lingers {
            self.0.tell(rounds);
        }
    }
}

impl Shared {
    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the task look now.
    fn tell(&self, mut rounds: MutexGuard<'_, Rounds>) {
        rounds.looks = None;
        drop(rounds);
        self.changed.notify_one();
    }

    /// Sorts out what is due. Told losses leave; what is to be renewed is returned.
    fn due(&self) -> Vec<Arc<Watch>> {
        let now = Instant::now();
        let mut rounds = self.rounds();
        // What falls due within a tenth of the first one's interval comes along, so that batches form.
        let first = rounds.timers.first().and_then(|(_, token)| rounds.watched.get(token));
        let slack = first.and_then(|watch| watch.upkeep.refresh).unwrap_or_default() / 10;
        let any = rounds.timers.first().is_some_and(|(at, _)| *at <= now);
        let past: Vec<_> = rounds
            .timers
            .iter()
            .take_while(|(at, _)| any && *at <= now + slack)
            .filter_map(|(_, token)| rounds.watched.get(token).cloned())
            .collect();
        let mut due = Vec::new();
        for watch in past {
            if watch.is_lost() {
                warn!(name = ?watch.claim.name, "lease lost: it could not be renewed in time");
                watch.tell_lost();
                rounds.forget(&watch);
                continue;
            }
            let mut times = watch.times();
            let renew = !times.renewing && watch.upkeep.refresh.is_some() && now < watch.until;
            times.renewing |= renew;
            let deadline = times.deadline;
            drop(times);
            rounds.set_timer(&watch, deadline);
            if renew {
                due.push(watch);
            }
        }
        due
    }

    /// A batch for each part of the backend: one that does not answer costs the others nothing.
    fn by_shard(&self, due: Vec<Arc<Watch>>) -> impl Iterator<Item = Vec<Arc<Watch>>> {
        let mut shards: BTreeMap<usize, Vec<_>> = BTreeMap::new();
        for watch in due {
            shards.entry(self.backend.shard(&watch.claim.name)).or_default().push(watch);
        }
        shards.into_values()
    }

    fn renewed(&self, batch: Batch) {
        let mut rounds = self.rounds();
        for (at, watch) in batch.watches.iter().enumerate() {
            watch.times().renewing = false;
            if !rounds.watched.contains_key(&watch.claim.owner) {
                continue;
            }
            let answer = batch.answer.as_ref();
            // An answer with too few parts says of the rest that it is not held.
            match answer.map(|each| each.get(at).copied().unwrap_or(Renewal::NotHeld)) {
                Some(Renewal::Held) => {
                    watch.renewed(batch.sent);
                    let look = watch.next_look(batch.sent);
                    rounds.set_timer(watch, look);
                }
                Some(Renewal::NotHeld) => {
                    warn!(name = ?watch.claim.name, "lease lost: the server no longer has it");
                    watch.tell_lost();
                    rounds.forget(watch);
                }
                None | Some(Renewal::Unknown) => {
                    let (now, deadline) = (Instant::now(), watch.deadline());
                    // (What is left may be less than a lease, of one that was granted for less.)
                    let pause = (watch.claim.lease / 20).min((deadline - now) / 8);
                    let look = deadline.min(now + pause.max(Duration::from_millis(10)));
                    rounds.set_timer(watch, look);
                }
            }
        }
    }
}

impl Rounds {
    /// Sets the one timer of a lease.
    fn set_timer(&mut self, watch: &Watch, at: Instant) {
        let token = watch.claim.owner;
        let mut times = watch.times();
        self.timers.remove(&(times.timer, token));
        times.timer = at;
        self.timers.insert((at, token));
    }

    /// When the task is to look next, after a look at `now`; none, if it has nothing more to do.
    fn next_look(&mut self, now: Instant) -> Option<Instant> {
        let came = std::mem::take(&mut self.came);
        let lingered = std::mem::replace(&mut self.lingers, self.watched.is_empty());
        self.looks = match self.timers.first() {
            Some((at, _)) => Some(*at),
            None if lingered && !came => None,
            None => Some(now + LINGER),
        };
        self.looks
    }

    fn forget(&mut self, watch: &Watch) {
        let token = watch.claim.owner;
        self.watched.remove(&token);
        self.timers.remove(&(watch.times().timer, token));
    }
}

struct Batch {
    watches: Vec<Arc<Watch>>,
    sent: Instant,
    answer: Option<Vec<Renewal>>,
}

/// The run of the task. Where its runtime goes away, it goes on in that of a lease that is still held.
struct Run {
    shared: Arc<Shared>,
    ended: bool,
    /// It is being spawned.
    spawning: Arc<AtomicBool>,
}

impl Run {
    fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone(), ended: false, spawning: Arc::default() }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut rounds = self.shared.rounds();
        rounds.running = false;
        if self.spawning.load(Ordering::SeqCst) {
            return;
        }
        // What was being renewed is to be renewed at once.
        let renewing = |watch: &&Arc<Watch>| std::mem::take(&mut watch.times().renewing);
        let cut_off: Vec<_> = rounds.watched.values().filter(renewing).cloned().collect();
        for watch in cut_off {
            rounds.set_timer(&watch, Instant::now());
        }
        drop(rounds);
        let mut tried = Vec::new();
        loop {
            let mut rounds = self.shared.rounds();
            let mut runtimes = rounds.watched.values().map(|watch| &watch.runtime);
            let other = runtimes.find(|runtime| !tried.contains(&runtime.id())).cloned();
            let Some(runtime) = other.filter(|_| !rounds.running) else { return };
            rounds.running = true;
            drop(rounds);
            tried.push(runtime.id());
            let next = Self::new(&self.shared);
            let spawning = next.spawning.clone();
            spawning.store(true, Ordering::SeqCst);
            // A runtime that is gone, as this one is, drops it at once.
            runtime.spawn(run(next));
            spawning.store(false, Ordering::SeqCst);
        }
    }
}

async fn run(mut run: Run) {
    let shared = run.shared.clone();
    let mut renewals: FuturesUnordered<BoxFuture<'static, Batch>> = FuturesUnordered::new();
    loop {
        for due in shared.by_shard(shared.due()) {
            renewals.push(renew(shared.backend.clone(), due).boxed());
        }
        let next = {
            let mut rounds = shared.rounds();
            let Some(next) = rounds.next_look(Instant::now()) else {
                // Said under the lock, so that a lease that comes now starts a new run.
                rounds.running = false;
                run.ended = true;
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

async fn renew(backend: Arc<dyn DynLeases>, watches: Vec<Arc<Watch>>) -> Batch {
    let sent = Instant::now();
    let claims: Vec<_> = watches.iter().map(|watch| watch.claim.clone()).collect();
    // A renewal may take as long as the shortest lease in it still lasts; and not so long that a backend that
    // does not bound its own waits uses up a lease by a single one.
    let shortest = watches.iter().map(|watch| watch.deadline()).min().unwrap_or(sent) - sent;
    let limit = shortest.min(ANSWER_LIMIT);
    let answer = match timeout(limit, backend.renew(&claims)).await {
        Ok(Ok(answer)) => Some(answer),
        Ok(Err(error)) => {
            debug!(error = %crate::error::Chain(&error), leases = claims.len(), "renewal failed");
            None
        }
        Err(_) => None,
    };
    Batch { watches, sent, answer }
}
