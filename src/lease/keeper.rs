//! Keeps the queue entries of this process at the backend.
//!
//! One task for each queue keeps all entries of this process in the queue, with one request. So a
//! waiter sleeps until a push comes. The answer to the request says which entries are gone, and the
//! waiters of these entries send their claims again. If the lease in the way has ended, the same
//! request grants the lease to the next waiter in the fleet.

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
    backend::{Change, Claim, Kept, Leases, QUEUE_ENTRY_LIFE, SemaphoreKind, channels::Inbox},
    error::{BackendError, BackendErrorKind, Chain},
    key::Name,
    observe::Rarely,
    random::{self, Hasher},
    time::after,
};

/// How often the entries of a queue are kept. Two requests may fail before the entries end.
const INTERVAL: Duration = Duration::from_millis(640);
/// How long a kept entry lasts, in intervals.
const ENTRY_LIFE: u32 = 3;
/// Queues beyond 1,280 lengthen the interval, so that a process sends 2,000 requests a second.
const EACH_QUEUE: Duration = Duration::from_micros(500);
/// The pause after a request that failed.
const REPEAT: Duration = Duration::from_millis(100);
/// How many claims of a queue one request names: the claims that have slept longest.
const NAMED: usize = 32;
/// After the end of a lease in the way, the processes send their requests at random times within
/// this.
const JITTER: Duration = Duration::from_millis(50);

/// The queues in which the callers of one engine wait.
pub(super) struct Keeper {
    backend: Arc<dyn Leases>,
    queues: DashMap<QueueKey, KeptQueue, Hasher>,
    /// The number of the last waiter. No two waiters have the same number. So a waiter that leaves
    /// late removes no other waiter from the next queue of the same name.
    last: AtomicU64,
}

pub(super) type QueueKey = (Name, SemaphoreKind);

struct KeptQueue {
    /// The waiters, by their numbers, in the order in which the waiters began to sleep.
    waiters: BTreeMap<u64, KeptWaiter>,
    /// When the task sends the next request.
    next_keep: Instant,
    /// Notified when `next_keep` becomes earlier.
    earlier: Arc<Notify>,
    /// How long the last request that was answered keeps the entries.
    kept_until: Instant,
    /// The last request had no answer.
    has_failed: bool,
}

struct KeptWaiter {
    claim: Claim,
    inbox: Arc<Inbox>,
}

/// A queue entry that is kept until this is dropped.
pub(super) struct KeptEntry {
    keeper: Arc<Keeper>,
    key: QueueKey,
    number: u64,
}

impl Keeper {
    pub(super) fn new(backend: Arc<dyn Leases>) -> Arc<Self> {
        Arc::new(Self { backend, queues: DashMap::default(), last: AtomicU64::new(0) })
    }

    /// Keeps the entry of a claim. The lease in the way lasts for `remaining`. Wakes the waiter
    /// when the entry is gone.
    pub(super) fn keep(
        self: &Arc<Self>,
        claim: &Claim,
        inbox: Arc<Inbox>,
        remaining: Duration,
    ) -> KeptEntry {
        let key = (claim.name.clone(), SemaphoreKind::from(claim.mode));
        let number = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        let waiter = KeptWaiter { claim: claim.clone(), inbox };
        let is_new = match self.queues.entry(key.clone()) {
            Entry::Occupied(mut queue) => {
                queue.get_mut().enter(number, waiter, remaining);
                false
            }
            Entry::Vacant(queue) => {
                let mut queue = queue.insert(KeptQueue::default());
                queue.enter(number, waiter, remaining);
                true
            }
        };
        if is_new {
            let task = KeeperTask { keeper: self.clone(), key: key.clone(), has_ended: false };
            tokio::spawn(task.run());
        }
        KeptEntry { keeper: self.clone(), key, number }
    }

    #[cfg(feature = "metrics")]
    pub(super) fn entries(&self) -> usize {
        self.queues.iter().map(|queue| queue.waiters.len()).sum()
    }

