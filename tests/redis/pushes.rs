//! The channel of a process, and what a wait costs with it.

use std::time::Duration;

use bellwether::{Locks, RedisBackend, lock::Mutex};
use testkit::{LIMIT, Raw, RedisServer, comes_true};
use tokio::time::timeout;

const LEASE: Duration = Duration::from_secs(60);

fn open(url: &str) -> RedisBackend {
    // A busy machine must not cause a time-out.
    let builder = RedisBackend::builder().server(url).command_timeout(LIMIT);
    builder.connect_timeout(LIMIT).build().unwrap()
}

fn mutex(locks: &Locks, name: &str) -> Mutex {
    locks.mutex(name).lease(LEASE).wait_limit(LIMIT)
}

/// Waits until the queue of a lock has an entry.
async fn queued(raw: &mut Raw, name: &str) {
    let queue = format!("bellwether:l:{{{name}}}:q");
    let waits = comes_true(LIMIT, async || raw.run::<usize>(&["ZCARD", &queue]).await == 1);
    assert!(waits.await, "the waiter does not queue");
}

/// A process subscribes with its first wait, and never again. Each later wait is one claim, and the
/// release hands the lock over.
#[tokio::test]
async fn waits_of_a_process_share_one_subscription() {
    const WAITS: usize = 20;
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [here, there] = [(); 2].map(|()| Locks::new(open(&server.url())));
    let wait = async |raw: &mut Raw, name: &str| {
        let held = mutex(&here, name).lock().await.unwrap();
        let waiter = mutex(&there, name);
        let waiting = tokio::spawn(async move { waiter.lock().await.unwrap() });
        queued(raw, name).await;
        held.unlock().await.unwrap();
        timeout(LIMIT, waiting).await.unwrap().unwrap().unlock().await.unwrap();
    };
    wait(&mut raw, "first").await;
    let channels = raw.process_channels().await;
    assert_eq!(channels.len(), 1, "{channels:?}");
    let mut monitor = server.monitor().await;
    for at in 0..WAITS {
        wait(&mut raw, &format!("k{at}")).await;
    }
    let calls = monitor.calls_from_clients().await;
    let count = |word: &str| calls.iter().filter(|call| call.command.contains(word)).count();
    assert_eq!(count("SUBSCRIBE"), 0, "{calls:?}");
    // A lock, a wait, and two releases.
    assert_eq!(count("EVALSHA"), 4 * WAITS);
    assert_eq!(raw.process_channels().await, channels);
    assert_eq!(raw.pubsub_channels().await, [""; 0]);
}

/// The channel of the process names the database, because databases share channels.
#[tokio::test]
async fn a_process_has_a_channel_for_each_database_namespace_and_family() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [first, second] = [0, 3].map(|database| open(&server.url_of("", database)));
    for backend in [&first, &second] {
        for namespace in ["shop", "shop.eu"] {
            let locks = Locks::new(backend.clone()).namespace(namespace);
            mutex(&locks, "k").lock().await.unwrap().unlock().await.unwrap();
        }
    }
    let expected = ["shop.eu:l:p:", "shop.eu:l:p@3:", "shop:l:p:", "shop:l:p@3:"];
    let all = async || {
        let mut channels = raw.process_channels().await;
        channels.sort();
        let scopes = channels.iter().map(|channel| &channel[..channel.len() - 16]);
        scopes.eq(expected)
    };
    assert!(comes_true(LIMIT, all).await);
}
