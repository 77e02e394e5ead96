//! Keeps the queue entries of this process at the backend.
//!
//! A process keeps all of its entries in a queue with one request, by one task for each queue. So a
//! waiter sleeps until a push for it. The answer tells which entries are gone: their waiters ask.
//! If the lease in the way has ended, the same request grants it to the next waiter in the fleet.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use hashbrown::HashMap;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::debug;

use crate::{
    backend::{Change, Claim, Kept, Leases, SemaphoreKind, answered, channels::Inbox},
    error::{BackendError, BackendErrorKind, Chain},
    key::Name,
    observe::Rarely,
    sync::lock,
    time::after,
};

/// How often the entries of a queue are kept: two requests may fail before they end.
const INTERVAL: Duration = Duration::from_millis(640);
/// How long an entry lasts that is kept, in intervals.
const ENTRY_LIFE: u32 = 3;
/// Queues beyond 1,280 lengthen the interval, so that a process sends 2,000 requests a second.
const EACH_QUEUE: Duration = Duration::from_micros(500);
/// How soon a request that failed is repeated.
const REPEAT: Duration = Duration::from_millis(100);
/// How many waiters of a queue are named in one request: those that have waited longest.
const NAMED: usize = 32;
/// After the end of a lease in the way, the processes look at random times within this.
const JITTER: Duration = Duration::from_millis(50);

/// The queue entries of one engine.
pub(super) struct Keeper {
    backend: Arc<dyn Leases>,
    queues: Mutex<HashMap<KeptQueueKey, KeptQueue>>,
    /// The number of waiters that came.
    came: AtomicU64,
}

type KeptQueueKey = (Name, SemaphoreKind);

/// The waiters of one queue in this process.
struct KeptQueue {
    /// In the order in which they came.
    waiters: BTreeMap<u64, (Claim, Arc<Inbox>)>,
    look_at: Instant,
    /// Notified when the task must look earlier than it would.
    earlier: Arc<Notify>,
}

/// A waiter whose queue entry is kept. Dropped, it is kept no more.
pub(super) struct KeptPlace {
    keeper: Arc<Keeper>,
    queue: KeptQueueKey,
    /// No other waiter has this number, also not of a queue that begins again.
    number: u64,
}

impl Keeper {
    pub(super) fn new(backend: Arc<dyn Leases>) -> Arc<Self> {
        let (queues, came) = (Mutex::default(), AtomicU64::new(0));
        Arc::new(Self { backend, queues, came })
    }

