//! The side of the test: worker processes, and the events that they have written so far.

use std::time::Duration;

use testkit::{LIMIT, Process};
use tokio::{
    sync::{Mutex, MutexGuard, mpsc},
    time::timeout,
};

use super::protocol::{Command, Event, Report, Round, Setup, VARIABLE, now};

/// Serialises the fleets. They measure times, and a second one would take the processor from the
/// first.
static TURN: Mutex<()> = Mutex::const_new(());

/// The time between the command for a round and its beginning, in which all its callers get ready.
const LEAD_TIME: Duration = Duration::from_millis(30);

/// Worker processes over one server, which end when the fleet is dropped.
pub struct Fleet {
    workers: Vec<Process>,
    events: mpsc::UnboundedReceiver<(usize, Event)>,
    _turn: MutexGuard<'static, ()>,
}

/// The events of a round in the whole fleet.
#[derive(Debug, Default)]
pub struct Played {
    /// The loads in the order of their beginning, each with its process, its key and its time.
    pub begun: Vec<(usize, String, u64)>,
    pub ended: Vec<(usize, String, u64)>,
    pub reports: Vec<(usize, Report)>,
}

impl Fleet {
    pub async fn start(processes: usize, setup: &Setup) -> Self {
        let turn = TURN.lock().await;
        let (tell, events) = mpsc::unbounded_channel();
        let workers = (0..processes).map(|number| {
            let setup = serde_json::to_string(setup).unwrap();
            let mut worker = Process::start("worker", [(VARIABLE, setup)]);
            let event = move |line: &str| Some((number, serde_json::from_str(line).ok()?));
            worker.forward(tell.clone(), event);
            worker
        });
        let mut fleet = Self { workers: workers.collect(), events, _turn: turn };
        for _ in 0..processes {
            let (_, event) = fleet.next().await;
            assert!(matches!(event, Event::Ready), "{event:?}");
        }
        fleet
    }

    pub fn processes(&self) -> usize {
        self.workers.len()
    }

    pub async fn tell(&mut self, process: usize, command: &Command) {
        self.workers[process].tell(&serde_json::to_string(command).unwrap()).await;
    }

    pub async fn next(&mut self) -> (usize, Event) {
        let event = timeout(LIMIT * 3, self.events.recv()).await;
        event.expect("no worker wrote an event in time").expect("every worker has ended")
    }

    /// Lets some processes play a round, all at the same time.
    pub async fn begin(&mut self, processes: &[usize], mut round: Round) {
        let lead_time = LEAD_TIME + Duration::from_micros(20) * round.callers as u32;
        round.at = now() + u64::try_from(lead_time.as_micros()).unwrap();
        for process in processes {
            self.tell(*process, &Command::Round(round.clone())).await;
        }
    }

    /// Waits until so many loads have begun, and so many processes have reported.
    pub async fn until(&mut self, played: &mut Played, loads: usize, reports: usize) {
        while played.begun.len() < loads || played.reports.len() < reports {
            let (process, event) = self.next().await;
            played.take(process, event);
        }
    }

    /// Plays a whole round in all processes.
    pub async fn play(&mut self, round: Round) -> Played {
        let all: Vec<_> = (0..self.processes()).collect();
        self.begin(&all, round).await;
        let mut played = Played::default();
        self.until(&mut played, 0, all.len()).await;
        played
    }

    /// Waits for an event that a function recognises, and skips others.
    pub async fn wait_for<T>(&mut self, mut wanted: impl FnMut(usize, Event) -> Option<T>) -> T {
        loop {
            let (process, event) = self.next().await;
            if let Some(found) = wanted(process, event) {
                return found;
            }
        }
    }

    pub fn worker(&mut self, process: usize) -> &mut Process {
        &mut self.workers[process]
    }
}

impl Played {
    fn take(&mut self, process: usize, event: Event) {
        match event {
            Event::LoadBegun { key, at } => self.begun.push((process, key, at)),
            Event::LoadEnded { key, at } => self.ended.push((process, key, at)),
            Event::Report(report) => self.reports.push((process, report)),
            _ => {}
        }
    }

    /// Returns the process that led the only load.
    pub fn leader(&self) -> usize {
        assert_eq!(self.begun.len(), 1, "the fleet did not load exactly once: {self:#?}");
        self.begun[0].0
    }

    /// Returns the number of callers that had their value from a source.
    pub fn source(&self, source: &str) -> usize {
        self.reports.iter().map(|(_, report)| report.source(source)).sum()
    }

    /// Returns the number of callers that had an error.
    pub fn errors(&self) -> usize {
        self.reports.iter().map(|(_, report)| report.errors.values().sum::<usize>()).sum()
    }

    /// Asserts that all callers had the same value, and that there were as many as given.
    pub fn assert_one_value(&self, callers: usize) {
        let values: Vec<_> = self.reports.iter().flat_map(|(_, report)| &report.values).collect();
        assert!(
            values.windows(2).all(|two| two[0].0 == two[1].0),
            "the callers have different values: {self:#?}"
        );
        let served: usize = values.iter().map(|(_, count)| **count).sum();
        assert_eq!(served, callers, "the number of served callers differs: {self:#?}");
    }

    /// Returns the time from the first question to the last answer.
    pub fn took(&self) -> Duration {
        let began = self.reports.iter().map(|(_, report)| report.began).min().unwrap();
        let ended = self.reports.iter().map(|(_, report)| report.ended).max().unwrap();
        Duration::from_micros(ended - began)
    }

    /// Returns the time from the end of the only load to the answer of the last caller.
    pub fn last_after_load(&self) -> Duration {
        assert_eq!(self.ended.len(), 1);
        let last = self.reports.iter().map(|(_, report)| report.ended).max().unwrap();
        Duration::from_micros(last.saturating_sub(self.ended[0].2))
    }
}

impl Report {
    pub fn source(&self, source: &str) -> usize {
        self.sources.get(source).copied().unwrap_or(0)
    }
}
