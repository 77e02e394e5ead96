//! One round: a server, a few workers, faults, and the collected events.

use std::time::Duration;

use fastrand::Rng;
use testkit::{LIMIT, RedisServer};
use tokio::{
    sync::{Mutex, mpsc},
    task::JoinSet,
    time::{Instant, timeout},
};

use super::{
    checker::SLACK,
    faults::{Faults, inject_server_faults, inject_worker_faults},
    history::{Event, History, Line, Process, Time, now},
    worker::{Setup, VARIABLE, Workload},
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
        let pauses = |rng: &mut Rng| [0, 400, 900][rng.usize(0..3)];
        let workers_ms = pauses(&mut rng);
        let server_ms = pauses(&mut rng);
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
        let names = (self.load.keys, self.load.locks);
        let (of_workers, (of_server, evicted)) = tokio::join!(
            inject_worker_faults(&fleet, self.faults, workers, end),
            inject_server_faults(&server, self.faults, names, others, end),
        );
        tokio::time::sleep_until(end).await;
        let mut history = fleet.into_inner().end().await;
        history.evicted = evicted;
        history.windows = Some(self.load.windows(SLACK));
        (history, of_workers + of_server)
    }
}

/// The worker processes of a round, which end when the fleet is dropped.
pub struct Fleet {
    setup: Setup,
    workers: Vec<Worker>,
    told: mpsc::UnboundedSender<(Process, Line)>,
    lines: mpsc::UnboundedReceiver<(Process, Line)>,
    /// The tasks that read the output of the workers, also of those that were killed.
    readers: JoinSet<()>,
    history: History,
}

struct Worker {
    process: Process,
    child: testkit::Process,
}

impl Fleet {
    pub async fn start(workers: usize, setup: Setup) -> Self {
        let (told, lines) = mpsc::unbounded_channel();
        let history = History::default();
        let readers = JoinSet::new();
        let mut fleet = Self { setup, workers: Vec::new(), told, lines, readers, history };
        for _ in 0..workers {
            let worker = fleet.spawn();
            fleet.workers.push(worker);
        }
        for _ in 0..workers {
            fleet
                .wait_for(|event| matches!(event, Event::Ready))
                .await
                .expect("a worker did not start");
        }
        fleet
    }

    fn spawn(&mut self) -> Worker {
        self.setup.process += 1;
        let process = self.setup.process;
        let mut child = testkit::Process::start("worker", [(VARIABLE, self.setup.to_string())]);
        let event = move |line: &str| Some((process, serde_json::from_str(line).ok()?));
        let reader = child.forward(self.told.clone(), event);
        self.readers.spawn(async move { reader.await.unwrap() });
        Worker { process, child }
    }

    /// Records events until one of a kind arrives. Returns `None` if none arrives in time.
    async fn wait_for(&mut self, kind: impl Fn(&Event) -> bool) -> Option<Process> {
        loop {
            let (process, line) = timeout(LIMIT, self.lines.recv()).await.ok()??;
            let found = kind(&line.event);
            self.history.lines.push((process, line));
            if found {
                return Some(process);
            }
        }
    }

    fn worker(&mut self, number: usize) -> &mut Worker {
        let count = self.workers.len();
        &mut self.workers[number % count]
    }

    /// Sends a signal, and returns the process that got it.
    pub fn signal(&mut self, number: usize, signal: &str) -> Process {
        let worker = self.worker(number);
        worker.child.signal(signal);
        worker.process
    }

    /// Records that a process was suspended until now.
    pub fn suspended(&mut self, process: Process, from: Time) {
        let line = Line { at: now(), event: Event::Paused { from } };
        self.history.lines.push((process, line));
    }

    /// Kills a process with `SIGKILL`.
    pub async fn kill(&mut self, number: usize) {
        let before = now();
        let worker = self.worker(number);
        let process = worker.process;
        worker.child.kill().await;
        self.history.killed.push((process, before, now()));
    }

    pub async fn start_again(&mut self, number: usize) {
        let worker = self.spawn();
        *self.worker(number) = worker;
    }

    /// Waits until every caller has its answer, and ends the workers.
    async fn end(mut self) -> History {
        let mut waiting: Vec<_> = self.workers.iter().map(|worker| worker.process).collect();
        for worker in &mut self.workers {
            // A worker that has ended already did so by a panic, and counts as hanging.
            worker.child.tell("stop").await;
        }
        while !waiting.is_empty()
            && let Some(process) = self.wait_for(|event| matches!(event, Event::Done { .. })).await
        {
            waiting.retain(|other| *other != process);
        }
        self.history.hanging = waiting;
        // The processes end here at the latest. Events that they wrote may still be on their way.
        self.workers.clear();
        timeout(LIMIT, self.readers.join_all()).await.expect("the output of a worker has no end");
        while let Ok(line) = self.lines.try_recv() {
            self.history.lines.push(line);
        }
        self.history
    }
}
