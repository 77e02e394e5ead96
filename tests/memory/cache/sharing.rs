//! One load for all callers, and what its callers get.

use std::{
    pin::pin,
    task::{Context, Wake, Waker},
};

use tokio::sync::Notify;

use super::{ask, build, fleet, loader, settle, sources, two_over};
use crate::{origin::Origin, prelude::*};

#[tokio::test(start_paused = true)]
async fn one_of_a_thousand_callers_in_four_processes_loads() {
    let caches: [_; 4] = fleet();
    let origin = Origin::default();
    let sources = sources((0..1000).map(|n| ask(&caches[n % 4], &origin, 200 * MS))).await;
    assert_eq!(origin.asked(), 1);
    assert_eq!(sources[&Source::Led], 1);
    assert_eq!(sources[&Source::Followed], 249);
    assert!(!sources.contains_key(&Source::Degraded));
    assert_eq!(caches.iter().map(|cache| cache.stats().flights).sum::<u64>(), 0);
    assert_eq!(ask(&caches[3], &origin, MS).await.unwrap().unwrap().source, Source::Hit);
}

/// The caller that led goes away, like a client that hangs up. A load that was polled by its caller
/// would stop there. All followers would then hang or start anew.
#[tokio::test(start_paused = true)]
async fn a_leader_whose_caller_leaves_costs_no_second_load() {
    let caches: [_; 2] = fleet();
    let origin = Origin::default();
    let first = ask(&caches[0], &origin, 200 * MS);
    settle().await;
    let rest: Vec<_> = (0..20).map(|n| ask(&caches[n % 2], &origin, 200 * MS)).collect();
    settle().await;
    first.abort();
    let begun = Instant::now();
    let sources = sources(rest).await;
    assert!(begun.elapsed() < 200 * MS);
    assert_eq!(origin.asked(), 1);
    assert!(!sources.contains_key(&Source::Led) && !sources.contains_key(&Source::Degraded));
}

#[tokio::test(start_paused = true)]
async fn a_load_without_callers_is_cancelled_if_configured() {
    let [here, there] = build(Builder::cancel_abandoned);
    let origin = Origin::default();
    let callers: Vec<_> = (0..5).map(|_| ask(&here, &origin, 200 * MS)).collect();
    settle().await;
    let waiting = ask(&there, &origin, 200 * MS);
    settle().await;
    callers.iter().skip(1).for_each(JoinHandle::abort);
    settle().await;
    assert_eq!(origin.running(), 1, "the load was cancelled while one caller still waited");
    callers[0].abort();
    settle().await;
    // The other process takes over at once, not only at the end of the lease.
    assert_eq!((origin.asked(), origin.running()), (2, 1));
    assert_eq!(waiting.await.unwrap().unwrap().source, Source::Led);
    assert_eq!(here.stats().flights, 0);
}

#[tokio::test(start_paused = true)]
async fn a_load_longer_than_its_lease_keeps_it() {
    let caches: [_; 2] = fleet();
    let origin = Origin::default();
    let sources = sources(caches.map(|cache| ask(&cache, &origin, 25 * SECOND))).await;
    assert_eq!(origin.asked(), 1);
    assert_eq!((sources[&Source::Led], sources[&Source::Received]), (1, 1));
}

