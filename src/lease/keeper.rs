//! Keeps the queue entries of this process at the backend.
//!
//! A process keeps all of its entries in a queue with one request, whatever their number. So a
//! waiter sleeps until a push for it. The answer tells which entries are gone: their waiters ask.
//! If the lease in the way has ended, the same request hands it to the next waiter in the fleet.
//!
//! One task for each queue does it, while this process has waiters there and for a moment longer.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hashbrown::HashMap;
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::untold::Untold;
use crate::{
    backend::{Claim, DynLeases, Kept, QueueKind, answered},
    error::{BackendError, BackendErrorKind, Chain},
    key::Name,
    time::after,
};

/// After which part of its time a queue entry is kept: two requests may fail before it ends.
const KEEP_ENTRY: f64 = 0.32;
/// How soon a request that failed is repeated.
const REPEAT: Duration = Duration::from_millis(100);
/// After the end of a lease in the way, the processes look at random times within this.
const JITTER: Duration = Duration::from_millis(50);
/// How many waiters of a queue are named in one request: those that have waited longest, since a
/// queue is left at its head.
const NAMED: usize = 32;

/// The queue entries of one engine.
#[derive(Clone)]
pub(super) struct Keeper(Arc<KeeperCore>);

struct KeeperCore {
    backend: Arc<dyn DynLeases>,
    queues: Mutex<HashMap<QueueKey, KeptQueue>>,
    untold: Untold,
}

type QueueKey = (Name, QueueKind);

/// The waiters of this process in one queue. It exists while its task runs.
struct KeptQueue {
    /// In the order in which they came.
    waiters: BTreeMap<u64, KeptWaiter>,
    came: u64,
    look_at: Instant,
    /// When the lease in the way ends, as far as is known.
    ends: Instant,
    /// Notified when the task must look earlier.
    earlier: Arc<Notify>,
}

struct KeptWaiter {
    claim: Claim,
    runtime: Handle,
    /// Notified when the waiter must ask.
    asks: Arc<Notify>,
}

/// A waiter whose queue entry is kept. Dropped, it is kept no more.
pub(super) struct Place {
    keeper: Keeper,
    key: QueueKey,
    number: u64,
    asks: Arc<Notify>,
}

impl Keeper {
    pub(super) fn new(backend: Arc<dyn DynLeases>) -> Self {
        let (queues, untold) = Default::default();
        Self(Arc::new(KeeperCore { backend, queues, untold }))
    }

    /// Keeps the entry of a claim, which was told that the lease in the way lasts for `remaining`.
    pub(super) fn enter(&self, claim: &Claim, remaining: Duration) -> Place {
        let key = (claim.name.clone(), QueueKind::from(claim.mode));
        let (runtime, asks) = (Handle::current(), Arc::<Notify>::default());
        let mut queues = self.queues();
        let is_new = !queues.contains_key(&key);
        let (now, count) = (Instant::now(), queues.len());
        let queue = queues.entry(key.clone()).or_insert_with(|| KeptQueue {
            waiters: BTreeMap::new(),
            came: 0,
            look_at: now + self.every(claim, count + 1),
            ends: now,
            earlier: Arc::default(),
        });
        queue.came += 1;
        let number = queue.came;
        let waiter =
            KeptWaiter { claim: claim.clone(), runtime: runtime.clone(), asks: asks.clone() };
        queue.waiters.insert(number, waiter);
        queue.look_after(remaining);
        drop(queues);
        if is_new {
            self.start(key.clone(), &runtime, Vec::new());
        }
        Place { keeper: self.clone(), key, number, asks }
    }

    /// Starts the task of a queue.
    fn start(&self, key: QueueKey, runtime: &Handle, mut tried: Vec<Id>) {
        tried.push(runtime.id());
        let task = KeeperTask { keeper: self.clone(), key, tried, ended: false };
        // A runtime that is gone drops the task at once.
        runtime.spawn(task.run());
    }

    /// Returns the claims that are named in the next request. Ends the queue if it has none.
    fn oldest(&self, key: &QueueKey) -> Option<(Vec<u64>, Vec<Claim>)> {
        let mut queues = self.queues();
        let queue = queues.get(key)?;
        if queue.waiters.is_empty() {
            queues.remove(key);
            return None;
        }
        let oldest = queue.waiters.iter().take(NAMED);
        Some(oldest.map(|(number, waiter)| (*number, waiter.claim.clone())).unzip())
    }

