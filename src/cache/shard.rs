//! The shards of a backend, which fail apart: a server is one, and so is each node of a cluster.
//!
//! A breaker and a queue of its own for each shard keep a shard that hangs from slowing down
//! callers of the others.

use tokio::sync::{Semaphore, SemaphorePermit};

use super::breaker::Breaker;

/// How many flights may ask a shard at once, while the others queue. They are enough to keep a
/// connection busy, and few enough for an answer well within the time-out. Otherwise ten thousand
/// cold keys at once would look like a server that is down.
const TURNS: usize = 128;

pub(super) struct Shard {
    pub(super) breaker: Breaker,
    /// Turns of flights whose work has a task of its own.
    turns: Semaphore,
    /// Turns of flights whose work their caller polls. They are not queued for, because the caller
    /// may stop polling.
    pub(super) at_once: Semaphore,
}

impl Default for Shard {
    fn default() -> Self {
        let [turns, at_once] = [0, 1].map(|_| Semaphore::new(TURNS));
        Self { breaker: Breaker::default(), turns, at_once }
    }
}

impl Shard {
    /// Waits for a turn to ask the shard. `None` while the shard does not answer, so that no flight
    /// waits for the time-outs of others.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        let turn = match self.turns.try_acquire() {
            Ok(turn) => Some(turn),
            Err(_) => self.turns.acquire().await.ok(),
        };
        turn.filter(|_| !self.breaker.is_open())
    }
}
