//! When each queue is looked at, and which of them one request keeps.

use std::{
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::Duration,
};

use hashbrown::HashMap;
use tokio::{
    runtime::{Handle, Id},
    sync::Notify,
    time::Instant,
};

use crate::{
    backend::{Claim, QUEUES_KEPT_AT_ONCE, QueueKind},
    key::Name,
    time::after,
};

/// How many waiters of a queue are named in one request: those that have waited longest, since a
/// queue is left at its head.
const NAMED: usize = 32;
/// After this many waiters no queue is added to a request.
const ALL_NAMED: usize = 400;
/// How many timers one look reads at most, while other callers wait for the lock.
const LOOK: usize = 1000;
/// Queues that fall due within this time come along with the first one, so that batches form: a
/// quarter of the interval.
const WINDOW: Duration = Duration::from_millis(160);
/// After the end of a lease in the way, the processes look at random times within this.
const JITTER: Duration = Duration::from_millis(50);

pub(super) type KeptQueueKey = (Name, QueueKind);

/// The waiters of one queue in this process.
pub(super) struct KeptQueue {
    /// In the order in which they came.
    pub(super) waiters: BTreeMap<u64, KeptWaiter>,
    came: u64,
    /// `None` while a request for the queue is under way.
    timer: Option<(Instant, u64)>,
}

pub(super) struct KeptWaiter {
    pub(super) claim: Claim,
    pub(super) runtime: Handle,
    /// Notified when the waiter must ask.
    pub(super) asks: Arc<Notify>,
}

/// The queues of one engine.
#[derive(Default)]
pub(super) struct KeeperSchedule {
    queues: HashMap<KeptQueueKey, KeptQueue>,
    timers: BTreeMap<(Instant, u64), KeptQueueKey>,
    came: u64,
    pub(super) running: bool,
}

/// The queues that one request keeps.
#[derive(Default)]
pub(super) struct KeptBatch {
    /// Each queue, and the numbers of the waiters that are named.
    pub(super) queues: Vec<(KeptQueueKey, Vec<u64>)>,
    /// The claims of these waiters.
    pub(super) claims: Vec<Vec<Claim>>,
    named: usize,
}

impl KeeperSchedule {
    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }

    pub(super) fn get_mut(&mut self, key: &KeptQueueKey) -> Option<&mut KeptQueue> {
        self.queues.get_mut(key)
    }

    /// Adds a waiter, and returns its number. A new queue is looked at in time.
    pub(super) fn add(&mut self, key: &KeptQueueKey, waiter: KeptWaiter, look_at: Instant) -> u64 {
        let is_new = !self.queues.contains_key(key);
        let queue = self.queues.entry(key.clone()).or_insert_with(|| KeptQueue {
            waiters: BTreeMap::new(),
            came: 0,
            timer: None,
        });
        queue.came += 1;
        let number = queue.came;
        queue.waiters.insert(number, waiter);
        if is_new {
            self.set_timer(key, look_at);
        }
        number
    }

    /// Sets the one timer of a queue.
    pub(super) fn set_timer(&mut self, key: &KeptQueueKey, look_at: Instant) {
        let Some(queue) = self.queues.get_mut(key) else { return };
        if let Some(timer) = queue.timer {
            self.timers.remove(&timer);
        }
        self.came += 1;
        queue.timer = Some((look_at, self.came));
        self.timers.insert((look_at, self.came), key.clone());
    }

    /// Looks not long after the end of the lease in the way. Returns whether the task would sleep
    /// on for it.
    ///
    /// While a request is under way, its answer decides.
    pub(super) fn look_after(&mut self, key: &KeptQueueKey, remaining: Duration) -> bool {
        let Some(queue) = self.queues.get_mut(key) else { return false };
        let now = Instant::now();
        let look = after(now, remaining.saturating_add(JITTER.mul_f64(fastrand::f64())));
        if queue.timer.is_none_or(|(at, _)| at <= look) {
            return false;
        }
        self.set_timer(key, look);
        self.next_look() == Some(look)
    }

    /// Returns when the first queue is due.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.timers.keys().next().map(|(at, _)| *at)
    }

    /// Takes queues of one shard and one kind, if one of them is due. Ends those that have no
    /// waiters.
    pub(super) fn take_due(
        &mut self,
        now: Instant,
        shard: impl Fn(&Name) -> usize,
    ) -> Option<KeptBatch> {
        let (mut batch, mut group, mut taken) = (KeptBatch::default(), None, Vec::new());
        let window = self.timers.range(..=(now + WINDOW, u64::MAX)).take(LOOK);
        for (timer, key) in window {
            let is_due = timer.0 <= now;
            if batch.is_full() || (group.is_none() && !is_due) {
                break;
            }
            let Some(queue) = self.queues.get(key) else { continue };
            if queue.waiters.is_empty() {
                taken.extend(is_due.then_some(*timer));
                continue;
            }
            let of = (shard(&key.0), key.1);
            if *group.get_or_insert(of) == of {
                batch.add(key.clone(), queue);
                taken.push(*timer);
            }
        }
        for timer in taken {
            self.take(timer);
        }
        (!batch.queues.is_empty()).then_some(batch)
    }

    /// Removes a timer, and its queue if that has no waiters.
    fn take(&mut self, timer: (Instant, u64)) {
        let Some(key) = self.timers.remove(&timer) else { return };
        let Some(queue) = self.queues.get_mut(&key) else { return };
        queue.timer = None;
        if queue.waiters.is_empty() {
            self.queues.remove(&key);
        }
    }

    /// Makes queues whose request was cut off due at once.
    pub(super) fn keep_again(&mut self) {
        let cut_off = self.queues.iter().filter(|(_, queue)| queue.timer.is_none());
        let cut_off: Vec<_> = cut_off.map(|(key, _)| key.clone()).collect();
        for key in cut_off {
            self.set_timer(&key, Instant::now());
        }
    }

    /// Returns a runtime of a waiter, other than these.
    pub(super) fn runtime_but(&self, tried: &[Id]) -> Option<Handle> {
        let waiters = self.queues.values().flat_map(|queue| queue.waiters.values());
        let mut runtimes = waiters.map(|waiter| &waiter.runtime);
        runtimes.find(|runtime| !tried.contains(&runtime.id())).cloned()
    }

    pub(super) fn clear(&mut self) {
        self.queues.clear();
        self.timers.clear();
    }
}

impl KeptQueue {
    /// Makes waiters ask.
    pub(super) fn wake(&self, numbers: &HashSet<u64>) {
        let woken = self.waiters.iter().filter(|(number, _)| numbers.contains(number));
        woken.for_each(|(_, waiter)| waiter.asks.notify_one());
    }

    pub(super) fn wake_all(&self) {
        self.waiters.values().for_each(|waiter| waiter.asks.notify_one());
    }
}

impl KeptBatch {
    fn is_full(&self) -> bool {
        self.named >= ALL_NAMED || self.queues.len() == QUEUES_KEPT_AT_ONCE
    }

    fn add(&mut self, key: KeptQueueKey, queue: &KeptQueue) {
        let oldest = queue.waiters.iter().take(NAMED);
        let (numbers, claims): (Vec<_>, Vec<_>) =
            oldest.map(|(number, waiter)| (*number, waiter.claim.clone())).unzip();
        self.named += numbers.len();
        self.queues.push((key, numbers));
        self.claims.push(claims);
    }
}