    /// Makes the waiters ask whose entries are gone, and decides when to look next.
    fn answered(
        &self,
        key: &QueueKey,
        asked: (&[u64], &[Claim], Instant),
        answer: Result<Kept, BackendError>,
    ) {
        let (numbers, claims, sent) = asked;
        let mut queues = self.queues();
        let count = queues.len();
        let (Some(queue), Some(claim)) = (queues.get_mut(key), claims.first()) else { return };
        if answer.as_ref().is_ok_and(|kept| kept.handed_over) && sent < queue.ends {
            // The holder has released the lease, and no push told of it.
            self.0.untold.note();
        }
        queue.look_at = sent + self.every(claim, count);
        match answer {
            Ok(kept) if kept.has_lapsed => queue.wake(|_| true),
            Ok(kept) => {
                let gone = numbers.iter().zip(&kept.stands).filter(|(_, stands)| !**stands);
                let gone: Vec<_> = gone.map(|(number, _)| *number).collect();
                queue.wake(|number| gone.contains(&number));
                if !kept.remaining.is_zero() {
                    queue.look_after(kept.remaining);
                }
            }
            Err(error) => {
                debug!(name = ?key.0, error = %Chain(&error), "queue entries were not kept");
                queue.look_at = Instant::now() + REPEAT;
                if error.kind() == BackendErrorKind::Foreign {
                    queue.wake(|_| true);
                }
            }
        }
    }

    /// Returns how often the entries of one of `count` queues are kept.
    fn every(&self, claim: &Claim, count: usize) -> Duration {
        let every = claim.queue_entry_life().mul_f64(KEEP_ENTRY);
        self.0.untold.interval(count).map_or(every, |interval| interval.min(every))
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<QueueKey, KeptQueue>> {
        self.0.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KeptQueue {
    /// Looks not long after the end of the lease in the way.
    fn look_after(&mut self, remaining: Duration) {
        self.ends = after(Instant::now(), remaining);
        let look = after(Instant::now(), remaining.saturating_add(JITTER.mul_f64(fastrand::f64())));
        if look < self.look_at {
            self.look_at = look;
            self.earlier.notify_one();
        }
    }

    fn wake(&self, which: impl Fn(u64) -> bool) {
        let woken = self.waiters.iter().filter(|(number, _)| which(**number));
        woken.for_each(|(_, waiter)| waiter.asks.notify_one());
    }
}

impl Place {
    /// Notes that the lease in the way lasts for another `remaining`.
    pub(super) fn met(&self, remaining: Duration) {
        if let Some(queue) = self.keeper.queues().get_mut(&self.key) {
            queue.look_after(remaining);
        }
    }

    /// Completes when the waiter must ask.
    pub(super) async fn asks(&self) {
        self.asks.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(queue) = self.keeper.queues().get_mut(&self.key) {
            queue.waiters.remove(&self.number);
        }
    }
}

/// The task of a queue. If its runtime goes away, it goes on in that of another waiter.
struct KeeperTask {
    keeper: Keeper,
    key: QueueKey,
    /// The runtimes on which it has run.
    tried: Vec<Id>,
    ended: bool,
}

impl KeeperTask {
    async fn run(mut self) {
        let backend = self.keeper.0.backend.clone();
        while let Some((look_at, earlier)) = self.next_look() {
            tokio::select! {
                () = sleep_until(look_at) => {}
                () = earlier.notified() => continue,
            }
            let Some((numbers, claims)) = self.keeper.oldest(&self.key) else { break };
            let sent = Instant::now();
            let answer = answered(backend.as_ref(), backend.keep(&claims)).await;
            self.keeper.answered(&self.key, (&numbers, &claims, sent), answer);
        }
        self.ended = true;
    }

    fn next_look(&self) -> Option<(Instant, Arc<Notify>)> {
        let queues = self.keeper.queues();
        queues.get(&self.key).map(|queue| (queue.look_at, queue.earlier.clone()))
    }
}

impl Drop for KeeperTask {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        let mut queues = self.keeper.queues();
        let Some(queue) = queues.get(&self.key) else { return };
        let mut runtimes = queue.waiters.values().map(|waiter| &waiter.runtime);
        let other = runtimes.find(|runtime| !self.tried.contains(&runtime.id())).cloned();
        match other {
            Some(runtime) => {
                drop(queues);
                let tried = std::mem::take(&mut self.tried);
                self.keeper.start(self.key.clone(), &runtime, tried);
            }
            // Waiters whose runtime is gone do not wait any more.
            None => drop(queues.remove(&self.key)),
        }
    }
}
