//! Keeps the queue entries of this process at the backend.
//!
//! A process keeps all of its entries in a queue with one request, by one task for each queue. So a
//! waiter sleeps until a push for it. The answer tells which entries are gone: their waiters ask.
//! If the lease in the way has ended, the same request grants it to the next waiter in the fleet.

use std::{
    collections::BTreeMap,
    mem::take,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use dashmap::{DashMap, Entry};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::debug;

use crate::{
    backend::{Change, Claim, Kept, Leases, SemaphoreKind, channels::Inbox},
    error::{BackendError, BackendErrorKind, Chain},
    key::Name,
    observe::Rarely,
    random::{self, Hasher},
    time::after,
};

/// How often the entries of a queue are kept: two requests may fail before they end.
const INTERVAL: Duration = Duration::from_millis(640);
/// How long an entry lasts that is kept, in intervals.
const ENTRY_LIFE: u32 = 3;
/// Queues beyond 1,280 lengthen the interval, so that a process sends 2,000 requests a second.
const EACH_QUEUE: Duration = Duration::from_micros(500);
const REPEAT: Duration = Duration::from_millis(100);
/// How many waiters of a queue are named in one request: those that have slept longest.
const NAMED: usize = 32;
/// After the end of a lease in the way, the processes look at random times within this.
const JITTER: Duration = Duration::from_millis(50);

/// The queues in which this process has waiters, as far as one engine knows.
pub(super) struct Keeper {
    backend: Arc<dyn Leases>,
    queues: DashMap<QueueKey, KeptQueue, Hasher>,
    /// The number of the last waiter. No two waiters have the same number, so a waiter that leaves
    /// late removes no other from the next queue of its name.
    last: AtomicU64,
}

pub(super) type QueueKey = (Name, SemaphoreKind);

struct KeptQueue {
    /// In the order in which they began to sleep.
    waiters: BTreeMap<u64, KeptWaiter>,
    look_at: Instant,
    /// Notified when the task must look earlier than it would.
    earlier: Arc<Notify>,
}

struct KeptWaiter {
    claim: Claim,
    inbox: Arc<Inbox>,
}

/// A waiter whose queue entry is kept. Dropped, it is kept no more.
pub(super) struct KeptPlace {
    keeper: Arc<Keeper>,
    key: QueueKey,
    number: u64,
}

impl Keeper {
    pub(super) fn new(backend: Arc<dyn Leases>) -> Arc<Self> {
        Arc::new(Self { backend, queues: DashMap::default(), last: AtomicU64::new(0) })
    }

    /// Keeps the entry of a claim, which was told that the lease in the way lasts for `remaining`.
    /// Wakes the waiter when its entry is gone.
    pub(super) fn keep(
        self: &Arc<Self>,
        claim: &Claim,
        inbox: Arc<Inbox>,
        remaining: Duration,
    ) -> KeptPlace {
        let key = (claim.name.clone(), SemaphoreKind::from(claim.mode));
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let waiter = KeptWaiter { claim: claim.clone(), inbox };
        let is_new = match self.queues.entry(key.clone()) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().enter(number, waiter, remaining);
                false
            }
            Entry::Vacant(queue) => {
                queue.insert(KeptQueue::default()).enter(number, waiter, remaining);
                true
            }
        };
        if is_new {
            tokio::spawn(
                KeeperTask { keeper: self.clone(), key: key.clone(), has_ended: false }.run(),
            );
        }
        KeptPlace { keeper: self.clone(), key, number }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn entries(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiters.len()).sum()
    }

    /// Returns how many callers sleep in each queue that has some.
    pub(super) fn waiters(&self) -> Vec<(QueueKey, usize)> {
        let queues = self.queues.iter().filter(|queue| !queue.waiters.is_empty());
        queues.map(|queue| (queue.key().clone(), queue.waiters.len())).collect()
    }

    /// Returns how often each queue is kept. Many queues spread over the interval by chance.
    fn interval(&self) -> Duration {
        let count = u32::try_from(self.queues.len()).unwrap_or(u32::MAX);
        let interval = INTERVAL.max(EACH_QUEUE.saturating_mul(count));
        interval - random::up_to(interval / 10)
    }
}

impl Default for KeptQueue {
    fn default() -> Self {
        Self {
            waiters: BTreeMap::new(),
            look_at: Instant::now() + INTERVAL,
            earlier: Arc::default(),
        }
    }
}

