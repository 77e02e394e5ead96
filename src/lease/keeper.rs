//! Keeps the queue entries of this process at the backend.
//!
//! A process keeps all of its entries in a queue with one request, by one task for each queue. So a
//! waiter sleeps until a push for it. The answer tells which entries are gone: their waiters ask.
//! If the lease in the way has ended, the same request grants it to the next waiter in the fleet.

use std::{
    collections::BTreeMap,
    mem::take,
    sync::{Arc, Mutex},
    time::Duration,
};

use hashbrown::HashMap;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::debug;

use super::Engine;
use crate::{
    backend::{Change, Claim, Kept, SemaphoreKind, channels::Inbox},
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
const REPEAT: Duration = Duration::from_millis(100);
/// How many waiters of a queue are named in one request: those that have slept longest.
const NAMED: usize = 32;
/// After the end of a lease in the way, the processes look at random times within this.
const JITTER: Duration = Duration::from_millis(50);

#[derive(Default)]
pub(super) struct Keeper(Mutex<HashMap<KeptQueueKey, Arc<Mutex<KeptQueue>>>>);

type KeptQueueKey = (Name, SemaphoreKind);

struct KeptQueue {
    /// In the order in which they began to sleep.
    waiters: BTreeMap<u64, (Claim, Arc<Inbox>)>,
    last: u64,
    look_at: Instant,
    /// Notified when the task must look earlier than it would.
    earlier: Arc<Notify>,
}

/// A waiter whose queue entry is kept. Dropped, it is kept no more.
pub(super) struct KeptPlace {
    queue: Arc<Mutex<KeptQueue>>,
    number: u64,
}

impl Engine {
    /// Keeps the entry of a claim, which was told that the lease in the way lasts for `remaining`.
    /// Wakes the waiter when its entry is gone.
    pub(super) fn keep_entry(
        self: &Arc<Self>,
        claim: &Claim,
        inbox: Arc<Inbox>,
        remaining: Duration,
    ) -> KeptPlace {
        let key = (claim.name.clone(), SemaphoreKind::from(claim.mode));
        let mut queues = lock(&self.keeper.0);
        let is_new = !queues.contains_key(&key);
        let queue = queues.entry(key.clone()).or_default().clone();
        let number = lock(&queue).enter(claim, inbox, remaining);
        drop(queues);
        if is_new {
            tokio::spawn(KeeperTask { engine: self.clone(), key, queue: queue.clone() }.run());
        }
        KeptPlace { queue, number }
    }
}

impl Keeper {
    #[cfg(feature = "metrics")]
    pub(super) fn entries(&self) -> usize {
        lock(&self.0).values().map(|queue| lock(queue).waiters.len()).sum()
    }

    /// Returns how often each queue is kept. Many queues spread over the interval by chance.
    fn interval(&self) -> Duration {
        let count = u32::try_from(lock(&self.0).len()).unwrap_or(u32::MAX);
        INTERVAL.max(EACH_QUEUE.saturating_mul(count)).mul_f64(1.0 - fastrand::f64() / 10.0)
    }
}

impl Default for KeptQueue {
    fn default() -> Self {
        let (waiters, last, earlier) = Default::default();
        Self { waiters, last, look_at: Instant::now() + INTERVAL, earlier }
    }
}

impl KeptQueue {
    fn enter(&mut self, claim: &Claim, inbox: Arc<Inbox>, remaining: Duration) -> u64 {
        self.last += 1;
        self.waiters.insert(self.last, (claim.clone(), inbox));
        // Its claim has set the deadline of the process anew.
        self.look_after(remaining.min(INTERVAL));
        self.last
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

impl Drop for KeptPlace {
    fn drop(&mut self) {
        lock(&self.queue).waiters.remove(&self.number);
    }
}

/// The task of one queue. It runs on the runtime of a waiter.
struct KeeperTask {
    engine: Arc<Engine>,
    key: KeptQueueKey,
    queue: Arc<Mutex<KeptQueue>>,
}

impl KeeperTask {
    async fn run(self) {
        static SAID: Rarely = Rarely::once_in(1);
        while let Some((look_at, earlier)) = self.next_look() {
            if look_at > Instant::now() {
                tokio::select! {
                    () = sleep_until(look_at) => {}
                    () = earlier.notified() => {}
                }
                continue;
            }
            let (named, claims) = self.named();
            let (sent, interval) = (Instant::now(), self.engine.keeper.interval());
            let answer = self.engine.backend.keep(&claims, interval * ENTRY_LIFE).await;
            if let Err(error) = &answer
                && SAID.first()
            {
                debug!(name = ?self.key.0, error = %Chain(error), "queue entries were not kept");
            }
            lock(&self.queue).answered(&named, sent + interval, answer);
        }
    }

    /// Returns when to look next. Returns `None` if it is time to, and there are no waiters.
    fn next_look(&self) -> Option<(Instant, Arc<Notify>)> {
        let queue = lock(&self.queue);
        let ends = queue.waiters.is_empty() && queue.look_at <= Instant::now();
        (!ends).then(|| (queue.look_at, queue.earlier.clone()))
    }

    /// Returns the waiters that one request names.
    fn named(&self) -> (Vec<u64>, Vec<Claim>) {
        let queue = lock(&self.queue);
        let named = queue.waiters.iter().take(NAMED);
        named.map(|(number, (claim, _))| (*number, claim.clone())).unzip()
    }
}

/// If its runtime is gone, the waiters ask. The first of them to wait again starts another task.
impl Drop for KeeperTask {
    fn drop(&mut self) {
        lock(&self.engine.keeper.0).remove(&self.key);
        let waiters = take(&mut lock(&self.queue).waiters);
        waiters.into_values().for_each(|(_, inbox)| inbox.put(Change::Wake));
    }
}
