//! A lock that is given back belongs to the first in the queue at once: what it costs, and what of it is believed.

use std::{sync::Arc, time::Duration};

use bellwether::{
    Locks, RedisBackend,
    backend::HANDOVER_LIFE,
    lock::{Mutex, MutexGuard},
};
use testkit::{
    LIMIT, Raw, RedisServer, comes_true, eventually,
    proxy::{Proxy, PushFault},
};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

const LEASE: Duration = Duration::from_secs(60);
const MS: Duration = Duration::from_millis(1);

/// A lock of one process, with connections of its own.
type Lock = fn(&str) -> Mutex;

/// Whoever waits keeps asking for the place, in the one; in the other he asks seldom.
const BOTH: [Lock; 2] = [fair, plain];

fn fair(url: &str) -> Mutex {
    locks(url).fair_mutex("k").lease(LEASE).wait_limit(LIMIT)
}

fn plain(url: &str) -> Mutex {
    locks(url).mutex("k").lease(LEASE).wait_limit(LIMIT)
}

fn locks(url: &str) -> Locks {
    // A busy machine must not make a time-out.
    let builder = RedisBackend::builder().server(url).command_timeout(LIMIT);
    Locks::new(builder.connect_timeout(LIMIT).build().unwrap())
}

/// Waits for the lock, in a task.
fn waiting(lock: &Mutex) -> JoinHandle<MutexGuard> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.lock().await.unwrap() })
}

async fn got(waiting: JoinHandle<MutexGuard>) -> MutexGuard {
    timeout(LIMIT, waiting).await.expect("nobody gets it").unwrap()
}

/// The one key of ours that ends so.
async fn key(raw: &mut Raw, suffix: &str) -> String {
    let mut keys = raw.keys(&format!("*{suffix}")).await;
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys.remove(0)
}

/// Returns when so many wait in the queue.
async fn queued(raw: &mut Raw, count: usize) {
    let all = comes_true(LIMIT, async || match raw.keys("*:q").await.first() {
        Some(queue) => raw.run::<usize>(&["ZCARD", queue]).await == count,
        None => false,
    });
    assert!(all.await, "they do not queue");
}

/// Who is first in the queue.
async fn first(raw: &mut Raw) -> String {
    let queue = key(raw, ":q").await;
    raw.run::<Vec<String>>(&["ZRANGE", &queue, "0", "0"]).await.remove(0)
}

async fn scripts_called(raw: &mut Raw) -> u64 {
    let info: String = raw.run(&["INFO", "commandstats"]).await;
    let line = info.lines().find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split_once("calls=")?.1.split(',').next()?.parse().ok());
    calls.unwrap_or(0)
}

/// One has it, and another, whose way to the server may be disturbed, waits.
struct Scene {
    server: RedisServer,
    proxy: Proxy,
    raw: Raw,
    held: MutexGuard,
    second: JoinHandle<MutexGuard>,
}

async fn scene(lock: Lock) -> Scene {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let mut raw = server.raw().await;
    let held = lock(&server.url()).lock().await.unwrap();
    let second = waiting(&lock(&proxy.url()));
    // He asks, subscribes and asks again.
    assert!(comes_true(LIMIT, async || scripts_called(&mut raw).await >= 3).await);
    Scene { server, proxy, raw, held, second }
}