    /// Keeps the entry of a claim, which was told that the lease in the way lasts for `remaining`.
    /// Wakes the waiter when its entry is gone.
    pub(super) fn enter(
        self: &Arc<Self>,
        claim: &Claim,
        inbox: Arc<Inbox>,
        remaining: Duration,
    ) -> KeptPlace {
        let key = (claim.name.clone(), SemaphoreKind::from(claim.mode));
        let mut queues = self.queues();
        let number = self.came.fetch_add(1, Ordering::Relaxed);
        let is_new = !queues.contains_key(&key);
        let queue = queues.entry(key.clone()).or_insert_with(KeptQueue::new);
        queue.waiters.insert(number, (claim.clone(), inbox));
        queue.look_after(remaining);
        drop(queues);
        if is_new {
            tokio::spawn(KeeperTask { keeper: self.clone(), queue: key.clone() }.run());
        }
        KeptPlace { keeper: self.clone(), queue: key, number }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn entries(&self) -> usize {
        self.queues().values().map(|queue| queue.waiters.len()).sum()
    }

    /// Returns how often each queue is kept. Many queues spread over the interval by chance.
    fn interval(&self) -> Duration {
        let count = u32::try_from(self.queues().len()).unwrap_or(u32::MAX);
        INTERVAL.max(EACH_QUEUE.saturating_mul(count)).mul_f64(1.0 - fastrand::f64() / 10.0)
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<KeptQueueKey, KeptQueue>> {
        lock(&self.queues)
    }
}

impl KeptQueue {
    fn new() -> Self {
        let look_at = Instant::now() + INTERVAL;
        Self { waiters: BTreeMap::new(), look_at, earlier: Arc::default() }
    }

    /// Looks not long after the end of the lease in the way.
    fn look_after(&mut self, remaining: Duration) {
        let remaining = remaining.saturating_add(JITTER.mul_f64(fastrand::f64()));
        let look_at = after(Instant::now(), remaining);
        if look_at < self.look_at {
            self.look_at = look_at;
            self.earlier.notify_one();
        }
    }

    /// Makes the waiters ask whose entries are gone, and decides when to look next.
    fn answered(&mut self, named: &[u64], look_at: Instant, answer: Result<Kept, BackendError>) {
        let wake = |is_gone: &dyn Fn(&u64) -> bool| {
            let gone = self.waiters.iter().filter(|(number, _)| is_gone(number));
            gone.for_each(|(_, (_, inbox))| inbox.put(Change::Wake));
        };
        match answer {
            Ok(kept) => {
                let stands: HashMap<_, _> = named.iter().zip(kept.stands).collect();
                wake(&|number| kept.has_lapsed || stands.get(number) == Some(&false));
                self.look_at = look_at;
                if !kept.has_lapsed && !kept.remaining.is_zero() {
                    self.look_after(kept.remaining);
                }
            }
            Err(error) => {
                wake(&|_| error.kind() == BackendErrorKind::Foreign);
                self.look_at = Instant::now() + REPEAT;
            }
        }
    }
}

impl KeptPlace {
    /// Notes that the lease in the way lasts for another `remaining`. Returns `false` if the entry
    /// is kept no more.
    pub(super) fn met(&self, remaining: Duration) -> bool {
        let mut queues = self.keeper.queues();
        let queue = queues.get_mut(&self.queue);
        let queue = queue.filter(|queue| queue.waiters.contains_key(&self.number));
        queue.map(|queue| queue.look_after(remaining)).is_some()
    }
}

impl Drop for KeptPlace {
    fn drop(&mut self) {
        if let Some(queue) = self.keeper.queues().get_mut(&self.queue) {
            queue.waiters.remove(&self.number);
        }
    }
}

/// The task of one queue. It runs on the runtime of a waiter.
struct KeeperTask {
    keeper: Arc<Keeper>,
    queue: KeptQueueKey,
}

impl KeeperTask {
    async fn run(self) {
        static SAID: Rarely = Rarely::once_in(1);
        let backend = self.keeper.backend.clone();
        while let Some((look_at, earlier)) = self.next_look() {
            if look_at > Instant::now() {
                tokio::select! {
                    () = sleep_until(look_at) => {}
                    () = earlier.notified() => {}
                }
                continue;
            }
            let (named, claims) = self.named();
            let (sent, interval) = (Instant::now(), self.keeper.interval());
            let kept = backend.keep(&claims, interval * ENTRY_LIFE);
            let answer = answered(backend.as_ref(), kept).await;
            if let Err(error) = &answer
                && SAID.first()
            {
                debug!(name = ?self.queue.0, error = %Chain(error), "queue entries were not kept");
            }
            if let Some(queue) = self.keeper.queues().get_mut(&self.queue) {
                queue.answered(&named, sent + interval, answer);
            }
        }
    }

    /// Returns when to look next. Returns `None` if it is time to, and there are no waiters.
    fn next_look(&self) -> Option<(Instant, Arc<Notify>)> {
        let queues = self.keeper.queues();
        let queue = queues.get(&self.queue)?;
        let ends = queue.waiters.is_empty() && queue.look_at <= Instant::now();
        (!ends).then(|| (queue.look_at, queue.earlier.clone()))
    }

    /// Returns the waiters that one request names.
    fn named(&self) -> (Vec<u64>, Vec<Claim>) {
        let queues = self.keeper.queues();
        let waiters = queues.get(&self.queue).map(|queue| queue.waiters.iter().take(NAMED));
        let named = waiters.into_iter().flatten();
        named.map(|(number, (claim, _))| (*number, claim.clone())).unzip()
    }
}

/// If its runtime is gone, the waiters ask. The first of them to wait again starts another task.
impl Drop for KeeperTask {
    fn drop(&mut self) {
        let queue = self.keeper.queues().remove(&self.queue);
        let waiters = queue.into_iter().flat_map(|queue| queue.waiters.into_values());
        waiters.for_each(|(_, inbox)| inbox.put(Change::Wake));
    }
}
