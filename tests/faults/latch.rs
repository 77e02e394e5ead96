//! The steps of a latch behind connections that are cut.

use std::collections::BTreeSet;

use testkit::proxy::{Fault, Request};

use super::*;

const PROCESSES: u32 = 4;
const STEPS: u32 = 40;
const ROUNDS: usize = 30;

/// Each seventh answer is lost with its connection, and with all other answers on their way there.
/// The step asks again, and the latch may be done by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_step_of_a_latch_is_told_zero_while_connections_are_cut() {
    let _turn = turn().await;
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        let backend = testkit::open(proxy.url());
        until_connected(&backend).await;
        processes.push(Locks::new(backend, "t"));
    }
    let seen = AtomicUsize::new(0);
    let seventh = move |request: &Request| {
        request.kind == "latch" && seen.fetch_add(1, Ordering::SeqCst) % 7 == 6
    };
    let cuts = proxy.when(seventh, Fault::Cut);
    for round in 0..ROUNDS {
        let name = format!("import:{round}");
        processes[0].latch(&*name).set(STEPS).await.unwrap();
        let mut steps = JoinSet::new();
        for at in 0..STEPS {
            let latch = processes[(at % PROCESSES) as usize].latch(&*name);
            steps.spawn(async move { latch.count_down().await.unwrap() });
        }
        let told: Vec<_> = steps.join_all().await;
        let distinct: BTreeSet<_> = told.iter().copied().collect();
        assert_eq!(distinct, (0..STEPS).collect(), "round {round}: {told:?}");
    }
    println!("{} connections were cut", cuts.count());
    assert!(cuts.count() >= ROUNDS, "only {} connections were cut", cuts.count());
}
