//! One leader of five processes, through a rolling restart. Tasks with locks of their own stand for
//! the processes.
//!
//! ```text
//! cargo run --example leader
//! REDIS_URL=redis://127.0.0.1 cargo run --example leader
//! ```

use std::{process::ExitCode, time::Duration};

use bellwether::{BoxError, Locks, MemoryBackend, RedisBackend};
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep},
};

const PROCESSES: usize = 5;

/// What the leader does: it counts the pieces of work, with the fence of its term beside them. A
/// real one would hand the fence to its database.
#[derive(Clone, Copy, Default)]
struct Work {
    fence: u64,
    pieces: u64,
    last: Option<Instant>,
    longest_gap: Duration,
}

#[tokio::main]
async fn main() -> ExitCode {
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leader: {error}");
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
    let work = watch::Sender::new(Work::default());
    let mut processes = Vec::new();
    for version in [1, 2] {
        for number in 0..PROCESSES {
            // The next process begins before the old one ends.
            processes.push(Process::start(open()?, format!("v{version}-{number}"), work.clone()));
            if processes.len() > PROCESSES {
                processes.remove(0).stop().await?;
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
    for process in processes {
        process.stop().await?;
    }
    let Work { pieces, longest_gap, .. } = *work.borrow();
    println!("{pieces} pieces of work; the longest pause between two was {longest_gap:.1?}");
    Ok(())
}

struct Process {
    task: JoinHandle<Result<(), bellwether::Error>>,
    end: watch::Sender<bool>,
}

impl Process {
    fn start(locks: Locks, name: String, work: watch::Sender<Work>) -> Self {
        let end = watch::Sender::new(false);
        let mut ending = end.subscribe();
        let task = tokio::spawn(async move {
            let candidate = locks.leader("counter").lease(Duration::from_secs(3));
            let leading = candidate.run(|term| {
                println!("{name} leads, with fence {}", term.fence());
                count(term.fence(), work.clone())
            });
            tokio::select! {
                led = leading => led?,
                // A signal to end. The lease goes to the next candidate at once.
                _ = ending.wait_for(|end| *end) => println!("{name} ends"),
            }
            locks.shutdown(Duration::from_secs(5)).await;
            Ok(())
        });
        Self { task, end }
    }

    async fn stop(self) -> Result<(), BoxError> {
        self.end.send_replace(true);
        Ok(self.task.await??)
    }
}

/// Does a piece of work every 10 ms.
async fn count(fence: u64, work: watch::Sender<Work>) {
    loop {
        work.send_modify(|work| {
            assert!(fence >= work.fence, "a former leader works");
            let now = Instant::now();
            let gap = work.last.map_or(Duration::ZERO, |last| now - last);
            let longest_gap = work.longest_gap.max(gap);
            *work = Work { fence, pieces: work.pieces + 1, last: Some(now), longest_gap };
        });
        sleep(Duration::from_millis(10)).await;
    }
}
