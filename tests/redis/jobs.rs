//! Jobs of five processes over a real server. Their clocks differ by 50 ms, they are killed and
//! stopped, and a tick still runs once.
//!
//! `cargo test --test redis jobs:: -- --nocapture` prints what became of the ticks.
//! `BELLWETHER_JOBS_SECONDS=60` makes it a tick each second for a minute.

use std::{collections::BTreeMap, future::pending, time::SystemTime};

use bellwether::lock::{PreviousTick, Turn};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::prelude::*;

const PROCESSES: u32 = 5;
/// Shorter than the difference between two clocks, so that each process finds the lock free.
const WORK: Duration = Duration::from_millis(20);

/// The environment variable that makes this process a worker: the URL of the server, what is
/// tested, how far its clock is ahead, and the first tick, in milliseconds.
const VARIABLE: &str = "BELLWETHER_JOB";

/// Returns whether the first turn of a tick goes on until its process is killed or stopped.
fn hangs(number: u32) -> bool {
    number % 8 == 4
}

fn seconds() -> Option<u32> {
    let text = std::env::var("BELLWETHER_JOBS_SECONDS").ok()?;
    Some(text.parse().expect("a number of seconds"))
}

fn period() -> Duration {
    seconds().map_or(300 * MS, |_| Duration::from_secs(1))
}

/// How many ticks a test goes on for.
fn ticks() -> u32 {
    seconds().unwrap_or(20)
}

fn now() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap()
}

// The worker

