//! The time from the end of a load to the answer of the last caller in the fleet, and the commands
//! for a fill.
//!
//! `cargo bench --bench handoff [-- rounds [processes x callers...]]` starts a Redis server and
//! worker processes like the suite `fleet`, and prints a table. All processes share the cores of
//! this machine.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[allow(dead_code, reason = "the suite `fleet` uses the rest")]
#[path = "../tests/fleet/fleet.rs"]
mod fleet;
#[path = "../tests/fleet/protocol.rs"]
mod protocol;
#[path = "../tests/fleet/worker.rs"]
mod worker;

use std::{collections::BTreeMap, time::Duration};

use report::figures::{Chart, Rows, Statistic, turns};
use testkit::RedisServer;

use self::{
    fleet::Fleet,
    protocol::{Load, Round, Setup},
};

/// The processes, and the callers of each.
const SHAPES: [(usize, usize); 6] = [(1, 250), (2, 250), (4, 250), (8, 250), (4, 1), (4, 2_500)];

const ROWS: Rows = Rows {
    chart: Chart::ColdKey,
    command: "cargo bench --bench handoff -- 1x250 4x250",
    statistic: Statistic::Median,
};

fn main() {
    worker::work();
    let words: Vec<_> = std::env::args().skip(1).collect();
    let rounds = turns(words.iter().find_map(|word| word.parse().ok()).unwrap_or(100));
    let wanted: Vec<(usize, usize)> = words
        .iter()
        .filter_map(|word| word.split_once('x'))
        .filter_map(|(processes, callers)| Some((processes.parse().ok()?, callers.parse().ok()?)))
        .collect();
    let shapes = if wanted.is_empty() { SHAPES.to_vec() } else { wanted };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("One cold key, {rounds} rounds each: the last caller served after the load ended.");
    println!("processes  callers     median        p90        max  calls to Redis for one fill");
    runtime.block_on(async {
        let mut alone: Option<Vec<Duration>> = None;
        for (processes, callers) in shapes {
            let times = measure(processes, callers, rounds).await;
            if let Some(alone) = &alone {
                let what = format!("the last caller in {processes} processes");
                ROWS.floor((&what, &times), ("in one process", alone)).unwrap();
            }
            if processes == 1 {
                alone = Some(times);
            }
        }
    });
}

async fn measure(processes: usize, callers: usize, rounds: usize) -> Vec<Duration> {
    let server = RedisServer::start().await;
    let mut fleet = Fleet::start(processes, &Setup::new(server.url())).await;
    let load = Load::Value { ms: 100 };
    // The first rounds make the connections and warm the caches of the machine.
    for round in 0..3 {
        fleet.play(Round::new(format!("warm-{round}"), callers, load.clone())).await;
    }
    let mut times = Vec::new();
    for round in 0..rounds {
        let played = fleet.play(Round::new(format!("timed-{round}"), callers, load.clone())).await;
        played.leader();
        played.assert_one_value(processes * callers);
        times.push(played.last_after_load());
    }
    // These rounds are not timed, because MONITOR costs the server time.
    let mut monitor = server.monitor().await;
    let mut calls = BTreeMap::<_, usize>::new();
    let counted = rounds.min(20);
    for round in 0..counted {
        fleet.play(Round::new(format!("counted-{round}"), callers, load.clone())).await;
    }
    for call in monitor.calls_from_clients().await {
        *calls.entry(call.command).or_default() += 1;
    }
    let mut sorted = times.clone();
    sorted.sort();
    let total = calls.values().sum::<usize>() as f64 / counted as f64;
    let each: Vec<_> = calls
        .iter()
        .map(|(command, count)| format!("{command} {:.1}", *count as f64 / counted as f64))
        .collect();
    let [median, p90, max] =
        [times.len() / 2, times.len() * 9 / 10, times.len() - 1].map(|at| ms(sorted[at]));
    println!(
        "{processes:9}  {callers:7}  {median:6.2} ms  {p90:6.2} ms  {max:6.2} ms  {total:.1}: {}",
        each.join(", ")
    );
    times
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}
