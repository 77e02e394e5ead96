//! Jobs that run once in five processes: one by a schedule, one at intervals. Tasks with locks of
//! their own stand for the processes. Their clocks differ by 50 ms.
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

use bellwether::{BoxError, Locks, MemoryBackend, RedisBackend};
use tokio::{task::JoinSet, time::sleep};

const PROCESSES: u32 = 5;
const SECOND: Duration = Duration::from_secs(1);

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
        Ok(url) => Box::new(move || Ok(Locks::new(RedisBackend::open(&url)?))),
        Err(_) => {
            let backend = MemoryBackend::new();
            Box::new(move || Ok(Locks::new(backend.clone())))
        }
    };
    let runs = Runs::default();
    let mut processes = JoinSet::new();
    for number in 0..PROCESSES {
        let (locks, ahead) = (open()?, number * Duration::from_millis(50));
        processes.spawn(send_reports(locks.clone(), ahead, runs.clone()));
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
async fn send_reports(locks: Locks, ahead: Duration, runs: Runs) -> Result<(), bellwether::Error> {
    loop {
        // The time as this process sees it.
        let now = SystemTime::now() + ahead;
        let tick = next_in_schedule(now);
        sleep(tick.duration_since(now).unwrap_or_default()).await;
        // Every process asks for the same tick, and one gets a turn.
        if let Some(turn) = locks.once("report", tick).begin().await? {
            let send = || async {
                runs.count("report", tick);
                Ok::<_, BoxError>(())
            };
            // A report that cannot be sent is tried again, up to three times.
            match turn.retry(SECOND, 3, send).await? {
                Ok(()) => turn.done().await?,
                // Dropped, the turn counts as crashed, and the next one tells of it.
                Err(error) => eprintln!("the report of {tick:?} was not sent: {error}"),
            }
        }
    }
}

/// Returns the next full second.
///
/// For another schedule, take a cron crate: it returns the next instant as well, and that converts
/// into a `SystemTime`.
fn next_in_schedule(now: SystemTime) -> SystemTime {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    UNIX_EPOCH + Duration::from_secs(since.as_secs() + 1)
}

/// Runs a job at intervals. The ticks are those of the server, so no clock of a process counts.
async fn clean_up(locks: Locks, runs: Runs) -> Result<(), bellwether::Error> {
    let mut ticks = locks.every("clean-up", Duration::from_millis(700));
    loop {
        let turn = ticks.next().await?;
        turn.run(async { runs.count("clean-up", turn.tick()) }).await?;
        turn.done().await?;
    }
}

impl Runs {
    fn count(&self, job: &'static str, tick: SystemTime) {
        if let Ok(mut runs) = self.0.lock() {
            *runs.entry((job, tick)).or_default() += 1;
        }
    }
}
