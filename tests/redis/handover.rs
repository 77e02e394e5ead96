//! A released lock belongs at once to the first waiter in the queue: its cost, and the checks of a
//! handover.

use bellwether::lock::Mutex;
use testkit::handover_life;

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(60);

/// A lock of one process, with connections of its own.
type Lock = fn(&str) -> Mutex;

/// The two kinds of locks, whose waiters have a queue each.
const BOTH: [Lock; 2] = [fair, plain];

fn fair(url: &str) -> Mutex {
    locks(url).mutex("k").fair().lease(LEASE).wait_limit(LIMIT)
}

fn plain(url: &str) -> Mutex {
    locks(url).mutex("k").lease(LEASE).wait_limit(LIMIT)
}

fn locks(url: &str) -> Locks {
    Locks::new(testkit::open(url), "bellwether")
}

/// Waits for the lock, in a task.
fn waiting(lock: &Mutex) -> JoinHandle<MutexGuard> {
    let lock = lock.clone();
    tokio::spawn(async move { lock.lock().await.unwrap() })
}

async fn got(waiting: JoinHandle<MutexGuard>) -> MutexGuard {
    timeout(LIMIT, waiting).await.expect("no waiter got the lock").unwrap()
}

/// Returns the only key with this suffix.
async fn key(raw: &mut Raw, suffix: &str) -> String {
    let mut keys = raw.keys(&format!("*{suffix}")).await;
    assert_eq!(keys.len(), 1, "{keys:?}");
    keys.remove(0)
}

/// Waits until the queue has a number of entries.
async fn queued(raw: &mut Raw, count: usize) {
    let all = comes_true(LIMIT, async || owners(raw).await.len() == count);
    assert!(all.await, "the waiters do not queue");
}

/// Returns the owners in the queue of one kind of waiters.
async fn owners(raw: &mut Raw) -> Vec<String> {
    match raw.keys("*:[qu]").await.first() {
        Some(queue) => raw.run(&["ZRANGE", queue, "0", "-1"]).await,
        None => Vec::new(),
    }
}

/// A held lock, and a second waiter whose connection the proxy may disturb.
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
    // The waiter asks, subscribes and asks again. It may keep its queue entry in between.
    let asked_again = async || {
        let asked = proxy.seen("acquire");
        let kept = proxy.seen("keep");
        // The holder has called a script, too.
        asked >= 2 && raw.scripts_called().await > asked + kept
    };
    assert!(comes_true(LIMIT, asked_again).await, "the waiter does not ask again");
    Scene { server, proxy, raw, held, second }
}

/// Redis flushes replies in reverse order of the clients that became writable. A `PING` in front of
/// the release puts the last holder at the end, so that the waiter hears first. Without waiters,
/// the `PING` would be a useless command.
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
    alone.lock().await.unwrap().unlock().await.unwrap();
    assert!(!monitor.was_release_answered_last().await);
    held.unlock().await.unwrap();
    assert!(monitor.was_release_answered_last().await);
    got(third).await.unlock().await.unwrap();
}

