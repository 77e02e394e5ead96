//! Random schedules of several processes over one server.
//!
//! They are those of `schedules` in real time. The schedules of a batch run at once, each with keys
//! of its own, so thousands of them take minutes.

use std::{ops::Range, time::Duration};

use fastrand::Rng;
use testkit::RedisServer;
use tokio::time::Instant;

use super::{
    TURN,
    checker::{SLACK, Tally, check},
    first_seed,
    round::Fleet,
    save,
    schedules::workload,
    variable,
    worker::Setup,
};

const PROCESSES: usize = 3;
/// The schedules that run at once, and the batches with the same settings.
const BATCH: u64 = 20;
const BATCHES: u64 = 4;
/// The time after which no further batch begins, unless the number of schedules is set.
const LIMIT: Duration = Duration::from_secs(6);

/// Plays the schedules of a batch, and checks their history.
async fn play(fleet: &mut Fleet, setup: &Setup, seeds: Range<u64>) -> Tally {
    let mut history = fleet.order(&serde_json::to_string(&seeds).unwrap()).await;
    history.windows = Some(setup.load.windows(SLACK));
    let (violations, tally) = check(&history);
    for violation in violations.iter().take(10) {
        println!("BELLWETHER_SEED={}: {:?}: {}", setup.seed, violation.rule, violation.text);
    }
    if !violations.is_empty() {
        save(setup.seed, &history);
    }
    assert!(violations.is_empty(), "some schedules of {seeds:?} break a rule");
    tally
}

#[tokio::test(flavor = "multi_thread")]
async fn random_schedules_of_processes_keep_the_promises() {
    let _turn = TURN.lock().await;
    let count = variable("BELLWETHER_PROCESS_SCHEDULES");
    let first = first_seed();
    println!("BELLWETHER_SEED={first}");
    let begun = Instant::now();
    let is_over = |played| match count {
        Some(count) => played >= count,
        None => begun.elapsed() >= LIMIT,
    };
    let (mut all, mut played) = (Tally::default(), 0);
    while !is_over(played) {
        let (server, seed) = (RedisServer::start().await, first + played);
        let load = workload(&mut Rng::with_seed(seed), 600);
        let setup = Setup {
            url: server.url(),
            process: 0,
            seed,
            load,
            broken: None,
            plays_schedules: true,
        };
        let mut fleet = Fleet::start(PROCESSES, setup.clone()).await;
        for _ in 0..BATCHES {
            let from = first + played;
            all.take_in(&play(&mut fleet, &setup, from..from + BATCH).await);
            played += BATCH;
            if is_over(played) {
                break;
            }
        }
    }
    println!("{played} schedules of {PROCESSES} processes: {all}");
    for what in ["writes", "commits stored", "overlaps"] {
        assert!(all.0.get(what).is_some_and(|count| *count > 0), "no {what}: {all}");
    }
}