    /// Returns how many callers sleep in each queue that has waiters.
    pub(super) fn waiters(&self) -> Vec<(QueueKey, usize)> {
        let mut waiters = Vec::new();
        for queue in &self.queues {
            if !queue.waiters.is_empty() {
                waiters.push((queue.key().clone(), queue.waiters.len()));
            }
        }
        waiters
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
            next_keep: Instant::now() + INTERVAL,
            earlier: Arc::default(),
            kept_until: Instant::now() + QUEUE_ENTRY_LIFE,
            has_failed: false,
        }
    }
}

impl KeptQueue {
    fn enter(&mut self, number: u64, waiter: KeptWaiter, remaining: Duration) {
        self.waiters.insert(number, waiter);
        // The claim of the waiter has just prolonged all entries of this process.
        self.keep_after(remaining.min(INTERVAL));
    }

    /// Brings the next request forward to soon after the end of the lease in the way, unless the
    /// request is due earlier.
    fn keep_after(&mut self, remaining: Duration) {
        let remaining = remaining.saturating_add(random::up_to(JITTER));
        let next_keep = after(Instant::now(), remaining);
        if next_keep < self.next_keep {
            self.next_keep = next_keep;
            self.earlier.notify_one();
        }
    }

    /// Sets the time of the request after the one that begins. A waiter that comes during this
    /// request may bring that time forward.
    fn request_begins(&mut self, next_keep: Instant) {
        self.next_keep = next_keep;
    }

    /// Takes the answer to a request that named these waiters, and that keeps the entries until
    /// `kept_until`. Wakes the waiters whose entries are gone, and brings the next request forward.
    fn answered(&mut self, named: &[u64], kept_until: Instant, answer: Result<Kept, BackendError>) {
        let now = Instant::now();
        match answer {
            Ok(kept) => {
                // A request whose answer was lost may have noticed that the entries had lapsed.
                let has_lapsed = kept.has_lapsed || self.has_failed && now > self.kept_until;
                self.has_failed = false;
                self.kept_until = kept_until;
                if has_lapsed {
                    self.wake_all();
                }
                for (number, stands) in named.iter().zip(kept.stands) {
                    if !stands {
                        self.wake(*number);
                    }
                }
                if !has_lapsed && !kept.remaining.is_zero() {
                    self.keep_after(kept.remaining);
                }
            }
            Err(error) => {
                if error.kind() == BackendErrorKind::Foreign {
                    self.wake_all();
                }
                self.has_failed = true;
                self.next_keep = now + REPEAT;
            }
        }
    }

    /// Wakes a waiter whose entry is gone, so that the waiter sends its claim again. Until then the
    /// waiter is not in the queue, and so a waiter that is not polled delays no other waiter.
    fn wake(&mut self, number: u64) {
        if let Some(waiter) = self.waiters.remove(&number) {
            waiter.inbox.put(Change::Wake);
        }
    }

    /// Wakes all waiters of the queue.
    fn wake_all(&mut self) {
        for waiter in take(&mut self.waiters).into_values() {
            waiter.inbox.put(Change::Wake);
        }
    }
}

impl Drop for KeptEntry {
    fn drop(&mut self) {
        if let Some(mut queue) = self.keeper.queues.get_mut(&self.key) {
            queue.waiters.remove(&self.number);
        }
    }
}

/// The task of one queue. The task runs on the runtime of a waiter.
struct KeeperTask {
    keeper: Arc<Keeper>,
    key: QueueKey,
    /// The task has removed its queue. Another queue of the same key has a task of its own.
    has_ended: bool,
}

/// What the task of a queue does next.
enum KeeperStep {
    /// Wait until this time, or until the next request is due earlier.
    Wait(Instant, Arc<Notify>),
    /// Keep the entries, and name the claims of these waiters.
    Keep { named: Vec<u64>, claims: Vec<Claim> },
    /// End, because there are no waiters.
    End,
}

impl KeeperTask {
    async fn run(mut self) {
        loop {
            match self.next() {
                KeeperStep::Keep { named, claims } => self.keep(&named, &claims).await,
                KeeperStep::Wait(next_keep, earlier) => {
                    tokio::select! {
                        () = sleep_until(next_keep) => {}
                        () = earlier.notified() => {}
                    }
                }
                KeeperStep::End => {
                    self.has_ended = true;
                    return;
                }
            }
        }
    }

