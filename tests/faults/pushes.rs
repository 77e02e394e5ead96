//! Pushes are lost, doubled, late, or overtake each other.

use testkit::proxy::PushFault;

use super::*;

/// The process of the first waiter has not subscribed, and that of the second one has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_without_any_push_are_served_within_the_lease() {
    const LEASE: Duration = Duration::from_millis(1500);
    let _turn = turn().await;
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let proxy = Proxy::start(server.port());
    let build = |url: String| {
        let builder = Cache::<String>::builder(testkit::open(url), "t");
        builder.lease(LEASE).build().unwrap()
    };
    let a = build(server.url());
    proxy.set_push_fault(Some(PushFault::Drop));
    let mut delays = [Vec::new(), Vec::new()];
    for round in 0..3 {
        let b = build(proxy.url());
        let mut waiters = Vec::new();
        // A waiter asks once more when its process has subscribed. Afterwards only a push could
        // tell it.
        for asks in [2, 1] {
            let key = format!("k{round}-{asks}");
            let (loader, gate) = gated("pushed");
            let leading = tokio::spawn(a.request(&key).load(loader));
            gate.begun.await.unwrap();
            let asked = Instant::now();
            let claims = proxy.seen("claim");
            let waiting = tokio::spawn(b.request(&key).load(value("own")));
            let looked = async || {
                proxy.seen("claim") >= claims + asks && listeners(&mut raw, &key).await == 1
            };
            assert!(comes_true(LIMIT, looked).await, "no waiter listens");
            gate.open.send(()).unwrap();
            assert_eq!(leading.await.unwrap().unwrap().source, Source::Led);
            waiters.push((asked, waiting));
        }
        for ((asked, waiting), delays) in waiters.into_iter().zip(&mut delays) {
            let waited = waiting.await.unwrap().unwrap();
            assert_eq!((waited.value.as_str(), waited.source), ("pushed", Source::Received));
            delays.push(asked.elapsed());
        }
        // A busy machine may delay a round.
        let is_quick =
            |delays: &Vec<Duration>| delays.iter().any(|delay| *delay < LEASE + 300 * MS);
        if delays.iter().all(is_quick) {
            break;
        }
    }
    println!("without pushes: served after {delays:?}");
    for delays in delays {
        assert!(*delays.iter().min().unwrap() < LEASE + 300 * MS, "{delays:?}");
        assert!(*delays.iter().max().unwrap() < LEASE + 2_000 * MS, "{delays:?}");
    }
    assert!(proxy.counters().pushes_spoilt.load(Ordering::SeqCst) >= 2);
}

/// The version of the origin grows, and an invalidation announces each version. A read that follows
/// the invalidation must not return an older version, whatever the pushes do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doubled_late_or_overtaken_pushes_bring_no_old_value_back() {
    let _turn = turn().await;
    for fault in [PushFault::Double, PushFault::Reorder, PushFault::Delay(20 * MS)] {
        let server = RedisServer::start().await;
        let proxies = [Proxy::start(server.port()), Proxy::start(server.port())];
        let caches = [patient(&proxies[0].url()).await, patient(&proxies[1].url()).await];
        proxies.iter().for_each(|proxy| proxy.set_push_fault(Some(fault)));
        // The version that the origin holds, and the version that was announced.
        let truth = Arc::new(AtomicU64::new(0));
        let told = Arc::new(AtomicU64::new(0));
        let mut readers = JoinSet::new();
        for number in 0..6 {
            let cache = caches[number % 2].clone();
            let truth = truth.clone();
            let told = told.clone();
            readers.spawn(async move {
                let mut waited = 0;
                while told.load(Ordering::SeqCst) < 150 {
                    let at_least = told.load(Ordering::SeqCst);
                    let origin = truth.clone();
                    let read = cache.request("k").load(move |_| async move {
                        let read = origin.load(Ordering::SeqCst);
                        sleep(3 * MS).await;
                        Ok::<_, BoxError>(read.to_string())
                    });
                    let read = read.await.unwrap();
                    waited += usize::from(read.source == Source::Received);
                    let seen: u64 = read.value.parse().unwrap();
                    assert!(
                        seen >= at_least,
                        "{fault:?}: version {seen} was read after {at_least} was announced"
                    );
                    tokio::task::yield_now().await;
                }
                waited
            });
        }
        for version in 1..=150 {
            truth.store(version, Ordering::SeqCst);
            caches[fastrand::usize(..2)].invalidate("k").await.unwrap();
            told.store(version, Ordering::SeqCst);
            sleep(fastrand::u32(..8) * MS).await;
        }
        let waited: usize = readers.join_all().await.into_iter().sum();
        let spoilt = |proxy: &Proxy| proxy.counters().pushes_spoilt.load(Ordering::SeqCst);
        let spoilt = proxies.iter().map(spoilt).sum::<u64>();
        println!("{fault:?}: {spoilt} pushes, {waited} readers served by one");
        assert!(spoilt > 0 && waited > 0, "{fault:?}: no push was affected, or no reader waited");
        let idle = || async { caches.iter().all(|cache| cache.stats().flights == 0) };
        assert!(eventually(LIMIT, idle).await);
    }
}
