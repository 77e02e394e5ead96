//! Histories of real runs, and a check that they keep the promises of the crate.
//!
//! Several processes load, insert, invalidate, read and lock a few names over a real server, and
//! end the tags of their values. The locks are mutexes, fair ones, several at once, read-write
//! locks and semaphores. Meanwhile processes are killed and suspended, the server stalls,
//! connections are cut and keys are evicted.
//!
//! Each process writes down the events that it saw (`history`, `recorder`, `worker`). In the end
//! the `checker` looks for violations of the rules. Histories written by hand (`bad`), and backends
//! without one of the rules (`schedules`), show that it can find them.
//!
//! The seed of a round plans its calls, its faults and the pauses between them. The seed of the
//! first round is printed, and `BELLWETHER_SEED` sets it. The other seeds follow it. A seed that is
//! played again brings the same plan, but another timing and so another history. Play it several
//! times. `BELLWETHER_HISTORIES_SECONDS` sets the time to play.
#![allow(unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad;
mod checker;
mod failures;
mod faults;
mod fleet;
mod history;
mod holds;
mod index;
mod latches;
mod recorder;
mod round;
mod schedules;
mod ticks;
mod worker;

use std::{collections::BTreeMap, time::Duration};

use tokio::{sync::Mutex, time::Instant};

use self::{
    checker::{Tally, check},
    history::History,
    round::Round,
};

/// Serialises the rounds, because each takes all of the machine.
static TURN: Mutex<()> = Mutex::const_new(());

/// The worker process. Returns at once unless this process was started as a worker.
#[test]
fn worker() {
    worker::work();
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, and is {text:?}")))
}

fn first_seed() -> u64 {
    variable("BELLWETHER_SEED").unwrap_or_else(|| fastrand::u64(..1_000_000_000))
}

#[tokio::test(flavor = "multi_thread")]
async fn histories_of_real_runs_keep_the_promises() {
    let _turn = TURN.lock().await;
    let time = Duration::from_secs(variable("BELLWETHER_HISTORIES_SECONDS").unwrap_or(12));
    // Long enough for a few faults, and short enough for many kinds of rounds.
    let each = (time / 6).min(Duration::from_secs(15));
    let first = first_seed();
    println!("BELLWETHER_SEED={first}");
    let end = Instant::now() + time;
    let mut all = Tally::default();
    let mut broken = 0;
    for seed in first.. {
        let round = Round::new(seed, each);
        let (history, faults) = round.play().await;
        let (violations, tally) = check(&history);
        println!("seed {seed}: {faults} faults, {tally}; {:?} {:?}", round.load, round.faults);
        all.take_in(&tally);
        all.take_in(&Tally(BTreeMap::from([("faults", faults), ("rounds", 1)])));
        for violation in violations.iter().take(10) {
            println!("BELLWETHER_SEED={seed}: {:?}: {}", violation.rule, violation.text);
        }
        if !violations.is_empty() {
            broken += 1;
            save(seed, &history);
        }
        if Instant::now() >= end {
            break;
        }
    }
    println!("in all: {all}");
    assert_eq!(broken, 0, "some rounds have violations");
}

/// Saves a history that broke a rule, for the analysis of its cause.
fn save(seed: u64, history: &History) {
    let path = std::env::temp_dir().join(format!("bellwether-history-{seed}"));
    let mut lines = history.lines.clone();
    lines.sort_by_key(|(_, line)| line.at);
    let mut text = format!("{:?}\n{:?}\n", history.killed, history.evicted);
    for (process, line) in lines {
        text += &format!("{} {process} {:?}\n", line.at, line.event);
    }
    std::fs::write(&path, text).unwrap();
    println!("the history is in {}", path.display());
}
