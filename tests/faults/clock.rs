//! The clock of the server is set by an hour, forward and back.
//!
//! Redis counts the lives of keys by that clock, so a step forward ends every lease. Two processes
//! may then load at once, as promised for a lost lease, and the older value is never stored. A step
//! back prolongs the leases, and fences still grow.

use super::worker::FakeClock;
use super::*;

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
    let environment: Vec<_> = environment.iter().map(|(name, value)| (*name, &**value)).collect();
    let server = RedisServer::start_in(&[], &environment).await;
    let raw = server.raw().await;
    let caches = [patient(&server.url()).await, patient(&server.url()).await];
    Scene { clock, server, raw, caches }
}

impl Scene {
    /// Sets the clock, and checks that the time of the server has followed.
    async fn set(&mut self, ahead: i64) {
        let before = self.time().await;
        self.clock.set(ahead);
        let stepped = (self.time().await - before).abs();
        assert!(
            (HOUR - 60..2 * HOUR + 60).contains(&stepped),
            "the clock of the server stepped by {stepped} s"
        );
    }

    async fn time(&mut self) -> i64 {
        self.raw.run::<(i64, i64)>(&["TIME"]).await.0
    }

    /// Loads a key anew, and returns the fence of the load.
    async fn fence(&self, cache: usize, key: &str) -> u64 {
        self.caches[cache].invalidate(key).await.unwrap();
        let (loader, gate) = gated("fenced");
        let led = tokio::spawn(self.caches[cache].request(key).load(loader));
        let lead = timeout(LIMIT, gate.begun).await.unwrap().unwrap();
        gate.open.send(()).unwrap();
        assert_eq!(led.await.unwrap().unwrap().source, Source::Led);
        lead.fence().unwrap()
    }
}

/// The fences of a cache grow as long as the server remembers the last one. A step forward may
/// delete it. If the clock was ahead when that fence was given, the next one is smaller. The server
/// remembers the fences of locks for a day, because other services may see them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fences_grow_when_the_clock_is_set() {
    let _turn = turn().await;
    let mut scene = scene().await;
    let locks = Locks::new(testkit::open(scene.server.url()), "bellwether");
    let mut last = 0;
    let mut last_lock = 0;
    let mut back = false;
    for ahead in [HOUR, 0, -HOUR, HOUR, -HOUR, 0] {
        for cache in [0, 1] {
            let fence = scene.fence(cache, "k").await;
            assert!(fence > last, "{fence} after {last}");
            last = fence;
        }
        scene.set(ahead).await;
        let fence = scene.fence(0, "k").await;
        // In the last step, the clock goes forward while the fence is ahead of it.
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
    works_again(&mut scene.server.raw().await, [a, b], RECOVERY).await;
}

/// The clock was ahead when the lease was granted, and the server forgot the fence. The new fence
/// is smaller. The commit with the greater fence is refused all the same, because it is not the
/// last one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forgotten_fence_admits_no_older_value() {
    let _turn = turn().await;
    let mut scene = scene().await;
    scene.set(HOUR).await;
    let (loader, gate) = gated("old");
    let leading = tokio::spawn(scene.caches[0].request("k").load(loader));
    let before = gate.begun.await.unwrap().fence().unwrap();
    scene.set(-HOUR).await;
    let mut renewed = scene.server.raw().await;
    let mended = async || renewed.pttl("t:c:{k}:f").await <= 60_000;
    assert!(comes_true(LIMIT, mended).await, "the fence was not renewed");
    scene.set(0).await;
    let (loader, newer) = gated("new");
    let other = tokio::spawn(scene.caches[1].request("k").load(loader));
    let after = newer.begun.await.unwrap().fence().unwrap();
    assert!(after < before, "the server still knows the greater fence: {after} after {before}");
    gate.open.send(()).unwrap();
    assert_eq!(leading.await.unwrap().unwrap().value, "old");
    assert_eq!(scene.caches[0].stats().refused, 1);
    newer.open.send(()).unwrap();
    assert_eq!(other.await.unwrap().unwrap().source, Source::Led);
    assert_eq!(scene.caches[0].get("k").await.unwrap().as_deref(), Some("new"));
}