#[test]
fn worker() {
    let Ok(set_up) = std::env::var(VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let words: Vec<_> = set_up.split(' ').collect();
    let millis = |at: usize| Duration::from_millis(words[at].parse().unwrap());
    let worker = Worker {
        locks: Locks::new(testkit::open(words[0]), "bellwether"),
        ahead: millis(2),
        start: millis(3),
    };
    match words[1] {
        "skip" => runtime.block_on(worker.skips()),
        _ => runtime.block_on(worker.runs_again()),
    }
}

struct Worker {
    locks: Locks,
    ahead: Duration,
    start: Duration,
}

impl Worker {
    fn tick(&self, number: u32) -> Duration {
        self.start + number * period()
    }

    /// Sleeps until a tick, by the clock of this process.
    async fn sleep_until(&self, number: u32) {
        sleep(self.tick(number).saturating_sub(now() + self.ahead)).await;
    }

    /// Returns the number of the next tick, by the clock of this process.
    fn next(&self) -> u32 {
        let since = (now() + self.ahead).saturating_sub(self.start);
        u32::try_from(since.as_millis() / period().as_millis()).unwrap() + 1
    }

    async fn skips(&self) {
        loop {
            let number = self.next();
            self.sleep_until(number).await;
            let tick = SystemTime::UNIX_EPOCH + self.tick(number);
            let job = self.locks.once("job", tick).lease(2 * period());
            if let Some(turn) = job.begin().await.unwrap() {
                self.work(number, turn).await.ok();
            }
        }
    }

    /// Asks for each tick until it is done, as a process does that must miss none.
    async fn runs_again(&self) {
        for number in 0.. {
            self.sleep_until(number).await;
            let tick = SystemTime::UNIX_EPOCH + self.tick(number);
            let job = self.locks.once("job", tick).lease(2 * period()).at_least_once();
            while let Some(turn) = job.begin().await.unwrap() {
                self.work(number, turn).await.ok();
            }
        }
    }

    async fn work(&self, number: u32, turn: Turn) -> Result<(), Error> {
        let previous = turn.previous().map(|previous| {
            let (PreviousTick::Done(tick) | PreviousTick::Crashed(tick)) = previous;
            let since = tick.duration_since(SystemTime::UNIX_EPOCH).unwrap();
            let at = (since - self.start).as_millis() / period().as_millis();
            (u32::try_from(at).unwrap(), matches!(previous, PreviousTick::Done(_)))
        });
        let (before, is_done) = previous.unzip();
        let is_first = before != Some(number);
        let [before, is_done] =
            [before.map(|value| value.to_string()), is_done.map(|value| value.to_string())];
        let of = |text: Option<String>| text.unwrap_or("none".into());
        println!("\nbegan {number} {} {} {}", of(before), of(is_done), turn.fence());
        if is_first && hangs(number) {
            turn.run(pending()).await?
        } else {
            turn.run(sleep(WORK)).await?
        }
        turn.done().await?;
        println!("\ndone {number}");
        Ok(())
    }
}

// The fleet

/// A turn that a process has begun.
#[derive(Clone, Debug)]
struct Began {
    process: usize,
    number: u32,
    /// The tick before it, and whether that was done.
    previous: Option<(u32, bool)>,
    fence: u64,
}

struct Fleet {
    children: Vec<Process>,
    lines: UnboundedReceiver<(usize, String)>,
    began: Vec<Began>,
    /// How often the turn of each tick was done.
    done: BTreeMap<u32, u32>,
    _server: RedisServer,
}

impl Fleet {
    async fn start(what: &str) -> Self {
        let server = RedisServer::start().await;
        let start = (now() + 2 * period()).as_millis();
        let (sender, lines) = unbounded_channel();
        let children = (0..PROCESSES).map(|at| {
            let set_up = format!("{} {what} {} {start}", server.url(), at * 50);
            let mut child = Process::start("jobs::worker", [(VARIABLE, set_up)]);
            child.forward(sender.clone(), move |line| Some((at as usize, line.to_owned())));
            child
        });
        let children = children.collect();
        Self { children, lines, began: Vec::new(), done: BTreeMap::new(), _server: server }
    }

    /// Waits for the next turn that begins.
    async fn next(&mut self) -> Began {
        loop {
            let line = timeout(LIMIT, self.lines.recv()).await.expect("no tick runs");
            let (process, line) = line.expect("all processes have ended");
            let words: Vec<_> = line.split(' ').collect();
            if let ["done", number] = words[..] {
                *self.done.entry(number.parse().unwrap()).or_default() += 1;
            }
            if let ["began", number, rest @ ..] = &words[..] {
                let previous = rest.first().and_then(|before| before.parse().ok());
                let began = Began {
                    process,
                    number: number.parse().unwrap(),
                    previous: previous.map(|before| (before, rest[1] == "true")),
                    fence: rest.get(2).map_or(0, |fence| fence.parse().unwrap()),
                };
                self.began.push(began.clone());
                return began;
            }
        }
    }

    /// Goes on for some ticks. Of those that hang, each second one has its process killed. The
    /// process of the others stands still until another one has begun a turn.
    async fn run(&mut self) {
        let mut faults = 0;
        let mut stopped = None::<usize>;
        loop {
            let began = self.next().await;
            if let Some(stopped) = stopped.take() {
                self.children[stopped].signal("CONT");
            }
            let is_first = began.previous.is_none_or(|(before, _)| before != began.number);
            if is_first && hangs(began.number) {
                faults += 1;
                match faults % 2 {
                    0 => self.children[began.process].kill().await,
                    _ => {
                        self.children[began.process].signal("STOP");
                        stopped = Some(began.process);
                    }
                }
            } else if began.number >= ticks() {
                assert!(faults >= 2, "{faults} faults");
                return;
            }
        }
    }
}

/// No tick runs twice. Each runs, or the next turn tells that it crashed or was missed.
#[tokio::test]
async fn each_tick_runs_at_most_once_and_the_others_are_told() {
    let mut fleet = Fleet::start("skip").await;
    fleet.run().await;
    let mut missed = 0;
    let mut crashed = 0;
    for pair in fleet.began.windows(2) {
        let [last, next] = pair else { continue };
        assert!(next.number > last.number && next.fence > last.fence, "{last:?}, {next:?}");
        let was_done = fleet.done.contains_key(&last.number);
        assert_eq!(next.previous, Some((last.number, was_done)), "{last:?}, {next:?}");
        missed += next.number - last.number - 1;
        crashed += u32::from(!was_done);
    }
    let ran = fleet.done.len();
    println!("{ran} ticks ran, {crashed} crashed, {missed} were missed");
    assert!(fleet.done.values().all(|done| *done == 1), "{:?}", fleet.done);
    assert!(crashed >= 2 && ran > 5, "{ran} ran, {crashed} crashed");
}

#[tokio::test]
async fn a_tick_that_crashes_runs_again_and_none_is_lost() {
    let mut fleet = Fleet::start("again").await;
    fleet.run().await;
    let again = fleet.began.windows(2).filter(|pair| pair[0].number == pair[1].number).count();
    println!("{} ticks ran, {again} of them again", fleet.done.len());
    assert!(again >= 2, "{again} ran again");
    assert!(fleet.began.windows(2).all(|pair| pair[1].fence > pair[0].fence));
    // The last one may be under way.
    let expected: Vec<_> = (0..ticks()).map(|number| (number, 1)).collect();
    let done: Vec<_> = fleet.done.into_iter().take(expected.len()).collect();
    assert_eq!(done, expected);
}

/// The clock of one replica is a year ahead. The server compares with its own time.
#[tokio::test]
async fn a_replica_whose_clock_is_a_year_ahead_stops_nobody() {
    const DAY: Duration = Duration::from_secs(86_400);
    let server = RedisServer::start().await;
    let open = || Locks::new(testkit::open(server.url()), "bellwether");
    let ahead = open();
    let others = open();
    let far = SystemTime::now() + 365 * DAY;
    let error = ahead.once("report", far).begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    for day in 0..5 {
        let tick = SystemTime::now() - (4 - day) * DAY;
        let turn = others.once("report", tick).begin().await.unwrap();
        turn.expect("the tick of a year ahead was begun").done().await.unwrap();
    }
    // It is shown and removed, also where something foreign stands.
    let job = ahead.once("report", far).max_ahead(400 * DAY);
    drop(job.begin().await.unwrap().unwrap());
    let mark = others.once("report", far).mark().await.unwrap().unwrap();
    assert!(!mark.is_done && mark.tick > mark.server_time, "{mark:?}");
    assert!(job.clear_mark().await.unwrap());
    assert_eq!(job.mark().await.unwrap(), None);
    let mut raw = server.raw().await;
    raw.run::<()>(&["RPUSH", "bellwether:l:{report}:m", "foreign"]).await;
    assert_eq!(job.mark().await.unwrap(), None);
    assert!(job.clear_mark().await.unwrap());
    assert_eq!(raw.keys("*:m").await, [""; 0]);
}
