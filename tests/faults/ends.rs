//! Runtimes and caches that end in the middle of a load.

use bellwether::ErrorKind;
use tokio::runtime::{Builder, Runtime};

use super::*;

/// The limit for the start of another process. The best of some rounds must keep it, because other
/// tests share the machine.
const TAKEN_OVER: Duration = Duration::from_millis(250);
const ROUNDS: usize = 5;
/// The lease of a load whose runtime ends.
const LEASE: Duration = Duration::from_secs(2);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_is_shut_down_in_mid_load_hands_over_at_once() {
    let _turn = turn().await;
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let mut delays = Vec::new();
    for round in 0..ROUNDS {
        let (a, b) = (patient(&server.url()).await, patient(&server.url()).await);
        let key = format!("k{round}");
        let (loader, gate) = gated("never");
        let leading = tokio::spawn(a.request(&key).load(loader));
        let _lead = gate.begun.await.unwrap();
        let (loader, taken_over) = gated("of the other");
        let waiting = tokio::spawn(b.request(&key).load(loader));
        until_a_caller_waits(&mut raw, &key).await;
        let told = Instant::now();
        let (_, lead) = tokio::join!(a.shutdown(Duration::ZERO), taken_over.begun);
        delays.push(told.elapsed());
        assert!(lead.unwrap().fence().is_some());
        taken_over.open.send(()).unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().source(), Source::Led);
        assert_eq!(leading.await.unwrap().unwrap_err().kind(), ErrorKind::ShutDown);
        // A later caller of the ended cache is served without a flight.
        let late = a.request("late").load(value("late")).await.unwrap();
        assert_eq!(late.source(), Source::Degraded);
    }
    println!("from a shutdown to the next load: {delays:?}");
    assert!(*delays.iter().min().unwrap() < TAKEN_OVER, "{delays:?}");
    assert!(*delays.iter().max().unwrap() < Duration::from_secs(2), "{delays:?}");
}

/// The runtime can run no more code of the load, so its lease ends by itself. Another process leads
/// then, and the same cache works on another runtime.
#[test]
fn a_runtime_that_is_dropped_in_mid_load_costs_its_lease() {
    let staying = runtime();
    let _turn = staying.block_on(turn());
    let server = staying.block_on(RedisServer::start());
    let mut raw = staying.block_on(server.raw());
    let going = runtime();
    let build = |backend| Cache::<String>::builder(backend, "t").lease(LEASE).build().unwrap();
    let [a, b] = [(); 2].map(|()| build(testkit::open(server.url())));
    let (loader, gate) = gated("never");
    let leading = going.spawn(a.request("k").load(loader));
    let _lead = going.block_on(gate.begun).unwrap();
    let (loader, taken_over) = gated("of the other");
    let waiting = staying.spawn(b.request("k").load(loader));
    staying.block_on(until_a_caller_waits(&mut raw, "k"));
    let dropped = Instant::now();
    going.shutdown_background();
    let lead = staying.block_on(taken_over.begun).unwrap();
    let delay = dropped.elapsed();
    assert!(lead.fence().is_some());
    taken_over.open.send(()).unwrap();
    let waited = staying.block_on(waiting).unwrap().unwrap();
    assert_eq!(waited.source(), Source::Led);
    assert!(staying.block_on(leading).is_err());
    // The same cache works on another runtime.
    assert_eq!(a.stats().flights, 0);
    staying.block_on(async {
        let works = || async {
            let fresh = format!("k-{:?}", Instant::now());
            let loaded = a.request(fresh).load(value("elsewhere")).await.unwrap();
            loaded.source() == Source::Led
        };
        assert!(eventually(LIMIT, works).await, "the cache does not work on another runtime");
    });
    println!("from a dropped runtime to the next load: {delay:?}");
    assert!(delay < LEASE + Duration::from_secs(2), "{delay:?}");
}

/// A runtime of the current thread runs no task outside of `block_on`. The release of a guard that
/// is dropped there waits until the runtime is driven again.
#[test]
fn a_guard_dropped_outside_of_its_runtime_is_released_when_that_is_driven() {
    let staying = runtime();
    let _turn = staying.block_on(turn());
    let server = staying.block_on(RedisServer::start());
    let idle = Builder::new_current_thread().enable_all().build().unwrap();
    let there = Locks::new(testkit::open(server.url()), "bellwether");
    let locks = Locks::new(testkit::open(server.url()), "bellwether");
    let mutex = locks.mutex("k").lease(Duration::from_secs(600));
    let guard = idle.block_on(mutex.lock()).unwrap();
    drop(guard);
    let next = there.mutex("k").wait_limit(LIMIT);
    let next = staying.spawn(async move { next.lock().await });
    drop(idle.block_on(next).unwrap().unwrap());
}