    /// Sends the request that keeps the entries, and handles the answer.
    async fn keep(&self, named: &[u64], claims: &[Claim]) {
        static LOGGED: Rarely = Rarely::once_in(1);
        let sent = Instant::now();
        let interval = self.keeper.interval();
        if let Some(mut queue) = self.keeper.queues.get_mut(&self.key) {
            queue.request_begins(sent + interval);
        }
        let life = interval * ENTRY_LIFE;
        let answer = self.keeper.backend.keep(claims, life).await;
        if let Err(error) = &answer
            && LOGGED.first()
        {
            debug!(name = ?self.key.0, error = %Chain(error), "queue entries were not kept");
        }
        if let Some(mut queue) = self.keeper.queues.get_mut(&self.key) {
            queue.answered(named, sent + life, answer);
        }
    }

    /// Returns the next step. Removes the queue if it has no waiters.
    fn next(&self) -> KeeperStep {
        let Entry::Occupied(queue) = self.keeper.queues.entry(self.key.clone()) else {
            return KeeperStep::End;
        };
        let KeptQueue { waiters, next_keep, earlier, .. } = queue.get();
        if *next_keep > Instant::now() {
            return KeeperStep::Wait(*next_keep, earlier.clone());
        }
        if waiters.is_empty() {
            // The entry is still locked, so a waiter that comes now creates another queue.
            queue.remove();
            return KeeperStep::End;
        }
        let mut named = Vec::new();
        let mut claims = Vec::new();
        for (number, waiter) in waiters.iter().take(NAMED) {
            named.push(*number);
            claims.push(waiter.claim.clone());
        }
        KeeperStep::Keep { named, claims }
    }
}

/// If the runtime of the task ends, the waiters send their claims again. The first waiter that
/// sleeps again starts another task.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::{Changes, Mode},
        key::{Family, Key, Namespace},
    };

    /// The answer put the next request off, although the lease in the way of a new waiter ended
    /// before that.
    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_comes_during_a_request_brings_the_next_request_forward()
    -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let mut queue = KeptQueue::default();
        let now = Instant::now();
        queue.request_begins(now + INTERVAL);
        let claim = Claim::new(name, Mode::Fair, INTERVAL, INTERVAL);
        let inbox = Changes::none().inbox().clone();
        queue.enter(1, KeptWaiter { claim, inbox }, JITTER);
        let answer = Kept { remaining: 2 * INTERVAL, ..Kept::default() };
        queue.answered(&[], now + ENTRY_LIFE * INTERVAL, Ok(answer));
        assert!(queue.next_keep <= now + 2 * JITTER);
        Ok(())
    }

    /// Each answer takes longer than the entries have left when its request is sent. No request
    /// fails, so no answer that said more was lost.
    #[tokio::test(start_paused = true)]
    async fn slow_answers_wake_no_waiter() -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let mut queue = KeptQueue::default();
        let claim = Claim::new(name, Mode::Fair, INTERVAL, INTERVAL);
        let inbox = Changes::none().inbox().clone();
        queue.enter(1, KeptWaiter { claim, inbox }, INTERVAL);
        let slow = ENTRY_LIFE * INTERVAL * 2 / 3;
        for _ in 0..4 {
            let kept_until = Instant::now() + ENTRY_LIFE * INTERVAL;
            tokio::time::advance(slow).await;
            let kept = Kept { stands: vec![true], ..Kept::default() };
            queue.answered(&[1], kept_until, Ok(kept));
            assert_eq!(queue.waiters.len(), 1);
        }
        Ok(())
    }

    /// A request that failed late was repeated at once.
    #[tokio::test(start_paused = true)]
    async fn a_pause_follows_each_request_that_failed() {
        let mut queue = KeptQueue::default();
        let now = Instant::now();
        queue.request_begins(now + INTERVAL);
        tokio::time::advance(2 * INTERVAL).await;
        let error = BackendError::new(BackendErrorKind::Unknown, "no answer");
        queue.answered(&[], now, Err(error));
        assert_eq!(queue.next_keep, Instant::now() + REPEAT);
    }
}
