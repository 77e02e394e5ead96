//! The worker processes of a round, and the events that the processes write.

use testkit::LIMIT;
use tokio::{sync::mpsc, task::JoinSet, time::timeout};

use super::{
    history::{Event, History, Line, Process, Time, now},
    worker::{Setup, VARIABLE},
};

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
            let ready = fleet.wait_for(|event| matches!(event, Event::Ready)).await;
            ready.expect("a worker did not start");
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
    pub async fn end(mut self) -> History {
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