/// The load and its first waiters began before the invalidation. A caller that asks after the
/// invalidation must not get the value of that load.
#[tokio::test(start_paused = true)]
async fn a_caller_after_an_invalidation_is_served_no_older_value() {
    for elsewhere in [false, true] {
        let caches: [_; 2] = fleet();
        let origin = Origin::default();
        let early = ask(&caches[0], &origin, 100 * MS);
        settle().await;
        caches[usize::from(elsewhere)].invalidate("k").await.unwrap();
        let late: Vec<_> = (0..4).map(|n| ask(&caches[n % 2], &origin, 100 * MS)).collect();
        assert_eq!(early.await.unwrap().unwrap().value, "value 1");
        for answer in late {
            assert_eq!(answer.await.unwrap().unwrap().value, "value 2");
        }
        assert_eq!(origin.asked(), 2);
        assert_eq!(caches[0].get("k").await.unwrap().as_deref(), Some("value 2"));
        assert_eq!(caches[0].stats().refused, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_load_never_overwrites_a_later_insert() {
    let caches: [_; 2] = fleet();
    let origin = Origin::default();
    let early = caches.each_ref().map(|cache| ask(cache, &origin, 100 * MS));
    settle().await;
    caches[1].insert("k", &"inserted".to_owned()).await.unwrap();
    for answer in all(early).await {
        let answer = answer.unwrap();
        assert_eq!((answer.value.as_str(), answer.source), ("inserted", Source::Received));
    }
    assert_eq!(caches[0].get("k").await.unwrap().as_deref(), Some("inserted"));
}

#[tokio::test(start_paused = true)]
async fn a_loader_learns_that_its_lease_is_lost() {
    let caches: [_; 1] = fleet();
    let told = Arc::new(Notify::new());
    let telling = told.clone();
    let load = spawn(caches[0].request("k").load(move |lead: Lead<_>| async move {
        lead.lost().await;
        telling.notify_one();
        Ok::<_, BoxError>("late".to_owned())
    }));
    settle().await;
    caches[0].invalidate("k").await.unwrap();
    // The next renewal comes a third of the lease later.
    timeout(1700 * MS, told.notified()).await.unwrap();
    assert_eq!(load.await.unwrap().unwrap().value, "late");
    assert_eq!(caches[0].get("k").await.unwrap(), None);
}

#[tokio::test(start_paused = true)]
async fn a_lead_decides_how_its_value_is_kept() {
    let caches: [_; 2] = fleet();
    let unstored = |cache: &Cache<String>| {
        spawn(cache.request("k").load(|lead: Lead<_>| async move {
            assert!(lead.fence().is_some());
            lead.do_not_store();
            sleep(50 * MS).await;
            Ok::<_, BoxError>("passing".to_owned())
        }))
    };
    for answer in all(caches.each_ref().map(unstored)).await {
        assert_eq!(answer.unwrap().value, "passing");
    }
    assert_eq!(caches[0].get("k").await.unwrap(), None);
    let short = caches[0].request("k").load(|lead: Lead<_>| async move {
        lead.clone().expire_after(100 * MS);
        Ok::<_, BoxError>("short".to_owned())
    });
    short.await.unwrap();
    sleep(99 * MS).await;
    assert!(caches[0].get("k").await.unwrap().is_some());
    sleep(2 * MS).await;
    assert!(caches[0].get("k").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_without_pushes_is_served_when_the_lease_ends_or_after_five_seconds() {
    let faulty = Faulty::new(|op| (op == Op::Changes).then_some(Fault::Refuse));
    let caches = two_over(&faulty);
    let origin = Origin::default();
    let begun = Instant::now();
    let sources = sources(caches.map(|cache| ask(&cache, &origin, 200 * MS))).await;
    assert_eq!((origin.asked(), sources[&Source::Received]), (1, 1));
    assert!(begun.elapsed() <= 5200 * MS, "{:?}", begun.elapsed());
}

/// A caller may be dropped at any await. This test drops it after each number of polls that a
/// request can take. The next caller is served at once, and nothing is left behind.
#[tokio::test(start_paused = true)]
async fn dropping_a_request_at_any_await_leaves_nothing_behind() {
    for polls in 0..12 {
        for cancels in [false, true] {
            let faulty = Faulty::new(|op| {
                // Every operation takes a moment, so that each has an await to be dropped at.
                (op != Op::Release).then_some(Fault::Late(5 * MS))
            });
            let build = || {
                let builder = Cache::<String>::builder(faulty.clone(), "bellwether");
                let builder = if cancels { builder.cancel_abandoned() } else { builder };
                builder.build().unwrap()
            };
            let [here, there] = [build(), build()];
            let origin = Origin::default();
            let mut request = Box::pin(here.request("k").load(loader(&origin, 20 * MS)));
            for _ in 0..polls {
                tokio::select! {
                    biased;
                    answer = &mut request => {
                        answer.unwrap();
                        break;
                    }
                    () = sleep(4 * MS) => {}
                }
            }
            drop(request);
            settle().await;
            let begun = Instant::now();
            let answer = ask(&there, &origin, 20 * MS).await.unwrap().unwrap();
            assert_ne!(answer.source, Source::Degraded);
            assert!(begun.elapsed() < 200 * MS, "{polls} polls: {:?}", begun.elapsed());
            assert_eq!(origin.most(), 1, "{polls} polls");
            assert_eq!((here.stats().flights, there.stats().flights), (0, 0));
        }
    }
}

/// A waker that owns a cache. Its drop joins the flight of the key, and leaves it.
struct Joins(Cache<String>);

impl Wake for Joins {
    fn wake(self: Arc<Self>) {}
}

impl Drop for Joins {
    fn drop(&mut self) {
        let load = self.0.request("k").load(hangs());
        assert!(pin!(load).poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}

/// The waker of the last poll was dropped under the lock that its drop took as well.
#[tokio::test]
async fn a_caller_may_be_polled_with_a_new_waker_whose_predecessor_runs_code() {
    let cache: Cache<String> = Cache::builder(MemoryBackend::new(), "bellwether").build().unwrap();
    let load = || Box::pin(cache.request("k").load(hangs()));
    let _leader = futures_util::poll!(load());
    let mut follower = load();
    let waker = Waker::from(Arc::new(Joins(cache.clone())));
    assert!(follower.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    // In a thread, which would block for ever.
    let (polled, answer) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        polled.send(follower.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending())
    });
    assert_eq!(answer.recv_timeout(10 * SECOND), Ok(true));
}

/// Ten thousand callers may wait for one key, and each holds its future.
#[tokio::test(start_paused = true)]
async fn the_future_of_a_caller_is_small() {
    let cache: Cache<u64> = Cache::new(MemoryBackend::new(), "bellwether").unwrap();
    let load = |_lead| async { Ok::<_, BoxError>(1) };
    let of_call = size_of_val(&cache.get_or_load("k", load));
    let of_request = size_of_val(&cache.request("k").load(load));
    assert!(of_call <= 256 && of_request <= 256, "{of_call}, {of_request}");
}
