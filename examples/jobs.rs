//! Jobs that run once in five processes: one by a schedule of the crate `cron`, one at intervals.
//! Tasks with locks of their own stand for the processes. Their clocks differ by 50 ms.
//!
//! ```text
//! cargo run --example jobs
//! REDIS_URL=redis://127.0.0.1 cargo run --example jobs
//! ```

use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bellwether::{BoxError, ErrorKind, Locks, MemoryBackend, RedisBackend, lock::Turn};
use chrono::{DateTime, Utc};
use cron::Schedule;
use tokio::{task::JoinSet, time::sleep};

const PROCESSES: u32 = 5;
const SECOND: Duration = Duration::from_secs(1);
/// Each second. The fields are second, minute, hour, day, month and weekday.
const SCHEDULE: &str = "* * * * * *";

/// How often each tick was run, by the name of its job.
#[derive(Clone, Default)]
struct Runs(Arc<Mutex<BTreeMap<(&'static str, SystemTime), u32>>>);

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("jobs: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    let open: Box<dyn Fn() -> Result<Locks, BoxError>> = match std::env::var("REDIS_URL") {
        Ok(url) => Box::new(move || Ok(Locks::new(RedisBackend::open(&url)?, "shop"))),
        Err(_) => {
            let backend = MemoryBackend::new();
            Box::new(move || Ok(Locks::new(backend.clone(), "shop")))
        }
    };
    let runs = Runs::default();
    let schedule = SCHEDULE.parse::<Schedule>()?;
    let mut processes = JoinSet::new();
    for number in 0..PROCESSES {
        let locks = open()?;
        let ahead = number * Duration::from_millis(50);
        processes.spawn(send_reports(locks.clone(), schedule.clone(), ahead, runs.clone()));
        processes.spawn(clean_up(locks, runs.clone()));
    }
    // Each job ends with an error only.
    let ended = tokio::time::timeout(4 * SECOND, processes.join_next()).await;
    if let Ok(Some(ended)) = ended {
        ended??;
    }
    for ((job, tick), count) in runs.0.lock().map_err(|_| "a job panicked")?.iter() {
        println!("{job} of {:.1} s: {count} run", tick.duration_since(UNIX_EPOCH)?.as_secs_f64());
        assert_eq!(*count, 1, "a tick ran twice");
    }
    Ok(())
}

/// Runs a job by a schedule.
async fn send_reports(
    locks: Locks,
    schedule: Schedule,
    ahead: Duration,
    runs: Runs,
) -> Result<(), bellwether::Error> {
    // The time as this process sees it.
    let now = || SystemTime::now() + ahead;
    let mut next = next_in_schedule(&schedule, now());
    while let Some(tick) = next {
        sleep(tick.duration_since(now()).unwrap_or_default()).await;
        // Every process asks for the same tick, and one gets a turn.
        match locks.once("report", tick).begin().await {
            Ok(Some(turn)) => {
                if let Err(error) = send_report(turn, &runs).await {
                    eprintln!("the report was not sent: {error}");
                }
            }
            // Another process has it, or had it.
            Ok(None) => {}
            // The server is away for a moment. A tick may be asked for again, and late.
            Err(error) if matches!(error.kind(), ErrorKind::Backend | ErrorKind::Lost) => {
                eprintln!("jobs: {error}");
                sleep(SECOND).await;
                continue;
            }
            Err(error) => return Err(error),
        }
        // Not from now on: a tick that came during a long run or an outage is asked for, too.
        next = next_in_schedule(&schedule, tick);
    }
    Ok(())
}

/// Does the work of one turn. An error belongs to this turn, and the next one tells of it.
async fn send_report(turn: Turn, runs: &Runs) -> Result<(), BoxError> {
    let send = || async {
        runs.count("report", turn.tick());
        Ok::<_, BoxError>(())
    };
    // A report that cannot be sent is tried again, up to three times.
    turn.retry(SECOND, 3, send).await??;
    Ok(turn.done().await?)
}

/// Returns the next tick of a schedule, in UTC.
fn next_in_schedule(schedule: &Schedule, now: SystemTime) -> Option<SystemTime> {
    schedule.after(&DateTime::<Utc>::from(now)).next().map(SystemTime::from)
}

/// Runs a job at intervals. The ticks are those of the server, so no clock of a process counts.
async fn clean_up(locks: Locks, runs: Runs) -> Result<(), bellwether::Error> {
    let mut ticks = locks.every("clean-up", Duration::from_millis(700));
    loop {
        // Only an error of `next` ends the loop.
        let turn = ticks.next().await?;
        if let Err(error) = clean_up_once(turn, &runs).await {
            eprintln!("the clean-up failed: {error}");
        }
    }
}

async fn clean_up_once(turn: Turn, runs: &Runs) -> Result<(), bellwether::Error> {
    turn.run(async { runs.count("clean-up", turn.tick()) }).await?;
    turn.done().await
}

impl Runs {
    fn count(&self, job: &'static str, tick: SystemTime) {
        if let Ok(mut runs) = self.0.lock() {
            *runs.entry((job, tick)).or_default() += 1;
        }
    }
}
