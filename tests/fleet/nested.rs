//! Loaders that ask for other keys, and for their own.

use std::time::{Duration, Instant};

use testkit::RedisServer;

use super::{
    fleet::{Fleet, Played},
    protocol::{Load, Round, Setup},
};

/// A number of loads far above the limit on concurrent loads of a process.
const MANY: usize = 4_000;
/// The limit on the waits of so many loads. Those of a busy machine end long before it.
const WAIT: Duration = Duration::from_secs(55);

fn ask(ms: u64, key: &str, then: Load) -> Load {
    Load::Ask { ms, key: key.to_owned(), then: Box::new(then) }
}

async fn fleet(server: &RedisServer, processes: usize, wait: Duration) -> Fleet {
    let wait_ms = u64::try_from(wait.as_millis()).unwrap();
    // The lease outlasts the delays of a machine with so many loads.
    let setup = Setup { wait_ms, lease_ms: 30_000, ..Setup::new(server.url()) };
    Fleet::start(processes, &setup).await
}

/// Returns the number of callers that had a value.
fn served(played: &Played) -> usize {
    played.reports.iter().flat_map(|(_, report)| report.values.values()).sum()
}

/// Asserts that every caller has a value, that each key is loaded once, and that no caller waited
/// for a limit.
async fn assert_all_land(fleet: &mut Fleet, round: Round, keys: usize) {
    let callers = round.callers * fleet.processes();
    let begun = Instant::now();
    let played = fleet.play(round).await;
    let took = begun.elapsed();
    println!("{callers} callers in {} processes: {took:?}", fleet.processes());
    for (process, report) in &played.reports {
        println!("process {process}: {}", report.stats);
        assert!(report.errors.is_empty(), "{:?}", report.errors);
    }
    assert_eq!(served(&played), callers);
    // Each key is loaded once. On a machine that is too busy for timely answers of the server, a
    // few keys are loaded without a lease. These count as degraded.
    let degraded: u64 = played.reports.iter().map(|(_, report)| report.degraded).sum();
    let degraded = usize::try_from(degraded).unwrap();
    let loads = played.begun.len();
    assert!((keys..=keys + degraded).contains(&loads), "{loads} loads of {keys} keys");
    assert!(degraded < keys / 10, "{degraded} of {keys}");
    assert!(took < WAIT * 5 / 6, "a caller waited for a limit: {took:?}");
}

#[tokio::test]
async fn thousands_of_loaders_in_each_of_two_processes_can_load_other_keys() {
    let server = RedisServer::start().await;
    let mut fleet = fleet(&server, 2, WAIT).await;
    let load = ask(5, "inner-#", Load::Value { ms: 5 });
    assert_all_land(&mut fleet, Round::new("outer-#", MANY, load), 2 * MANY).await;
}

/// No process can see a circle through another one. The wait limit ends it.
#[tokio::test]
async fn two_processes_that_ask_for_each_other_are_served() {
    let server = RedisServer::start().await;
    let mut fleet = fleet(&server, 2, Duration::from_millis(500)).await;
    for round in 0..5 {
        let a = format!("a-{round}");
        let b = format!("b-{round}");
        let begun = Instant::now();
        let played = play_two(
            &mut fleet,
            [0, 1],
            Round::new(&a, 100, ask(50, &b, ask(0, &a, Load::Value { ms: 0 }))),
            Round::new(&b, 100, ask(50, &a, ask(0, &b, Load::Value { ms: 0 }))),
        )
        .await;
        println!("a circle between two processes: {:?}", begun.elapsed());
        assert_eq!((played.errors(), served(&played)), (0, 200), "{played:#?}");
        assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    }
}

async fn play_two(fleet: &mut Fleet, processes: [usize; 2], one: Round, other: Round) -> Played {
    fleet.begin(&processes[..1], one).await;
    fleet.begin(&processes[1..], other).await;
    let mut played = Played::default();
    fleet.until(&mut played, 0, 2).await;
    played
}
