//! Keeps the queue entries of this process at the backend.
//!
//! A process keeps all of its entries in many queues with one request. So a waiter sleeps until a
//! push for it. The answer tells which entries are gone: their waiters ask. If the lease in the way
//! has ended, the same request hands it to the next waiter in the fleet.
//!
//! One task for each engine does it, while this process has waiters and for a moment longer. It
//! sends [batches](schedule) of queues, each of which is answered for itself.

mod schedule;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::debug;

use self::schedule::{KeeperSchedule, KeptBatch, KeptQueueKey, KeptWaiter};
use super::retry::{Retry, try_limit};
use crate::{
    backend::{Claim, DynLeases, Kept, QUEUES_KEPT_AT_ONCE, QueueKind, answered},
    error::{BackendError, BackendErrorKind, Chain},
    observe::Rarely,
    sync::lock,
    time::after,
};

/// After which part of its time a queue entry is kept: two requests may fail before it ends.
const KEEP_ENTRY: f64 = 0.32;
/// The same with many queues, where two requests may fail as well.
const KEEP_ONE_OF_MANY: f64 = 0.58;
const MANY: usize = 1400;
/// How soon a request that failed is repeated.
const REPEAT: Duration = Duration::from_millis(100);
/// The pause between two batches, so that the commands of others go in between.
const PAUSE: Duration = Duration::from_millis(2);
/// How long the task sleeps while all queues have requests under way.
const IDLE: Duration = Duration::from_secs(1);

/// The queue entries of one engine.
#[derive(Clone)]
pub(super) struct Keeper(Arc<KeeperCore>);

struct KeeperCore {
    backend: Arc<dyn DynLeases>,
    schedule: Mutex<KeeperSchedule>,
    /// Notified when the task must look earlier than it would.
    changed: Notify,
}

/// A waiter whose queue entry is kept. Dropped, it is kept no more.
pub(super) struct KeptPlace {
    keeper: Keeper,
    key: KeptQueueKey,
    number: u64,
    asks: Arc<Notify>,
}

impl Keeper {
    pub(super) fn new(backend: Arc<dyn DynLeases>) -> Self {
        let (schedule, changed) = Default::default();
        Self(Arc::new(KeeperCore { backend, schedule, changed }))
    }

    /// Keeps the entry of a claim, which was told that the lease in the way lasts for `remaining`.
    pub(super) fn enter(&self, claim: &Claim, remaining: Duration) -> KeptPlace {
        let key = (claim.name.clone(), QueueKind::from(claim.mode));
        let (runtime, asks) = (Handle::current(), Arc::<Notify>::default());
        let waiter =
            KeptWaiter { claim: claim.clone(), runtime: runtime.clone(), asks: asks.clone() };
        let mut schedule = self.schedule();
        let look_at = after(Instant::now(), self.every(claim, schedule.len() + 1));
        let number = schedule.add(&key, waiter, look_at);
        let is_earlier =
            schedule.look_after(&key, remaining) || schedule.next_look() == Some(look_at);
        let starts = !std::mem::replace(&mut schedule.running, true);
        drop(schedule);
        if starts {
            self.start(&runtime, Vec::new());
        } else if is_earlier {
            self.0.changed.notify_one();
        }
        KeptPlace { keeper: self.clone(), key, number, asks }
    }

    fn start(&self, runtime: &Handle, mut tried: Vec<Id>) {
        tried.push(runtime.id());
        let task = KeeperTask { keeper: self.clone(), tried, ended: false };
        // A runtime that is gone drops the task at once.
        runtime.spawn(task.run());
    }

    /// Notes the answers to a batch that was sent at `sent`.
    fn answered(&self, batch: KeptBatch, sent: Instant, answers: Answers) {
        let mut schedule = self.schedule();
        let Some(claim) = batch.claims.first().and_then(|claims| claims.first()) else { return };
        let look_at = after(sent, self.every(claim, schedule.len()));
        let mut answers = answers.map(Vec::into_iter);
        for (key, numbers) in batch.queues {
            let answer = match &mut answers {
                // An answer with too few parts says of the rest that nothing is known.
                Ok(each) => each.next().unwrap_or_else(|| Ok(Kept::unknown())),
                Err(error) => Err(error.clone()),
            };
            match answer {
                Ok(kept) => self.kept(&mut schedule, &key, &numbers, &kept, look_at),
                Err(error) => failed(&mut schedule, &key, &error),
            }
        }
    }

    /// Makes the waiters ask whose entries are gone, and decides when to look next.
    fn kept(
        &self,
        schedule: &mut KeeperSchedule,
        key: &KeptQueueKey,
        numbers: &[u64],
        kept: &Kept,
        look_at: Instant,
    ) {
        let Some(queue) = schedule.get_mut(key) else { return };
        if kept.has_lapsed {
            queue.wake_all();
        } else {
            let gone = numbers.iter().zip(&kept.stands).filter(|(_, stands)| !**stands);
            queue.wake(&gone.map(|(number, _)| *number).collect());
        }
        schedule.set_timer(key, look_at);
        if !kept.has_lapsed && !kept.remaining.is_zero() {
            schedule.look_after(key, kept.remaining);
        }
    }

