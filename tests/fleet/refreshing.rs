//! A hot key that is refreshed in the background, one window after the other.

use std::time::Duration;

use testkit::RedisServer;

use super::{
    fleet::{Fleet, Played},
    protocol::{Load, Round, Setup},
};

const PROCESSES: usize = 8;
const CALLERS: usize = 4;
const WINDOWS: usize = 5;
const TTL: Duration = Duration::from_millis(1_200);
/// Longer than the delays of a busy machine, in which the other processes leave the key alone.
const LOAD: Duration = Duration::from_millis(200);
/// The way of a question on a busy machine. By so much a value may seem older than it is.
const WAY: Duration = Duration::from_millis(600);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

/// Counts the scripts that were called. Each claim and each commit is one.
fn scripts(calls: &[testkit::Call]) -> usize {
    calls.iter().filter(|call| call.command.starts_with("EVAL")).count()
}

#[tokio::test]
async fn each_window_costs_the_fleet_one_refresh_and_few_claims() {
    let server = RedisServer::start().await;
    let [ttl_ms, ms] = [TTL, LOAD].map(|time| micros(time) / 1000);
    let setup = Setup { ttl_ms, stale_ms: 60_000, ..Setup::new(server.url()) };
    let mut fleet = Fleet::start(PROCESSES, &setup).await;
    let ask = || Round::new("k", CALLERS, Load::Value { ms });
    let all: Vec<_> = (0..PROCESSES).collect();
    let mut played = fleet.play(ask()).await;
    played.leader();
    let warm = played.reports.len();
    let mut monitor = server.monitor().await;
    let (mut windows, mut claims) = (0, Vec::new());
    while windows < WINDOWS {
        let reports = played.reports.len() + PROCESSES;
        fleet.begin(&all, ask()).await;
        fleet.reports(&mut played, reports).await;
        let (_, last) = &played.reports[reports - 1];
        let loaded = played.ended.iter().map(|(_, _, at)| *at).max();
        // On a busy machine, two windows may pass in one round.
        let passed = played.ended.len() - 1 - windows;
        if passed > 0 && last.source("Hit") == CALLERS && Some(last.began) > loaded {
            // The other scripts are the commits.
            let scripts = scripts(&monitor.calls_from_clients().await);
            claims.push((passed, scripts.saturating_sub(passed)));
            windows += passed;
        }
    }
    println!("claims in {WINDOWS} windows: {claims:?}");
    let few = |(windows, claims): &(usize, usize)| (*windows..=3 * windows).contains(claims);
    assert!(claims.iter().all(few), "{claims:?}");
    assert_one_refresh_in_each_window(&played);
    for (_, report) in &played.reports[warm..] {
        let served = report.source("Hit") + report.source("Stale");
        assert_eq!(served, CALLERS, "a caller waited: {report:#?}");
    }
}

/// Asserts that no load began while the value of an earlier one was under way or fresh.
fn assert_one_refresh_in_each_window(played: &Played) {
    assert!(played.begun.len() <= played.ended.len() + 1, "{played:#?}");
    for (ended, begun) in played.ended.iter().zip(&played.begun[1..]) {
        let window = begun.2.saturating_sub(ended.2);
        assert!(window + micros(WAY) >= micros(TTL), "a second load: {played:#?}");
    }
}
