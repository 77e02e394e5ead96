//! The leading process ends in the middle of its load.

use std::time::Duration;

use testkit::{LIMIT, RedisServer, comes_true};

use super::{
    fleet::{Fleet, Played},
    protocol::{Load, Round, Setup, now},
};

const CALLERS: usize = 100;
const LEASE: Duration = Duration::from_secs(2);
/// One round of three must keep it, because a busy machine may delay the others.
const SOON: Duration = Duration::from_millis(200);

/// Starts a fleet over a server, with leases of two seconds.
async fn fleet(server: &RedisServer, processes: usize) -> Fleet {
    let lease_ms = u64::try_from(LEASE.as_millis()).unwrap();
    Fleet::start(processes, &Setup { lease_ms, ..Setup::new(server.url()) }).await
}

/// Begins a round with one leader, and waits until all other processes wait for it. A load that
/// replaces its load takes half a second.
async fn all_wait_for_one_leader(fleet: &mut Fleet, server: &RedisServer, key: &str) -> Played {
    // The load takes longer than a third of the lease, so that the lease is renewed before the end
    // comes. It also takes so long that all others wait for it, even on a busy machine.
    fleet.begin(&[0], Round::new(key, CALLERS, Load::Value { ms: 3_000 })).await;
    let mut played = Played::default();
    fleet.until(&mut played, 1, 0).await;
    let others: Vec<_> = (1..fleet.processes()).collect();
    fleet.begin(&others, Round::new(key, CALLERS, Load::Value { ms: 500 })).await;
    let mut raw = server.raw().await;
    let lease = format!("fleet:c:{{{key}}}:l");
    let all_wait = async || raw.registered(&lease).await >= others.len();
    assert!(comes_true(LIMIT, all_wait).await, "the others do not wait");
    let mut before = i64::MAX;
    let renewed = async || {
        let left = raw.pttl(&lease).await;
        left > std::mem::replace(&mut before, left)
    };
    assert!(comes_true(LIMIT, renewed).await, "the lease is not renewed");
    played
}

fn since(from: u64, to: u64) -> Duration {
    Duration::from_micros(to.saturating_sub(from))
}

/// Asserts that all other processes have the value of the second load.
async fn assert_taken_over(fleet: &mut Fleet, mut played: Played, gone: usize) -> Played {
    let others = fleet.processes() - 1;
    while played.reports.iter().filter(|(process, _)| *process != gone).count() < others {
        let reports = played.reports.len() + 1;
        fleet.until(&mut played, 2, reports).await;
    }
    assert_eq!(played.begun.len(), 2, "there was not exactly one more load: {played:#?}");
    played.reports.retain(|(process, _)| *process != gone);
    assert_eq!(played.source("Degraded"), 0, "{played:#?}");
    assert_eq!(played.source("Led"), 1, "{played:#?}");
    played.assert_one_value(others * CALLERS);
    played
}

#[tokio::test]
async fn a_killed_leader_costs_the_rest_of_its_lease() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let mut delays = Vec::new();
    for round in 0..3 {
        let mut fleet = fleet(&server, 4).await;
        let key = format!("killed-{round}");
        let played = all_wait_for_one_leader(&mut fleet, &server, &key).await;
        let leader = played.leader();
        let at_kill = now();
        fleet.worker(leader).kill().await;
        let asked = now();
        let remaining = raw.pttl(&format!("fleet:c:{{{key}}}:l")).await;
        let remaining = u64::try_from(remaining).unwrap() * 1000;
        // The server read its clock between the two times.
        let ends = asked + remaining;
        let latest = now() + remaining;
        assert!(
            since(at_kill, latest) > LEASE / 2,
            "the lease was not renewed, with {remaining} us left"
        );
        let played = assert_taken_over(&mut fleet, played, leader).await;
        let begun = played.begun[1].2;
        assert!(begun + 2_000 >= ends, "another load began while the lease lasted");
        delays.push(since(ends, begun));
        if delays[round] < SOON {
            break;
        }
    }
    println!("after the end of a dead leader's lease: {delays:?}");
    assert!(delays.iter().min().unwrap() < &SOON, "{delays:?}");
    assert!(delays.iter().max().unwrap() < &Duration::from_secs(2), "{delays:?}");
}

/// Thousands of flights queue for a server that hangs. None of them waits for the time-outs of
/// others.
#[tokio::test]
async fn a_server_that_hangs_costs_a_burst_one_time_out() {
    let server = RedisServer::start().await;
    let mut fleet = fleet(&server, 1).await;
    fleet.play(Round::new("warm-#", 100, Load::Value { ms: 0 })).await;
    server.stop_signal();
    let played = fleet.play(Round::new("burst-#", 5_000, Load::Value { ms: 0 })).await;
    server.resume();
    println!("5,000 keys while the server hangs: {:?}", played.took());
    assert_eq!((played.errors(), played.begun.len()), (0, 5_000));
    assert_eq!(played.source("Degraded"), 5_000);
    // The burst takes 2.2 s, or 3.0 s on a machine that needs 250 ms for the loads. One load is
    // then the probe of the breaker, and waits a second for its connection. If 128 flights at a
    // time waited for a time-out each, the burst would take 10 s, and longer on a busy machine.
    assert!(played.took() < Duration::from_secs(8), "{:?}", played.took());
}
