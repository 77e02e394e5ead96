//! The shards of a backend that fail apart: a server is one, of a cluster each node. What is known of one of them
//! says nothing of another, and who waits for one that hangs takes no turn from those who ask another.

use std::{
    collections::HashMap,
    sync::{Arc, PoisonError, RwLock},
};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::breaker::Breaker;

/// So many flights ask a shard at once, the others queue: enough to keep a connection busy, and few enough that
/// the answer comes well within the time-out, which must tell of the server and not of our own queue. Ten
/// thousand cold keys at once would otherwise look like a server that is down. As many more may be had at once by who
/// looks first: those are kept by callers who poll their look themselves, and may stop doing so.
const TURNS: usize = 128;

/// When there are so many, those of which nothing need be known are forgotten: nodes come and go.
const WORTH_CLEARING: usize = 64;

pub(super) struct Shard {
    pub(super) breaker: Breaker,
    turns: Semaphore,
    at_once: Semaphore,
}

impl Shard {
    fn new() -> Self {
        let [turns, at_once] = [0, 1].map(|_| Semaphore::new(TURNS));
        Self { breaker: Breaker::default(), turns, at_once }
    }

    /// A turn to ask it, for work in a task of its own. There is none while it does not answer, so that nobody waits
    /// for the time-outs of others.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let turn = match self.turns.try_acquire() {
            Ok(turn) => Some(turn),
            Err(_) => self.turns.acquire().await.ok(),
        };
        turn.filter(|_| !self.breaker.is_open())
    }

    /// A turn to ask it that need not be waited for; none, if there is none. (The inner one is as of
    /// [`turn`](Self::turn).)
    pub(super) fn turn_at_once(&self) -> Option<Option<SemaphorePermit<'_>>> {
        let turn = self.at_once.try_acquire().ok()?;
        Some(Some(turn).filter(|_| !self.breaker.is_open()))
    }
}

/// All shards, by the numbers that the backend gives them.
pub(super) struct Shards {
    /// The one that most backends have.
    first: Arc<Shard>,
    others: RwLock<HashMap<usize, Arc<Shard>>>,
}

impl Shards {
    pub(super) fn new() -> Self {
        Self { first: Arc::new(Shard::new()), others: RwLock::default() }
    }

    pub(super) fn of(&self, number: usize) -> Arc<Shard> {
        if number == 0 {
            return self.first.clone();
        }
        let known =
            self.others.read().unwrap_or_else(PoisonError::into_inner).get(&number).cloned();
        known.unwrap_or_else(|| {
            let mut others = self.others.write().unwrap_or_else(PoisonError::into_inner);
            if others.len() >= WORTH_CLEARING {
                others
                    .retain(|_, shard| Arc::strong_count(shard) > 1 || shard.breaker.is_troubled());
            }
            others.entry(number).or_insert_with(|| Arc::new(Shard::new())).clone()
        })
    }
}
