//! The server's clock is set by an hour, forward and back.
//!
//! Redis counts the lives of keys by that clock, so a step forward ends every lease: then two may load at
//! once, as it is promised for a lease that is lost, and the older one's value is never stored. A step back
//! prolongs them, and fences grow all the same.

use std::time::Duration;

use bellwether::{Cache, Locks, RedisBackend, cache::Source};
use testkit::{LIMIT, Raw, RedisServer, comes_true};
use tokio::time::{Instant, timeout};

use super::{connected, gated, someone_waits, turn, value, worker::FakeClock, works_again};

const HOUR: i64 = 3600;

struct Scene {
    clock: FakeClock,
    server: RedisServer,
    raw: Raw,
    caches: [Cache<String>; 2],
}

async fn scene() -> Scene {
    let clock = FakeClock::right();
    let environment = clock.environment();
    let environment: Vec<_> =
        environment.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let server = RedisServer::start_in(&[], &environment).await;
    let raw = server.raw().await;
    let caches = [connected(&server.url()).await, connected(&server.url()).await];
    Scene { clock, server, raw, caches }
}

impl Scene {
    /// Sets the clock, and sees that the server's time has gone that way.
    async fn set(&mut self, ahead: i64) {
        let before = self.time().await;
        self.clock.set(ahead);
        let stepped = (self.time().await - before).abs();
        assert!((HOUR - 60..2 * HOUR + 60).contains(&stepped), "stepped by {stepped} s");
    }

    async fn time(&mut self) -> i64 {
        self.raw.run::<(i64, i64)>(&["TIME"]).await.0
    }

    /// The fence under which a cache loads a key anew.
    async fn fence(&self, cache: usize, key: &str) -> u64 {
        self.caches[cache].invalidate(key).await.unwrap();
        let (loader, gate) = gated("fenced");
        let led = tokio::spawn(self.caches[cache].request(key).load(loader));
        let lead = timeout(LIMIT, gate.begun).await.unwrap().unwrap();
        gate.open.send(()).unwrap();
        assert_eq!(led.await.unwrap().unwrap().source(), Source::Led);
        lead.fence().unwrap()
    }
}

/// Those of a cache as long as the server remembers the last one: a step forward may take it with the rest,
/// and if the clock was ahead when it was given, the next one is smaller. Those of a lock are remembered for
/// a day, for they leave the house.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_whatever_the_clock_does() {
    let _turn = turn().await;
    let mut scene = scene().await;
    let locks = Locks::new(RedisBackend::open(&scene.server.url()).unwrap());
    let (mut last, mut last_lock, mut back) = (0, 0, false);
    for ahead in [HOUR, 0, -HOUR, HOUR, -HOUR, 0] {
        for cache in [0, 1] {
            let fence = scene.fence(cache, "k").await;
            assert!(fence > last, "{fence} after {last}");
            last = fence;
        }
        scene.set(ahead).await;
        let fence = scene.fence(0, "k").await;
        // The last step is the one forward while the fence is ahead of the clock.
        let last_step = ahead == 0 && back;
        assert!(fence > last || last_step, "{fence} after {last}, at a step to {ahead}");
        back = ahead == -HOUR;
        last = fence;
        let guard = locks.mutex("k").lock().await.unwrap();
        assert!(guard.fence() > last_lock, "{} after {last_lock}", guard.fence());
        last_lock = guard.fence();
        guard.unlock().await.unwrap();
    }
    let [a, b] = &scene.caches;
    works_again(&mut scene.server.raw().await, [a, b], Duration::from_secs(2)).await;
}

/// The clock was ahead when the lease was granted, and has forgotten it: the new fence is the smaller one.
/// Who holds the greater is refused all the same, for it is not the last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_fence_lets_no_older_value_in() {
    let _turn = turn().await;
    let mut scene = scene().await;
    scene.set(HOUR).await;
    let (loader, gate) = gated("old");
    let leading = tokio::spawn(scene.caches[0].request("k").load(loader));
    let before = gate.begun.await.unwrap().fence().unwrap();
    scene.set(-HOUR).await;
    let mut renewed = scene.server.raw().await;
    let mended = async || renewed.pttl("t:c:{k}:f").await <= 60_000;
    assert!(comes_true(LIMIT, mended).await, "it is not renewed");
    scene.set(0).await;
    let (loader, newer) = gated("new");
    let other = tokio::spawn(scene.caches[1].request("k").load(loader));
    let after = newer.begun.await.unwrap().fence().unwrap();
    assert!(after < before, "the greater fence is not forgotten: {after} after {before}");
    gate.open.send(()).unwrap();
    assert_eq!(leading.await.unwrap().unwrap().value(), "old");
    assert_eq!(scene.caches[0].stats().refused, 1);
    newer.open.send(()).unwrap();
    assert_eq!(other.await.unwrap().unwrap().source(), Source::Led);
    assert_eq!(scene.caches[0].get("k").await.unwrap().as_deref(), Some("new"));
}

/// The lease ends an hour early. Its holder is told at the first contact, and what it loads does not replace
/// what another one loaded meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_ends_leases_and_only_the_fence_protects() {
    let _turn = turn().await;
    let mut scene = scene().await;
    let (loader, first) = gated("old");
    let leading = tokio::spawn(scene.caches[0].request("k").load(loader));
    let lead = first.begun.await.unwrap();
    scene.set(HOUR).await;
    let newer = scene.caches[1].request("k").load(value("new")).await.unwrap();
    assert_eq!(newer.source(), Source::Led);
    let stepped = Instant::now();
    timeout(LIMIT, lead.lost()).await.expect("it is not told that the lease is lost");
    // At the next renewal, a third of the lease later.
    assert!(stepped.elapsed() < Duration::from_millis(2500), "{:?}", stepped.elapsed());
    first.open.send(()).unwrap();
    let served = leading.await.unwrap().unwrap();
    assert_eq!((served.value().as_str(), served.source()), ("new", Source::HandedOver));
    assert_eq!(scene.caches[0].get("k").await.unwrap().as_deref(), Some("new"));
}

/// The lease ends an hour late unless it is released or renewed, and both happen: one load at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_lets_nobody_else_in() {
    let _turn = turn().await;
    let mut scene = scene().await;
    for ahead in [-HOUR, 0] {
        if ahead == 0 {
            scene.set(HOUR).await;
        }
        let key = format!("k{ahead}");
        let (loader, gate) = gated("held");
        let leading = tokio::spawn(scene.caches[0].request(&key).load(loader));
        let lead = gate.begun.await.unwrap();
        scene.set(ahead).await;
        let waiting = tokio::spawn(scene.caches[1].request(&key).load(value("beside")));
        someone_waits(&mut scene.raw, &key).await;
        // A renewal sets the right time again.
        let lease = format!("t:c:{{{key}}}:l");
        let mended = async || scene.raw.pttl(&lease).await <= 5_000;
        assert!(comes_true(LIMIT, mended).await, "the lease still lasts an hour");
        tokio::select! {
            () = lead.lost() => panic!("the lease was lost"),
            () = std::future::ready(()) => {}
        }
        gate.open.send(()).unwrap();
        assert_eq!(leading.await.unwrap().unwrap().source(), Source::Led);
        let waited = waiting.await.unwrap().unwrap();
        assert_eq!((waited.value().as_str(), waited.source()), ("held", Source::HandedOver));
        // What was loaded before an invalidation does not outlive it.
        scene.caches[1].invalidate(&key).await.unwrap();
        assert_eq!(scene.caches[0].get(&key).await.unwrap(), None);
    }
}