/// Each question and each release is a command, and nothing else is, but for subscribing.
#[tokio::test]
async fn a_fair_hold_is_two_commands() {
    const HOLDS: usize = 20;
    let server = RedisServer::start().await;
    let locks = [fair(&server.url()), fair(&server.url())];
    let mut monitor = server.monitor().await;
    let tasks = (0..6).map(|task| {
        let lock = locks[task % 2].clone();
        tokio::spawn(async move {
            for _ in 0..HOLDS {
                lock.lock().await.unwrap().unlock().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        timeout(LIMIT, task).await.unwrap().unwrap();
    }
    let calls = monitor.calls_from_clients().await;
    let scripts = calls.iter().filter(|call| call.command.starts_with("EVAL")).count();
    // Who was there before his process had subscribed asked twice.
    assert!((12 * HOLDS..=12 * HOLDS + 12).contains(&scripts), "{scripts}");
}

/// Who waits for a mutex has it without another question.
#[tokio::test]
async fn a_mutex_is_handed_over_with_one_command() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let end = Instant::now() + LIMIT;
    loop {
        let (one, other) = (plain(&server.url()), plain(&server.url()));
        let before = scripts_called(&mut raw).await;
        let held = one.lock().await.unwrap();
        let second = waiting(&other);
        // He asks, subscribes and asks again.
        assert!(comes_true(LIMIT, async || scripts_called(&mut raw).await >= before + 3).await);
        let before = scripts_called(&mut raw).await;
        let begun = Instant::now();
        held.unlock().await.unwrap();
        let held = got(second).await;
        let since = scripts_called(&mut raw).await - before;
        let took = begun.elapsed();
        held.unlock().await.unwrap();
        // Later than that, it may have been renewed.
        if took < 80 * MS {
            assert_eq!(since, 1);
            return;
        }
        assert!(Instant::now() < end, "the machine is too busy");
    }
}

/// A server writes first to whom it owes something last. So that who waits hears before the last holder is answered, he is
/// owed an answer before the release begins; where nobody waits, that is a command for nothing.
#[tokio::test]
async fn a_release_that_others_wait_for_is_answered_last() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let one = locks(&server.url());
    let (lock, alone) =
        (one.mutex("k").lease(LEASE).wait_limit(LIMIT), one.mutex("alone").lease(LEASE));
    let other = plain(&server.url());
    let held = other.lock().await.unwrap();
    let second = waiting(&lock);
    queued(&mut raw, 1).await;
    held.unlock().await.unwrap();
    let held = got(second).await;
    let third = waiting(&other);
    queued(&mut raw, 1).await;
    let mut monitor = server.monitor().await;
    let mut is_last = async || {
        let calls = monitor.calls_from_clients().await;
        let at = calls.iter().rposition(|call| call.command == "EVALSHA").unwrap();
        let mut before = calls[..at].iter().rev();
        let before = before.find(|call| call.client == calls[at].client);
        before.is_some_and(|call| call.command == "PING")
    };
    alone.lock().await.unwrap().unlock().await.unwrap();
    assert!(!is_last().await);
    held.unlock().await.unwrap();
    assert!(is_last().await);
    got(third).await.unlock().await.unwrap();
}

/// It lasts for a short time only; so it must be renewed long before its own.
#[tokio::test]
async fn what_is_handed_over_is_renewed_in_time() {
    for lock in BOTH {
        handed_over_and_renewed(lock).await;
    }
}

async fn handed_over_and_renewed(lock: Lock) {
    let Scene { server: _server, proxy: _proxy, mut raw, held, second } = scene(lock).await;
    let fence = held.fence();
    held.unlock().await.unwrap();
    let held = got(second).await;
    assert!(held.fence() > fence);
    let lease = key(&mut raw, ":l").await;
    let value: String = raw.run(&["GET", &lease]).await;
    assert!(value.ends_with(&format!(":{:016}", held.fence())), "{value}");
    assert!(!held.remaining().is_zero());
    let renewed = comes_true(3 * LIMIT, async || raw.pttl(&lease).await > 50_000).await;
    assert!(renewed, "{} ms are left", raw.pttl(&lease).await);
    assert!(!held.is_lost());
    held.unlock().await.unwrap();
}

/// Whoever is not told has it when he next asks: who keeps his place does so every 1.6 s, and otherwise it is 5 s.
#[tokio::test]
async fn a_push_that_is_lost_costs_until_the_next_question() {
    let (fair, plain) = (a_push_is_lost(fair), a_push_is_lost(plain));
    let (fair, plain) = tokio::join!(fair, plain);
    assert!(fair < 4000 * MS, "{fair:?}");
    assert!(plain < 8000 * MS, "{plain:?}");
}

async fn a_push_is_lost(lock: Lock) -> Duration {
    let Scene { server: _server, proxy, raw: _, held, second } = scene(lock).await;
    proxy.pushes(Some(PushFault::Drop));
    let begun = Instant::now();
    held.unlock().await.unwrap();
    got(second).await.unlock().await.unwrap();
    begun.elapsed()
}

/// He was handed it, and word of that comes so late that it has ended, and someone else holds it. Nothing of what he
/// knows has changed since he asked; but since when he waits he knows.
#[tokio::test]
async fn a_push_that_comes_after_the_end_is_not_believed() {
    let asked = Instant::now();
    let Scene { server, proxy, mut raw, held, second } = scene(plain).await;
    let third = plain(&server.url());
    proxy.pushes(Some(PushFault::Delay(HANDOVER_LIFE + 700 * MS)));
    held.unlock().await.unwrap();
    let handed_over = Instant::now();
    let lease = key(&mut raw, ":l").await;
    assert!(raw.pttl(&lease).await <= 2000);
    assert!(third.try_lock().await.unwrap().is_none());
    let mut held = None;
    let ended = async || {
        held = third.try_lock().await.unwrap();
        held.is_some()
    };
    assert!(comes_true(LIMIT, ended).await, "what was handed over does not end");
    let held = held.unwrap();
    assert!(handed_over.elapsed() >= HANDOVER_LIFE - 10 * MS);
    let before = scripts_called(&mut raw).await;
    // It comes, and he asks.
    assert!(comes_true(LIMIT, async || scripts_called(&mut raw).await > before).await);
    assert!(!second.is_finished(), "two have it");
    assert!(asked.elapsed() < 4500 * MS, "he has asked by himself, so this says nothing");
    proxy.pushes(None);
    held.unlock().await.unwrap();
    got(second).await.unlock().await.unwrap();
}

/// Little is left of it when he hears of it. He asks, and has it for its full time.
#[tokio::test]
async fn a_push_that_comes_late_is_a_question() {
    for lock in BOTH {
        let Scene { server: _server, proxy, raw: _, held, second } = scene(lock).await;
        proxy.pushes(Some(PushFault::Delay(HANDOVER_LIFE / 2 + 200 * MS)));
        held.unlock().await.unwrap();
        let held = got(second).await;
        assert!(held.remaining() > LEASE / 2, "{:?}", held.remaining());
        held.unlock().await.unwrap();
    }
}

/// A push of an earlier hold is late, and comes when its reader waits for the next one.
///
/// Its fence is not greater than that of the holder whom he met, or it has ended. He asks, and is not granted.
#[tokio::test]
async fn a_push_that_is_older_than_the_holder_is_not_believed() {
    for lock in BOTH {
        an_older_push_comes(lock).await;
    }
}

async fn an_older_push_comes(lock: Lock) {
    let Scene { server: _server, proxy: _proxy, mut raw, held, second } = scene(lock).await;
    let token = first(&mut raw).await;
    let listens = comes_true(LIMIT, async || {
        raw.pubsub_channels().await.iter().any(|channel| channel.ends_with(&token[..16]))
    });
    assert!(listens.await, "nobody listens");
    let channels = raw.pubsub_channels().await;
    let own = channels.iter().find(|channel| channel.ends_with(&token[..16])).unwrap();
    let mut told = Vec::new();
    for fence in [held.fence(), held.fence() - 1, 0] {
        told.push(format!("g{fence:016}{token}60000"));
    }
    for ends in ["0", "999", "-5", ""] {
        told.push(format!("g{:016}{token}{ends}", held.fence() + 1));
    }
    for message in told {
        let before = scripts_called(&mut raw).await;
        let heard: u32 = raw.run(&["PUBLISH", own, &message]).await;
        assert!(heard > 0);
        assert!(comes_true(LIMIT, async || scripts_called(&mut raw).await > before).await);
        assert!(!second.is_finished(), "two have it");
    }
    held.unlock().await.unwrap();
    got(second).await.unlock().await.unwrap();
}

/// He leaves just when it is handed over to him: nobody may be left with a lease that he does not know of.
#[tokio::test]
async fn who_leaves_as_it_is_handed_over_leaves_it_to_the_next() {
    for lock in BOTH {
        leaves_as_it_is_handed_over(lock).await;
    }
}

async fn leaves_as_it_is_handed_over(lock: Lock) {
    let server = RedisServer::start().await;
    let locks: Arc<[Mutex; 3]> = Arc::new([(); 3].map(|()| lock(&server.url())));
    let mut raw = server.raw().await;
    for round in 0..50_u32 {
        let held = locks[0].lock().await.unwrap();
        let second = waiting(&locks[1]);
        queued(&mut raw, 1).await;
        let third = waiting(&locks[2]);
        queued(&mut raw, 2).await;
        let begun = Instant::now();
        let unlocking = tokio::spawn(held.unlock());
        sleep(MS * (round % 5) / 4).await;
        second.abort();
        if let Ok(held) = second.await {
            held.unlock().await.unwrap();
        }
        unlocking.await.unwrap().unwrap();
        got(third).await.unlock().await.unwrap();
        // Not by the end of anything.
        assert!(begun.elapsed() < 1500 * MS, "{:?}", begun.elapsed());
    }
    let clean = || {
        let mut raw = raw.clone();
        async move { raw.keys("*").await.iter().all(|key| key.ends_with(":f")) }
    };
    assert!(eventually(LIMIT, clean).await, "{:?}", raw.keys("*").await);
}
