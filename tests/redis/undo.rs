//! Claims that lie in a server which stands still, and whose callers gave up.

use futures_util::future::join;
use testkit::primitives::{Asked, PAIRS};

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(3);
const WAIT: Duration = Duration::from_millis(700);
/// The time-out of a command, whose callers the server is not to keep for long.
const TIME_OUT: Duration = Duration::from_secs(3);
/// Longer than the lease and all that is tried within it.
const STANDSTILL: Duration = Duration::from_secs(8);
const SOON: Duration = Duration::from_millis(500);

fn open(server: &RedisServer) -> RedisBackend {
    testkit::builder().server(server.url()).command_timeout(TIME_OUT).build().unwrap()
}

fn cache(server: &RedisServer) -> Cache<String> {
    Cache::builder(open(server), "bellwether").lease(LEASE).build().unwrap()
}

async fn load(cache: Cache<String>) -> Source {
    let load = async |_| Ok::<_, BoxError>("v".to_owned());
    cache.request("loaded").load(load).await.unwrap().source
}

/// The server runs the claims when it goes on. The undo had stopped at the end of the lease, so the
/// locks stayed taken for another whole lease, without a holder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_of_a_caller_that_gave_up_is_undone_when_the_server_goes_on() {
    let server = RedisServer::start().await;
    let here = open(&server);
    here.ping().await.unwrap();
    let loading = cache(&server);
    assert_eq!(load(loading.clone()).await, Source::Led);
    loading.invalidate("loaded").await.unwrap();

    server.stop_signal();
    let given_up = PAIRS
        .iter()
        .map(|(name, pair)| (pair.one.take)(Asked::of(here.clone(), name, LEASE).within(WAIT)));
    let (given_up, loaded) = join(join_all(given_up), load(loading)).await;
    assert!(given_up.iter().all(Result::is_err), "the server stands still");
    assert_eq!(loaded, Source::Degraded);
    sleep(STANDSTILL).await;
    server.resume();

    let back = Instant::now();
    let there = testkit::open(server.url());
    let taken = PAIRS.iter().map(|(name, pair)| {
        let asked = Asked::of(there.clone(), name, LEASE).within(LIMIT);
        async move {
            let guard = (pair.rival.take)(asked).await.unwrap();
            (*name, back.elapsed(), guard)
        }
    });
    let loaded = async { (load(cache(&server)).await, back.elapsed()) };
    let (taken, (source, loaded)) = timeout(LIMIT, join(join_all(taken), loaded)).await.unwrap();
    let late: Vec<_> = taken.iter().filter(|(_, took, _)| *took > SOON).collect();
    let late: Vec<_> = late.iter().map(|(name, took, _)| (name, took)).collect();
    assert!(late.is_empty(), "late after the standstill: {late:?}");
    assert!(source == Source::Led && loaded <= SOON, "{source:?} after {loaded:?}");
}
