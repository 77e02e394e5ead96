//! Many callers, one cold key.

use std::collections::BTreeMap;

use testkit::RedisServer;

use super::{
    fleet::{Fleet, Played},
    protocol::{Load, Round, Setup},
    worker::PLANNED_PANIC,
};

const PROCESSES: usize = 8;
const CALLERS: usize = 250;

async fn fleet(server: &RedisServer, processes: usize) -> Fleet {
    Fleet::start(processes, &Setup::new(server.url())).await
}

#[tokio::test]
async fn a_stampede_on_a_cold_key_loads_it_once() {
    let server = RedisServer::start().await;
    let mut fleet = fleet(&server, PROCESSES).await;
    let (mut times, mut waited) = (Vec::new(), 0);
    for round in 0..50 {
        let round = Round::new(format!("stampede-{round}"), CALLERS, Load::Value { ms: 200 });
        let played = fleet.play(round).await;
        played.leader();
        assert_eq!(played.source("Led"), 1, "{played:#?}");
        assert_eq!(played.source("Degraded"), 0, "{played:#?}");
        played.assert_one_value(PROCESSES * CALLERS);
        let received = played.reports.iter().filter(|(_, report)| report.source("Received") > 0);
        waited += received.count();
        times.push(played.last_after_load());
    }
    // A process of a busy machine may ask after the end of the load, and finds the entry.
    let others = 50 * (PROCESSES - 1);
    println!("{waited} of {others} processes waited for the load of another one");
    assert!(waited > others / 2, "{waited} of {others} processes waited for the load");
    times.sort();
    println!("last caller after the load: median {:?}, p90 {:?}", times[25], times[45]);
}

#[tokio::test]
async fn a_leader_whose_caller_goes_away_costs_no_time() {
    let server = RedisServer::start().await;
    let mut fleet = fleet(&server, PROCESSES).await;
    for round in 0..10 {
        let mut round = Round::new(format!("gone-{round}"), CALLERS, Load::Value { ms: 200 });
        round.abort_leader = true;
        let played = fleet.play(round).await;
        played.leader();
        let aborted: usize = played.reports.iter().map(|(_, report)| report.aborted).sum();
        assert_eq!(aborted, 1, "{played:#?}");
        assert_eq!(played.source("Led"), 0, "{played:#?}");
        assert_eq!(played.source("Degraded"), 0, "{played:#?}");
        played.assert_one_value(PROCESSES * CALLERS - 1);
    }
}

/// Asserts that every caller that waited for the only load has its error, with its kind and text.
/// Only the process of the leader has the error itself.
fn assert_every_caller_failed(played: &Played, kind: &str, text: &str, concrete: bool) {
    let leader = played.leader();
    for (process, report) in &played.reports {
        let errors: Vec<_> = report.errors.iter().collect();
        let [(error, count)] = errors[..] else {
            panic!("there is not exactly one error: {played:#?}")
        };
        let here = *process == leader;
        assert_eq!(*count, CALLERS, "{played:#?}");
        assert!(error.starts_with(&format!("{kind}: ")), "{error}");
        assert_eq!(error.matches(text).count(), 1 + usize::from(here && concrete), "{error}");
        assert_eq!(error.contains("another process"), !here, "{error}");
        assert_eq!(error.ends_with(&format!("[{text}]")), here && concrete, "{error}");
    }
}

#[tokio::test]
async fn a_load_that_fails_or_panics_fails_once_for_all_callers() {
    let server = RedisServer::start().await;
    let mut fleet = fleet(&server, PROCESSES).await;
    // A failure is not stored. A process that asks after the end of the load would load once more.
    let failing = Load::Fail { ms: 1_000, text: "no such product".to_owned() };
    let panicking = Load::Panic { ms: 1_000, text: "on purpose".to_owned() };
    let text = format!("{PLANNED_PANIC}: on purpose");
    for (load, kind, text, concrete) in
        [(failing, "Load", "no such product", true), (panicking, "Panicked", &*text, false)]
    {
        for round in 0..3 {
            let key = format!("{kind}-{round}");
            let played = fleet.play(Round::new(key, CALLERS, load.clone())).await;
            assert_every_caller_failed(&played, kind, text, concrete);
            let errors = played.reports.iter().flat_map(|(_, report)| report.errors.keys());
            let panics = usize::from(!concrete);
            for error in errors {
                assert_eq!(error.matches("panicked").count(), panics, "{error}");
            }
        }
    }
}

#[tokio::test]
async fn a_fill_is_quick_and_takes_few_calls() {
    let server = RedisServer::start().await;
    let mut fleet = fleet(&server, 4).await;
    // The first round makes the connections.
    fleet.play(Round::new("warm", CALLERS, Load::Value { ms: 50 })).await;
    let mut monitor = server.monitor().await;
    let mut times = Vec::new();
    for round in 0..20 {
        let round = Round::new(format!("fill-{round}"), CALLERS, Load::Value { ms: 200 });
        let played = fleet.play(round).await;
        played.leader();
        played.assert_one_value(4 * CALLERS);
        times.push(played.last_after_load());
        let mut calls = BTreeMap::<_, usize>::new();
        for call in monitor.calls_from_clients().await {
            *calls.entry(call.command).or_default() += 1;
        }
        let count: usize = calls.values().sum();
        assert!(count <= 24, "one fill by four processes took {count} commands: {calls:?}");
    }
    times.sort();
    println!("last caller after the load: median {:?}, p90 {:?}", times[10], times[18]);
    assert!(times[0].as_millis() < 100, "even the quickest fill took {:?} to spread", times[0]);
}