/// The lease ends an hour early. Its holder is told at the first contact, and its value does not
/// replace a value that was loaded meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_forward_ends_leases_and_only_the_fence_protects() {
    let _turn = turn().await;
    let mut scene = scene().await;
    let (loader, first) = gated("old");
    let leading = tokio::spawn(scene.caches[0].request("k").load(loader));
    let lead = first.begun.await.unwrap();
    scene.set(HOUR).await;
    let newer = scene.caches[1].request("k").load(value("new")).await.unwrap();
    assert_eq!(newer.source, Source::Led);
    let stepped = Instant::now();
    timeout(LIMIT, lead.lost()).await.expect("the loader was not told of the loss");
    // The next renewal comes a third of the lease later.
    assert!(stepped.elapsed() < Duration::from_secs(4), "{:?}", stepped.elapsed());
    first.open.send(()).unwrap();
    let served = leading.await.unwrap().unwrap();
    assert_eq!((served.value.as_str(), served.source), ("new", Source::Received));
    assert_eq!(scene.caches[0].get("k").await.unwrap().as_deref(), Some("new"));
}

/// The lease ends an hour late unless it is released or renewed. Both happen, and there is one load
/// at a time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_back_admits_no_second_load() {
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
        until_a_caller_waits(&mut scene.raw, &key).await;
        // A renewal restores the right time.
        let lease = format!("t:c:{{{key}}}:l");
        let mended = async || scene.raw.pttl(&lease).await <= 5_000;
        assert!(comes_true(LIMIT, mended).await, "the lease still lasts an hour");
        tokio::select! {
            () = lead.lost() => panic!("the lease was lost"),
            () = std::future::ready(()) => {}
        }
        gate.open.send(()).unwrap();
        assert_eq!(leading.await.unwrap().unwrap().source, Source::Led);
        let waited = waiting.await.unwrap().unwrap();
        assert_eq!((waited.value.as_str(), waited.source), ("held", Source::Received));
        // An invalidation removes the loaded value.
        scene.caches[1].invalidate(&key).await.unwrap();
        assert_eq!(scene.caches[0].get(&key).await.unwrap(), None);
    }
}

const TTL: Duration = Duration::from_secs(60);

/// Returns a cache with a stale window and one for failures, each of two hours.
async fn with_windows(scene: &Scene) -> Cache<String> {
    let backend = testkit::open(scene.server.url());
    until_connected(&backend).await;
    let builder = Cache::builder(backend, "t").ttl(TTL);
    let window = Duration::from_secs(2 * HOUR.unsigned_abs());
    builder.stale_while_revalidate(window).stale_if_error(2 * window).build().unwrap()
}

/// Asks until a value is refreshed, and checks that no caller waits for a load.
async fn until_refreshed(cache: &Cache<String>, from: &str, to: &str) {
    let refreshed = async || {
        let served = cache.request("k").load(value(to)).await.unwrap();
        assert!(matches!(served.source, Source::Hit | Source::Stale), "{served:?}");
        assert!(served.value == *from || served.value == *to, "{served:?}");
        served.value == *to
    };
    assert!(comes_true(LIMIT, refreshed).await, "{from} is not refreshed");
}

/// The windows move with the clock. A step forward ends the fresh window, and the value is
/// refreshed. A step back makes a value of the future, which is fresh until an act replaces it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_move_when_the_clock_is_set() {
    let _turn = turn().await;
    let mut scene = scene().await;
    let caches = [with_windows(&scene).await, with_windows(&scene).await];
    let led = caches[0].request("k").load(value("one")).await.unwrap();
    assert_eq!(led.source, Source::Led);
    assert_eq!(caches[1].request("k").load(value("no")).await.unwrap().source, Source::Hit);
    scene.set(HOUR).await;
    until_refreshed(&caches[1], "one", "two").await;
    let hit = caches[0].request("k").load(value("no")).await.unwrap();
    assert_eq!((hit.value.as_str(), hit.source), ("two", Source::Hit));
    scene.set(0).await;
    for cache in &caches {
        let served = cache.request("k").load(value("no")).await.unwrap();
        assert_eq!((served.value.as_str(), served.source), ("two", Source::Hit));
        assert!(cache.peek("k").await.unwrap().unwrap().expires_in().unwrap() <= TTL);
    }
    caches[1].expire("k").await.unwrap();
    let led = caches[0].request("k").load(value("three")).await.unwrap();
    assert_eq!((led.value.as_str(), led.source), ("three", Source::Led));
    scene.set(HOUR).await;
    until_refreshed(&caches[0], "three", "four").await;
}