/// A handover lasts for a short time only, so it must be renewed long before the full lease would
/// need it.
#[tokio::test]
async fn a_handover_is_renewed_in_time() {
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

/// A waiter that missed the push is told by the keeper of its queue entry, which is not there any
/// more.
#[tokio::test]
async fn a_lost_push_costs_the_time_until_the_entries_are_kept() {
    let fair = a_push_is_lost(fair);
    let plain = a_push_is_lost(plain);
    let (fair, plain) = tokio::join!(fair, plain);
    assert!(fair < 3000 * MS, "{fair:?}");
    assert!(plain < 3000 * MS, "{plain:?}");
}

async fn a_push_is_lost(lock: Lock) -> Duration {
    let Scene { server: _server, proxy, raw: _, held, second } = scene(lock).await;
    proxy.set_push_fault(Some(PushFault::Drop));
    let begun = Instant::now();
    held.unlock().await.unwrap();
    got(second).await.unlock().await.unwrap();
    begun.elapsed()
}

/// The push of a handover comes so late that the lease has ended, and another owner holds the lock.
/// The state of the waiter has not changed since its claim. It still knows the duration of its
/// wait, and so does not trust the push.
#[tokio::test]
async fn a_push_that_comes_after_the_end_is_not_trusted() {
    let Scene { server, proxy, mut raw, held, second } = scene(plain).await;
    let third = plain(&server.url());
    proxy.set_push_fault(Some(PushFault::Delay(handover_life() + 1500 * MS)));
    // Otherwise the process would learn that the queue entry is gone.
    proxy.when(|_| true, Fault::Delay(2 * handover_life()));
    held.unlock().await.unwrap();
    let lease = key(&mut raw, ":l").await;
    // The lease ends with the queue entry of the waiter, which is some milliseconds old by now.
    let asked = Instant::now();
    let left = u64::try_from(raw.pttl(&lease).await).unwrap();
    assert!((1..=2000).contains(&left), "{left} ms");
    assert!(third.try_lock().await.unwrap().is_none());
    let mut held = None;
    let ended = async || {
        held = third.try_lock().await.unwrap();
        held.is_some()
    };
    assert!(comes_true(LIMIT, ended).await, "the handover does not end");
    let held = held.unwrap();
    let lasted = asked.elapsed();
    assert!(lasted + 10 * MS >= Duration::from_millis(left), "{lasted:?} of {left} ms");
    // The push arrives, and the waiter asks.
    queued(&mut raw, 1).await;
    assert!(!second.is_finished(), "the lock has two holders");
    proxy.clear();
    held.unlock().await.unwrap();
    got(second).await.unlock().await.unwrap();
}

/// Little is left of the handover when its push arrives. The waiter asks, and has the lease for its
/// full time.
#[tokio::test]
async fn a_late_push_makes_the_waiter_ask() {
    for lock in BOTH {
        let Scene { server: _server, proxy, raw: _, held, second } = scene(lock).await;
        proxy.set_push_fault(Some(PushFault::Delay(handover_life() / 2 + 200 * MS)));
        held.unlock().await.unwrap();
        let held = got(second).await;
        assert!(held.remaining() > LEASE / 2, "{:?}", held.remaining());
        held.unlock().await.unwrap();
    }
}

/// The fence of a late push is not greater than the holder's, or its time is over. The waiter asks,
/// and is not granted.
#[tokio::test]
async fn a_push_that_is_older_than_the_holder_is_not_trusted() {
    for lock in BOTH {
        an_older_push_comes(lock).await;
    }
}

async fn an_older_push_comes(lock: Lock) {
    let Scene { server: _server, proxy: _proxy, mut raw, held, second } = scene(lock).await;
    let token = owners(&mut raw).await.remove(0);
    let own = format!("bellwether:l:p:{}", &token[..16]);
    let listens = comes_true(LIMIT, async || raw.process_channels().await.contains(&own));
    assert!(listens.await, "the waiter does not listen");
    let mut told = Vec::new();
    for fence in [held.fence(), held.fence() - 1, 0] {
        told.push(format!("g{fence:016}{token}60000"));
    }
    for ends in ["0", "999", "-5", ""] {
        told.push(format!("g{:016}{token}{ends}", held.fence() + 1));
    }
    for message in told {
        let before = raw.scripts_called().await;
        let message = format!("bellwether:l:{{k}}:{message}");
        let heard: u32 = raw.run(&["PUBLISH", &own, &message]).await;
        assert!(heard > 0);
        assert!(comes_true(LIMIT, async || raw.scripts_called().await > before).await);
        assert!(!second.is_finished(), "the lock has two holders");
    }
    held.unlock().await.unwrap();
    got(second).await.unlock().await.unwrap();
}

/// The waiter leaves in the moment of the handover. No lease without a caller may be left.
#[tokio::test]
async fn a_waiter_that_leaves_during_the_handover_leaves_the_lock_to_the_next() {
    for lock in BOTH {
        leave_during_the_handover(lock).await;
    }
}

async fn leave_during_the_handover(lock: Lock) {
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
        // A clock, because a lost handover also ends: by the time of its lease.
        assert!(begun.elapsed() < handover_life(), "{:?}", begun.elapsed());
    }
    let clean = async || raw.keys("*").await.iter().all(|key| key.ends_with(":f"));
    assert!(comes_true(LIMIT, clean).await, "{:?}", raw.keys("*").await);
}
