//! One lock for a whole collection, compared with one lock for each item.
//!
//! `cargo bench --bench fine_grained [-- seconds]` starts a Redis server. A number of tasks work on
//! items that they pick at random, each under its lock, which is held for 1 ms. The tasks use
//! several connections, like separate processes. The two ways take turns in one run.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use bellwether::{Locks, RedisBackend};
use testkit::RedisServer;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{Instant, sleep},
};

const TASKS: usize = 32;
const ITEMS: usize = 64;
const PROCESSES: usize = 4;
const HELD: Duration = Duration::from_millis(1);
const ROUNDS: u64 = 3;

fn main() {
    let seconds = std::env::args().skip(1).find_map(|word| word.parse().ok()).unwrap_or(12);
    let turn = Duration::from_secs(seconds) / 2 / u32::try_from(ROUNDS).unwrap();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let server = RedisServer::start().await;
        let locks: Vec<_> = (0..PROCESSES)
            .map(|_| Locks::new(RedisBackend::open(&server.url()).unwrap(), "bellwether"))
            .collect();
        println!("{TASKS} tasks over {ITEMS} items, a lock held for {HELD:?}:");
        work(&locks, 1, Duration::from_millis(200)).await;
        let mut coarse = 0.0;
        let mut fine = 0.0;
        for _ in 0..ROUNDS {
            coarse += work(&locks, 1, turn).await / ROUNDS as f64;
            fine += work(&locks, ITEMS, turn).await / ROUNDS as f64;
        }
        println!("one lock for all        {coarse:>8.0} holds/s");
        println!("one lock for each item  {fine:>8.0} holds/s, {:.1} times as many", fine / coarse);
    });
}

/// Returns the holds in a second, with a number of locks over the items.
async fn work(locks: &[Locks], names: usize, time: Duration) -> f64 {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let locks = locks[task % locks.len()].clone();
        tasks.spawn(async move {
            let mut holds = 0;
            while begun.elapsed() < time {
                let item = fastrand::usize(..ITEMS);
                let guard = locks.mutex(format!("item:{}", item % names)).lock().await.unwrap();
                sleep(HELD).await;
                guard.unlock().await.unwrap();
                holds += 1;
            }
            holds
        });
    }
    let holds: u32 = tasks.join_all().await.into_iter().sum();
    f64::from(holds) / begun.elapsed().as_secs_f64()
}