    /// Returns how often the entries are kept while there are `count` queues. Those of many batches
    /// are kept at random times, so that they spread over the interval.
    fn every(&self, claim: &Claim, count: usize) -> Duration {
        let life = claim.queue_entry_life();
        let limit = try_limit(&Retry::on_demand(), self.0.backend.as_ref());
        let rarely = life.mul_f64(KEEP_ONE_OF_MANY);
        let every = match count > MANY && rarely + (limit + REPEAT) * 2 < life {
            true => rarely,
            false => life.mul_f64(KEEP_ENTRY),
        };
        match count > QUEUES_KEPT_AT_ONCE {
            true => every.mul_f64(1.0 - fastrand::f64() / 10.0),
            false => every,
        }
    }

    fn schedule(&self) -> MutexGuard<'_, KeeperSchedule> {
        lock(&self.0.schedule)
    }
}

fn failed(schedule: &mut KeeperSchedule, key: &KeptQueueKey, error: &BackendError) {
    static SAID: Rarely = Rarely::once_in(1);
    if SAID.first() {
        debug!(name = ?key.0, error = %Chain(error), "queue entries were not kept");
    }
    if error.kind() == BackendErrorKind::Foreign
        && let Some(queue) = schedule.get_mut(key)
    {
        queue.wake_all();
    }
    schedule.set_timer(key, Instant::now() + REPEAT);
}

impl KeptPlace {
    /// Notes that the lease in the way lasts for another `remaining`.
    pub(super) fn met(&self, remaining: Duration) {
        if self.keeper.schedule().look_after(&self.key, remaining) {
            self.keeper.0.changed.notify_one();
        }
    }

    /// Completes when the waiter must ask.
    pub(super) async fn asks(&self) {
        self.asks.notified().await;
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        if let Some(queue) = self.keeper.schedule().get_mut(&self.key) {
            queue.waiters.remove(&self.number);
        }
    }
}

/// The answers of a backend for each queue of a batch.
type Answers = Result<Vec<Result<Kept, BackendError>>, BackendError>;

/// The task of an engine. If its runtime goes away, it goes on in that of another waiter.
struct KeeperTask {
    keeper: Keeper,
    /// The runtimes on which it has run.
    tried: Vec<Id>,
    ended: bool,
}

impl KeeperTask {
    async fn run(mut self) {
        let core = self.keeper.0.clone();
        let mut requests: FuturesUnordered<BoxFuture<'static, (KeptBatch, Instant, Answers)>> =
            FuturesUnordered::new();
        let mut not_before = Instant::now();
        loop {
            if let Some(batch) = self.due(not_before) {
                requests.push(keep(core.backend.clone(), batch).boxed());
                not_before = Instant::now() + PAUSE;
            }
            let Some(next) = self.next_look() else { return };
            tokio::select! {
                Some((batch, sent, answers)) = requests.next() => {
                    self.keeper.answered(batch, sent, answers);
                }
                () = sleep_until(next.max(not_before)) => {}
                () = core.changed.notified() => {}
            }
        }
    }

    fn due(&self, not_before: Instant) -> Option<KeptBatch> {
        let (now, backend) = (Instant::now(), &self.keeper.0.backend);
        if now < not_before {
            return None;
        }
        self.keeper.schedule().take_due(now, |name| backend.shard(name))
    }

    /// Returns when the task looks next, or `None` if it is to end.
    fn next_look(&mut self) -> Option<Instant> {
        let mut schedule = self.keeper.schedule();
        if schedule.len() == 0 {
            // Set under the lock, so that a waiter that comes now starts a new task.
            schedule.running = false;
            self.ended = true;
            return None;
        }
        Some(schedule.next_look().unwrap_or_else(|| Instant::now() + IDLE))
    }
}

impl Drop for KeeperTask {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut schedule = self.keeper.schedule();
        schedule.keep_again();
        match schedule.runtime_but(&self.tried) {
            Some(runtime) => {
                drop(schedule);
                self.keeper.start(&runtime, std::mem::take(&mut self.tried));
            }
            // Waiters whose runtime is gone do not wait any more.
            None => {
                schedule.running = false;
                schedule.clear();
            }
        }
    }
}

async fn keep(backend: Arc<dyn DynLeases>, batch: KeptBatch) -> (KeptBatch, Instant, Answers) {
    let sent = Instant::now();
    let answers = answered(backend.as_ref(), backend.keep_each(&batch.claims)).await;
    (batch, sent, answers)
}
