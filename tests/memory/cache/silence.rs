//! A backend that does not answer.

use std::collections::HashMap;

use bellwether::backend::Claimed;

use super::{ask, loader, settle, sources, timed, two_over};
use crate::{origin::Origin, prelude::*};

/// All operations fail or hang. Each process loads once, within the time-outs, and nothing is
/// stored.
#[tokio::test(start_paused = true)]
async fn a_backend_out_of_order_costs_one_load_for_each_process() {
    for fault in [Fault::Refuse, Fault::Hang] {
        let faulty = Faulty::new(move |_| Some(fault));
        let caches = two_over(&faulty);
        let origin = Origin::default();
        let begun = Instant::now();
        let sources = sources((0..100).map(|n| ask(&caches[n % 2], &origin, 100 * MS))).await;
        assert_eq!(sources, HashMap::from([(Source::Degraded, 100)]));
        assert_eq!(origin.asked(), 2);
        assert!(begun.elapsed() <= 351 * MS, "{:?}", begun.elapsed());
        faulty.plan(|_| None);
        assert_eq!(caches[0].get("k").await.unwrap(), None);
        assert_eq!(ask(&caches[0], &origin, MS).await.unwrap().unwrap().source, Source::Led);
    }
}

/// The look for the late joiners of a flight is not answered. They join the next flight, so that
/// the process runs one load. They wait for two time-outs at most, and later callers for one.
#[tokio::test(start_paused = true)]
async fn late_joiners_that_are_not_answered_share_the_next_load() {
    // A single caller polls its flight itself until another one joins. Three callers have a task
    // already.
    for callers in [0, 1, 3] {
        check_next_load(callers).await;
    }
}

async fn check_next_load(callers: usize) {
    let faulty = Faulty::new(|_| None);
    let [cache, _] = two_over(&faulty);
    cache.insert("k", &"stored".to_owned()).await.unwrap();
    let mut looked = false;
    faulty.plan(move |op| match op {
        Op::Get if looked => Some(Fault::Hang),
        Op::Get => {
            looked = true;
            Some(Fault::Late(10 * MS))
        }
        _ => None,
    });
    let origin = Origin::default();
    let first = ask(&cache, &origin, 20 * MS);
    settle().await;
    let late = timed(ask(&cache, &origin, 20 * MS));
    assert_eq!(first.await.unwrap().unwrap().source, Source::Hit);
    // Only the late joiners of the first flight are left, so this caller starts the next flight and
    // looks for itself.
    sleep(200 * MS).await;
    let next: Vec<_> = (0..callers).map(|_| timed(ask(&cache, &origin, 20 * MS))).collect();
    let (source, took) = late.await;
    assert_eq!(source, Source::Degraded);
    assert!(took <= 550 * MS, "{took:?}");
    for next in next {
        let (source, took) = next.await;
        assert_eq!(source, Source::Degraded);
        // One time-out and the load.
        assert!(took <= 285 * MS, "{took:?}");
    }
    assert_eq!(origin.asked(), 1);
}

/// Another process had the lease, and the server began to hang. The waiter for the lease looked
/// again, and waited for a time-out of its own, though other flights had found the silence out.
#[tokio::test(start_paused = true)]
async fn a_waiter_does_not_claim_while_the_backend_is_silent() {
    let faulty = Faulty::new(|_| None);
    let [cache, _] = two_over(&faulty);
    let name = entry_name("bellwether", "k");
    let holder = Claim::new(name, Mode::Exclusive, 100 * MS, 100 * MS);
    assert!(matches!(faulty.acquire(&holder).await.unwrap(), Claimed::Granted(_)));
    let origin = Origin::default();
    let waiting = timed(ask(&cache, &origin, 20 * MS));
    settle().await;
    faulty.plan(|op| [Op::Get, Op::Claim].contains(&op).then_some(Fault::Hang));
    for other in 0..3 {
        spawn(cache.request(format!("other-{other}")).load(loader(&origin, 20 * MS)));
    }
    // The lease ends after 100 ms, and its waiter looks within the 90 ms after that.
    let (source, took) = waiting.await;
    assert_eq!(source, Source::Degraded);
    assert!(took <= 285 * MS, "{took:?}");
}

/// A server that swallows everything would add its time-out to every request.
#[tokio::test(start_paused = true)]
async fn a_backend_that_stays_silent_costs_nothing_after_the_first_few_requests() {
    let faulty = Faulty::new(|_| Some(Fault::Hang));
    let [cache, _] = two_over(&faulty);
    let origin = Origin::default();
    for _ in 0..3 {
        ask(&cache, &origin, MS).await.unwrap().unwrap();
    }
    for _ in 0..50 {
        let begun = Instant::now();
        ask(&cache, &origin, MS).await.unwrap().unwrap();
        assert!(begun.elapsed() <= 3 * MS, "{:?}", begun.elapsed());
    }
    // The cache recovers without help, and without a stampede.
    faulty.plan(|_| None);
    sleep(300 * MS).await;
    let loads = origin.asked();
    let sources = sources((0..100).map(|_| ask(&cache, &origin, 10 * MS))).await;
    assert_eq!((origin.asked() - loads, sources[&Source::Led]), (1, 1));
}

/// A waiter for another process would sleep until the end of its lease. Other callers of its own
/// process have found out meanwhile that no push can come any more.
#[tokio::test(start_paused = true)]
async fn waiters_do_not_sleep_through_an_outage() {
    let faulty = Faulty::new(|_| None);
    let [here, there] = two_over(&faulty);
    let slow = Origin::default();
    let own = Origin::default();
    let leading = ask(&here, &slow, 20 * SECOND);
    settle().await;
    let begun = Instant::now();
    let waiting = ask(&there, &own, MS);
    settle().await;
    faulty.plan(|_| Some(Fault::Refuse));
    for number in 0..3 {
        there.request(format!("other {number}")).load(loader(&own, MS)).await.unwrap();
    }
    assert_eq!(waiting.await.unwrap().unwrap().source, Source::Degraded);
    assert!(begun.elapsed() < 20 * MS, "{:?}", begun.elapsed());
    leading.abort();
}
