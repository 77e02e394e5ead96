//! Links with long round trips.

use testkit::proxy::kind;

use crate::prelude::*;

/// The command time-out that is not set.
const USUAL: Duration = Duration::from_millis(250);
/// Longer than each time-out that is not set.
const LATE: Duration = Duration::from_millis(1200);

/// The first connect takes three round trips or more, which did not fit into the command time-out.
/// At 80 ms the first request degraded, and at 220 ms the first hundred. Only above 250 ms, a
/// command time-out must be set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_requests_of_a_process_far_away_are_answered() {
    for round_trip in [80, 150, 200, 300].map(Duration::from_millis) {
        let mut failures = Vec::new();
        // On a busy machine a server may be silent for longer than the usual time-out.
        while failures.len() < 3 {
            match are_answered(round_trip).await {
                Ok(()) => break,
                Err(failure) => failures.push(failure),
            }
        }
        assert!(failures.len() < 3, "at {round_trip:?}: {failures:?}");
    }
}

/// Returns what failed of the first requests of a new process.
async fn are_answered(round_trip: Duration) -> Result<(), String> {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    proxy.lengthen_round_trip(round_trip);
    let mut builder = RedisBackend::builder().server(proxy.url());
    if round_trip > USUAL {
        builder = builder.command_timeout(4 * round_trip);
    }
    let backend = builder.build().unwrap();
    let cache = Cache::<String>::builder(backend.clone(), "bellwether").build().unwrap();
    let requests = (0..100).map(|at| {
        let load = cache.request(at).load(|_| async { Ok::<_, Infallible>("v".to_owned()) });
        timeout(LIMIT, load)
    });
    let loaded = join_all(requests).await.into_iter();
    let led = loaded.filter(|loaded| matches!(loaded, Ok(Ok(led)) if led.source == Source::Led));
    let led = led.count();
    let stats = cache.stats();
    if (led, stats.degraded, stats.stored) != (100, 0, 100) {
        return Err(format!("{led} of 100 led, {stats:?}"));
    }
    let lock = Locks::new(backend, "bellwether").mutex("k");
    let guard = timeout(LIMIT, lock.lock()).await.unwrap().map_err(|error| error.to_string())?;
    timeout(LIMIT, guard.unlock()).await.unwrap().map_err(|error| error.to_string())
}

/// A new connection takes three round trips. Commands waited for it only as long as for a reply.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_break_of_a_connection_far_away_fails_no_later_command() {
    let mut failures = Vec::new();
    // On a busy machine a server may be silent for longer than the usual time-out.
    while failures.len() < 3 {
        match outlives_a_break().await {
            Ok(()) => return,
            Err(failure) => failures.push(failure),
        }
    }
    panic!("{failures:?}");
}

/// Returns what failed of the commands that began after a break.
async fn outlives_a_break() -> Result<(), Error> {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    proxy.lengthen_round_trip(USUAL * 3 / 5);
    let backend = RedisBackend::open(&proxy.url())?;
    backend.ping().await?;
    let connections = || proxy.counters().connections.load(Ordering::SeqCst);
    let before = connections();
    proxy.cut();
    assert!(comes_true(LIMIT, async || connections() > before).await, "no new connection");
    join_all((0..10).map(|_| backend.ping())).await.into_iter().collect()
}

/// The reply to the test of a push connection comes behind all pushes. They take longer than the
/// reply may take, and the connection was replaced. Each of its waiters then asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pushes_that_take_long_are_no_silence() {
    const SIZE: usize = 64 << 10;
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let backend = RedisBackend::open(&proxy.url()).unwrap();
    let name = name("k");
    let mut changes = backend.changes(&name).await.unwrap();
    let connections = || proxy.counters().connections.load(Ordering::SeqCst);
    let before = connections();
    proxy.limit_rate(1 << 20);
    let mut raw = server.raw().await;
    let text = "x".repeat(SIZE);
    for _ in 0..48 {
        let heard: usize = raw.run(&["PUBLISH", &name.suffixed("c"), &text]).await;
        assert_eq!(heard, 1);
    }
    let fence = testkit::open(server.url()).edit(&name, &Edit::Invalidate, LIMIT).await.unwrap();
    let last = async { while changes.next().await != Change::Invalidated(fence) {} };
    timeout(LIMIT, last).await.expect("the push is lost");
    assert_eq!(connections(), before);
}

/// A lock had a limit of its own for each try, and a renewal, too, so a longer command time-out did
/// not help them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_setting_is_enough_for_a_server_that_answers_late() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let builder = RedisBackend::builder().server(proxy.url());
    let backend = builder.command_timeout(LIMIT).build().unwrap();
    backend.ping().await.unwrap();
    let lock = Locks::new(backend.clone(), "late").mutex("k");
    let late = |which: &'static str| (which, proxy.when_times(1, kind(which), Fault::Delay(LATE)));
    let of_lock = ["acquire", "renew", "release"].map(late);
    let guard = timeout(LIMIT, lock.try_lock()).await.unwrap().unwrap().unwrap();
    timeout(LIMIT, guard.renew()).await.unwrap().unwrap();
    timeout(LIMIT, guard.unlock()).await.unwrap().unwrap();
    let cache = Cache::<String>::builder(backend, "late").build().unwrap();
    let of_cache = ["get", "claim", "commit", "put"].map(late);
    let load = cache.request("k").load(|_| async { Ok::<_, Infallible>("v".to_owned()) });
    assert_eq!(timeout(LIMIT, load).await.unwrap().unwrap().source, Source::Led);
    timeout(LIMIT, cache.insert("k", &"w".to_owned())).await.unwrap().unwrap();
    for (which, hits) in of_lock.iter().chain(&of_cache) {
        assert_eq!(hits.count(), 1, "{which} was not late");
    }
}
