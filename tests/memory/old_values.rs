//! The old value in the loader, and loads that find it unchanged.
//!
//! Caches over one memory backend stand for processes, and time is paused.

use crate::prelude::*;

const TTL: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(5);
const LOAD: Duration = Duration::from_millis(100);

fn build(builder: Builder<u64>) -> Cache<u64> {
    builder.ttl(TTL).stale_if_error(WINDOW).build().unwrap()
}

/// Returns two processes, and the backend through which the first one goes.
fn fleet() -> (Cache<u64>, Cache<u64>, Faulty) {
    let backend = MemoryBackend::new();
    let faulty = Faulty::over(backend.clone(), |_| None);
    (
        build(Cache::builder(faulty.clone(), "bellwether")),
        build(Cache::builder(backend, "bellwether")),
        faulty,
    )
}

/// A loader that asks whether there is anything new, which takes a while. There is not.
fn unchanged(lead: Lead<u64>) -> BoxFuture<'static, Result<u64, BoxError>> {
    async move {
        let stale = lead.stale().ok_or("there is no stale value")?;
        sleep(LOAD).await;
        Ok(lead.unchanged(stale))
    }
    .boxed()
}

/// Returns what a loader sees.
async fn seen(cache: &Cache<u64>, window: Duration) -> Option<u64> {
    let (sender, seen) = tokio::sync::oneshot::channel();
    let request = cache.request("k").stale_while_revalidate(window);
    let load = request.load(|lead| async move {
        let _ = sender.send(lead.stale().map(|stale| stale.value));
        Ok::<_, BoxError>(lead.stale().map_or(1, |stale| stale.value + 1))
    });
    load.await.unwrap();
    seen.await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_loader_sees_the_value_that_it_replaces() {
    let (cache, other, faulty) = fleet();
    assert_eq!(seen(&cache, TTL).await, None);
    // The caller wants nothing stale, so it waits for the load.
    sleep(TTL).await;
    assert_eq!(seen(&cache, Duration::ZERO).await, Some(1));
    // The value is kept for failures.
    sleep(TTL + MS).await;
    assert_eq!(seen(&other, TTL).await, Some(2));
    // It is stale, and refreshed in the background by the process that stored it.
    sleep(TTL + MS).await;
    assert_eq!(seen(&other, TTL).await, Some(3));
    sleep(MS).await;
    cache.expire("k").await.unwrap();
    assert_eq!(seen(&other, TTL).await, Some(4));
    cache.invalidate("k").await.unwrap();
    assert_eq!(seen(&other, TTL).await, None);
    let other = Cache::builder(faulty, "bellwether").early_refresh(EarlyRefresh::Within(TTL));
    let other = build(other);
    cache.invalidate("k").await.unwrap();
    assert_eq!(seen(&other, TTL).await, None);
    sleep(TTL / 2).await;
    let load = |lead: Lead<u64>| async move {
        let stale = lead.stale().ok_or("there is no stale value")?;
        assert_eq!(stale.age(), Some(TTL / 2));
        Ok::<_, BoxError>(stale.value + 100)
    };
    let hit = other.request("k").load(load).await.unwrap();
    assert_eq!((hit.value, hit.source), (1, Source::Hit));
    sleep(MS).await;
    assert_eq!(cache.get("k").await.unwrap(), Some(101));
}

#[tokio::test(start_paused = true)]
async fn an_unchanged_value_is_stored_anew() {
    let (cache, other, faulty) = fleet();
    cache.insert("k", &7).await.unwrap();
    for _ in 0..3 {
        sleep(TTL).await;
        let waiting = spawn(cache.request("k").load(unchanged));
        sleep(LOAD / 2).await;
        let received = other.request("k").load(unchanged).await.unwrap();
        assert_eq!((received.value, received.source), (7, Source::Received));
        let led = waiting.await.unwrap().unwrap();
        assert_eq!((led.value, led.source, led.fence()), (7, Source::Led, received.fence()));
        assert_eq!(led.expires_in(), Some(TTL));
        sleep(TTL - MS).await;
        let hit = other.request("k").load(unchanged).await.unwrap();
        assert_eq!((hit.source, hit.fence()), (Source::Hit, led.fence()));
    }
    assert_eq!(faulty.count(Op::Commit), 3);
    let stats = cache.stats();
    assert_eq!((stats.stored, stats.unchanged, stats.led), (3, 3, 3));
}

/// The entry may end or be evicted while the loader asks. The origin has said that its value is
/// right.
#[tokio::test(start_paused = true)]
async fn an_unchanged_value_that_is_gone_is_stored() {
    let (cache, other, _) = fleet();
    cache.insert("k", &7).await.unwrap();
    sleep(TTL + WINDOW - LOAD / 2).await;
    let led = cache.request("k").load(unchanged).await.unwrap();
    assert_eq!((led.value, led.source), (7, Source::Led));
    let stored = other.peek("k").await.unwrap().unwrap();
    assert_eq!((stored.value, stored.fence()), (7, led.fence()));
    assert_eq!((cache.stats().stored, cache.stats().unchanged), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_act_during_the_load_beats_its_unchanged_value() {
    for act in 0..3 {
        let (cache, other, _) = fleet();
        cache.insert("k", &7).await.unwrap();
        sleep(TTL).await;
        let leading = spawn(cache.request("k").load(unchanged));
        sleep(LOAD / 2).await;
        match act {
            0 => drop(other.invalidate("k").await.unwrap()),
            1 => drop(other.expire("k").await.unwrap()),
            _ => drop(other.insert("k", &100).await.unwrap()),
        }
        leading.await.unwrap().unwrap();
        assert_eq!(cache.get("k").await.unwrap(), [None, None, Some(100)][act], "{act}");
        assert_eq!((cache.stats().stored, cache.stats().refused), (0, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_loader_that_fails_or_stores_nothing_renews_nothing() {
    let (cache, other, faulty) = fleet();
    cache.insert("k", &7).await.unwrap();
    sleep(TTL).await;
    let load = |lead: Lead<u64>| async move {
        lead.do_not_store();
        Ok::<_, BoxError>(lead.unchanged(lead.stale().ok_or("there is no stale value")?))
    };
    let led = cache.request("k").load(load).await.unwrap();
    assert_eq!((led.value, led.source), (7, Source::Led));
    let load = |lead: Lead<u64>| async move {
        lead.unchanged(lead.stale().ok_or("there is no stale value")?);
        Err::<u64, BoxError>("too late".into())
    };
    let kept = cache.request("k").load(load).await.unwrap();
    assert_eq!((kept.value, kept.source), (7, Source::Stale));
    assert_eq!(faulty.count(Op::Commit), 1);
    assert_eq!(
        other.peek("k").await.unwrap().and_then(|loaded| loaded.expires_in()),
        Some(Duration::ZERO)
    );
}

/// Without a backend there is nothing to renew. The loader still has what its caller has seen.
#[tokio::test(start_paused = true)]
async fn a_load_without_a_lease_has_the_value_that_was_seen() {
    let (cache, _, faulty) = fleet();
    cache.insert("k", &7).await.unwrap();
    sleep(TTL).await;
    faulty.plan(|op| (op == Op::Claim).then_some(Fault::Refuse));
    let degraded = cache.request("k").load(unchanged).await.unwrap();
    assert_eq!((degraded.value, degraded.source), (7, Source::Degraded));
    assert_eq!(faulty.count(Op::Commit), 0);
}