impl KeptQueue {
    fn enter(&mut self, number: u64, waiter: KeptWaiter, remaining: Duration) {
        self.waiters.insert(number, waiter);
        // Its claim has just prolonged all entries of this process.
        self.look_after(remaining.min(INTERVAL));
    }

    /// Looks not long after the end of the lease in the way.
    fn look_after(&mut self, remaining: Duration) {
        let remaining = remaining.saturating_add(random::up_to(JITTER));
        let look_at = after(Instant::now(), remaining);
        if look_at < self.look_at {
            self.look_at = look_at;
            self.earlier.notify_one();
        }
    }

    /// Makes the waiters ask whose entries are gone, and decides when to look next.
    fn answered(&mut self, named: &[u64], look_at: Instant, answer: Result<Kept, BackendError>) {
        match answer {
            Ok(kept) => {
                if kept.has_lapsed {
                    self.wake_all();
                }
                for (number, stands) in named.iter().zip(kept.stands) {
                    if !stands {
                        self.wake(*number);
                    }
                }
                self.look_at = look_at;
                if !kept.has_lapsed && !kept.remaining.is_zero() {
                    self.look_after(kept.remaining);
                }
            }
            Err(error) => {
                if error.kind() == BackendErrorKind::Foreign {
                    self.wake_all();
                }
                self.look_at = Instant::now() + REPEAT;
            }
        }
    }

    /// Makes a waiter ask whose entry is gone. It comes back when it has asked: one that is not
    /// polled stands in the way of no other.
    fn wake(&mut self, number: u64) {
        if let Some(waiter) = self.waiters.remove(&number) {
            waiter.inbox.put(Change::Wake);
        }
    }

    fn wake_all(&mut self) {
        for waiter in take(&mut self.waiters).into_values() {
            waiter.inbox.put(Change::Wake);
        }
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        if let Some(mut queue) = self.keeper.queues.get_mut(&self.key) {
            queue.waiters.remove(&self.number);
        }
    }
}

/// The task of one queue. It runs on the runtime of a waiter.
struct KeeperTask {
    keeper: Arc<Keeper>,
    key: QueueKey,
    /// The queue was removed. There may be another one by now, with a task of its own.
    has_ended: bool,
}

/// What the task of a queue does next.
enum KeeperStep {
    /// It waits until then, or until it is to look earlier.
    Wait(Instant, Arc<Notify>),
    /// It keeps the entries, and names the claims of some waiters.
    Keep { named: Vec<u64>, claims: Vec<Claim> },
    /// There are no waiters.
    End,
}

impl KeeperTask {
    async fn run(mut self) {
        static SAID: Rarely = Rarely::once_in(1);
        loop {
            let (named, claims) = match self.next() {
                KeeperStep::Keep { named, claims } => (named, claims),
                KeeperStep::Wait(look_at, earlier) => {
                    tokio::select! {
                        () = sleep_until(look_at) => {}
                        () = earlier.notified() => {}
                    }
                    continue;
                }
                KeeperStep::End => {
                    self.has_ended = true;
                    return;
                }
            };
            let sent = Instant::now();
            let interval = self.keeper.interval();
            let answer = self.keeper.backend.keep(&claims, interval * ENTRY_LIFE).await;
            if let Err(error) = &answer
                && SAID.first()
            {
                debug!(name = ?self.key.0, error = %Chain(error), "queue entries were not kept");
            }
            if let Some(mut queue) = self.keeper.queues.get_mut(&self.key) {
                queue.answered(&named, sent + interval, answer);
            }
        }
    }

    fn next(&self) -> KeeperStep {
        let Entry::Occupied(queue) = self.keeper.queues.entry(self.key.clone()) else {
            return KeeperStep::End;
        };
        let KeptQueue { waiters, look_at, earlier } = queue.get();
        if *look_at > Instant::now() {
            return KeeperStep::Wait(*look_at, earlier.clone());
        }
        if waiters.is_empty() {
            // Under the lock of the queue: a waiter that comes now begins another one.
            queue.remove();
            return KeeperStep::End;
        }
        let named = waiters.iter().take(NAMED);
        let (named, claims) = named.map(|(number, waiter)| (*number, waiter.claim.clone())).unzip();
        KeeperStep::Keep { named, claims }
    }
}

/// If its runtime is gone, the waiters ask. The first of them to wait again starts another task.
impl Drop for KeeperTask {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if let Some((_, mut queue)) = self.keeper.queues.remove(&self.key) {
            queue.wake_all();
        }
    }
}
