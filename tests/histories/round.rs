//! One round: a server, a fleet of workers, and their faults.

use std::time::Duration;

use fastrand::Rng;
use testkit::RedisServer;
use tokio::{
    sync::Mutex,
    time::{Instant, sleep_until},
};

use super::{
    checker::SLACK,
    faults::{Faults, Names, inject_server_faults, inject_worker_faults},
    fleet::Fleet,
    history::History,
    worker::{Setup, Workload},
};

const WORKERS: usize = 4;

/// The plan of a round.
#[derive(Clone, Debug)]
pub struct Round {
    pub seed: u64,
    pub time: Duration,
    pub load: Workload,
    pub faults: Faults,
}

impl Round {
    /// Plans the round of a seed: its callers, its faults and their times.
    pub fn new(seed: u64, time: Duration) -> Self {
        let mut rng = Rng::with_seed(seed);
        let load = Workload {
            keys: rng.usize(2..=4),
            locks: 2,
            callers: rng.usize(3..=8),
            lockers: 4,
            writes: [0, 5, 30, 200][rng.usize(0..4)],
            lease_ms: 600,
            ttl_ms: [20, 60, 300][rng.usize(0..3)],
            stale_ms: [0, 50, 300][rng.usize(0..3)],
            error_ms: [0, 200, 500][rng.usize(0..3)],
            early: rng.bool(),
            cancel: rng.bool(),
            backs_off: rng.bool(),
            tags: rng.bool(),
        };
        let workers_ms = [0, 400, 900][rng.usize(0..3)];
        let server_ms = [0, 400, 900][rng.usize(0..3)];
        let faults = Faults { workers_ms, server_ms, cuts: rng.bool() };
        Self { seed, time, load, faults }
    }

    /// Plays the round over a server of its own, and returns the history and the number of faults.
    pub async fn play(&self) -> (History, usize) {
        let server = RedisServer::start().await;
        let setup =
            Setup { url: server.url(), process: 0, seed: self.seed, load: self.load.clone() };
        let fleet = Mutex::new(Fleet::start(WORKERS, setup).await);
        let end = Instant::now() + self.time;
        let mut rng = Rng::with_seed(self.seed ^ 0x0bad_f1e5);
        let workers = rng.fork();
        let others = rng.fork();
        let names = Names { keys: self.load.keys, locks: self.load.locks };
        let (of_workers, (of_server, evicted)) = tokio::join!(
            inject_worker_faults(&fleet, self.faults, workers, end),
            inject_server_faults(&server, self.faults, names, others, end),
        );
        sleep_until(end).await;
        let mut history = fleet.into_inner().end().await;
        history.evicted = evicted;
        history.windows = Some(self.load.windows(SLACK));
        (history, of_workers + of_server)
    }
}
