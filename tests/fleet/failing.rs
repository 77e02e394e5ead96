//! An origin that fails for a while under load.

use std::time::Duration;

use bellwether::Cache;
use testkit::RedisServer;

use super::{
    fleet::{Fleet, Played},
    protocol::{Command, Setup, Storm, now},
    storm::{FIRST, KEPT, LONGEST},
};

const PROCESSES: usize = 8;
const FAILING: Duration = Duration::from_secs(2);
const LOAD: Duration = Duration::from_millis(20);
/// The time to live of a value that is to be stale soon.
const SHORT: Duration = Duration::from_millis(1);

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap()
}

/// Returns how many loads of one key begin in a time at most, if each fails.
fn most_loads(time: Duration) -> usize {
    let (mut begins, mut step, mut loads) = (Duration::ZERO, FIRST, 0);
    while begins < time {
        loads += 1;
        begins += step / 2 + LOAD;
        step = (step * 2).min(LONGEST);
    }
    loads
}

/// Begins a storm in all processes of a fleet.
async fn storm(fleet: &mut Fleet, key: &str, keeps: bool, load: Duration) -> Storm {
    let fails_until = now() + micros(FAILING);
    let storm = Storm {
        key: key.to_owned(),
        callers: 4,
        load_ms: u64::try_from(load.as_millis()).unwrap(),
        keeps,
        fails_until,
        ends: fails_until + micros(4 * LONGEST),
    };
    for process in 0..fleet.processes() {
        fleet.tell(process, &Command::Storm(storm.clone())).await;
    }
    storm
}

/// Stores a value that is kept for failures, and is not fresh any more.
async fn store_stale(server: &RedisServer, key: &str) {
    let backend = testkit::open(server.url());
    let cache = Cache::<String>::builder(backend).namespace("fleet").build().unwrap();
    let request = cache.request(key).ttl(SHORT).stale_if_error(KEPT);
    request.insert(&"stale".to_owned()).await.unwrap();
}

/// Checks how often the origin was asked, and that its first success was the end.
fn assert_backed_off(played: &Played, storm: &Storm) {
    let failed = played.begun.iter().filter(|(_, _, at)| at + micros(LOAD) < storm.fails_until);
    let failed = failed.count();
    let most = most_loads(FAILING);
    assert!(failed > 1 && failed <= most, "{failed} of {most} loads failed: {played:#?}");
    assert_eq!(played.ended.len(), 1, "there was not one success: {played:#?}");
    let last = played.begun.iter().map(|(_, _, at)| *at).max();
    assert!(last <= Some(played.ended[0].2), "a load began after the success: {played:#?}");
}

#[tokio::test]
async fn a_failing_origin_is_asked_no_more_than_one_process_may() {
    let server = RedisServer::start().await;
    let mut fleet = Fleet::start(PROCESSES, &Setup::new(server.url())).await;
    store_stale(&server, "kept").await;
    let storm = storm(&mut fleet, "kept", true, LOAD).await;
    let mut played = Played::default();
    fleet.reports(&mut played, PROCESSES).await;
    assert_backed_off(&played, &storm);
    for (_, report) in &played.reports {
        let sources = ["Stale", "Led", "Received", "Followed", "Hit"];
        assert!(report.sources.keys().all(|source| sources.contains(&&**source)), "{report:#?}");
        assert!(report.source("Stale") > 0 && report.source("Hit") > 0, "{report:#?}");
    }
}

#[tokio::test]
async fn without_a_stale_value_all_processes_fail_at_once_and_recover_together() {
    let server = RedisServer::start().await;
    let mut fleet = Fleet::start(PROCESSES, &Setup::new(server.url())).await;
    let storm = storm(&mut fleet, "cold", false, LOAD).await;
    let mut played = Played::default();
    fleet.reports(&mut played, PROCESSES).await;
    assert_backed_off(&played, &storm);
    for (_, report) in &played.reports {
        assert!(report.source("BackingOff") > 0 && report.source("Hit") > 0, "{report:#?}");
        assert_eq!(report.source("Degraded"), 0, "{report:#?}");
    }
}

/// The process that retries for the fleet dies. Its load has not failed, so nothing backs off.
#[tokio::test]
async fn a_process_that_dies_in_its_retry_is_replaced_within_its_lease() {
    let lease = Duration::from_secs(1);
    let server = RedisServer::start().await;
    let setup = Setup { lease_ms: 1_000, ..Setup::new(server.url()) };
    let mut fleet = Fleet::start(3, &setup).await;
    // The loads are long. Even on a busy machine, the second one has not ended at the kill.
    let storm = storm(&mut fleet, "killed", false, 25 * LOAD).await;
    let mut played = Played::default();
    fleet.loads(&mut played, 2).await;
    let killed = played.begun[1].0;
    fleet.kill(killed).await;
    let at = now();
    fleet.loads(&mut played, 3).await;
    let next = played.begun[2].2;
    let delay = Duration::from_micros(next.saturating_sub(at));
    println!("from the death of a process that retries to the next load: {delay:?}");
    assert!(delay < lease + Duration::from_secs(1) && played.begun[2].0 != killed, "{delay:?}");
    fleet.reports(&mut played, 2).await;
    assert_eq!(played.ended.len(), 1, "{storm:?}: {played:#?}");
}
