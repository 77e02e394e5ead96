//! Many callers, one cold key.

use testkit::RedisServer;

use super::{
    fleet::Fleet,
    protocol::{Load, Round, Setup},
};

const PROCESSES: usize = 8;
const CALLERS: usize = 250;
const ROUNDS: usize = 12;

async fn fleet(server: &RedisServer, processes: usize) -> Fleet {
    Fleet::start(processes, &Setup::new(server.url())).await
}

/// Each process takes at most six commands: two of the load or of the wait for it, and what a late
/// one needs.
#[tokio::test]
async fn a_stampede_on_a_cold_key_loads_it_once_with_few_commands() {
    let server = RedisServer::start().await;
    let mut fleet = fleet(&server, PROCESSES).await;
    // The first round makes the connections.
    fleet.play(Round::new("warm", CALLERS, Load::Value { ms: 50 })).await;
    let mut monitor = server.monitor().await;
    let mut times = Vec::new();
    let mut waited = 0;
    for round in 0..ROUNDS {
        let round = Round::new(format!("stampede-{round}"), CALLERS, Load::Value { ms: 200 });
        let played = fleet.play(round).await;
        played.leader();
        assert_eq!(played.source("Led"), 1, "{played:#?}");
        assert_eq!(played.source("Degraded"), 0, "{played:#?}");
        played.assert_one_value(PROCESSES * CALLERS);
        let received = played.reports.iter().filter(|(_, report)| report.source("Received") > 0);
        waited += received.count();
        times.push(played.last_after_load());
        let calls = monitor.calls_from_clients().await;
        assert!(calls.len() <= 6 * PROCESSES, "{} commands: {calls:?}", calls.len());
    }
    // A process of a busy machine may ask after the end of the load, and finds the entry.
    let others = ROUNDS * (PROCESSES - 1);
    println!("{waited} of {others} processes waited for the load of another one");
    assert!(waited > others / 2, "{waited} of {others} processes waited for the load");
    times.sort();
    println!("last caller after the load: median {:?}", times[ROUNDS / 2]);
    assert!(times[0].as_millis() < 100, "even the quickest one took {:?} to spread", times[0]);
}
