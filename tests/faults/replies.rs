//! The answer to a claim or to a commit is lost or late, or the connection ends.

use testkit::proxy::{Fault, kind, kind_of};

use super::*;

/// How often a case is played at most. A busy machine may exceed the short time of a second try.
const TRIES: usize = 3;

const FAULTS: [Fault; 8] = [
    Fault::Silence,
    Fault::Swallow,
    Fault::Double,
    Fault::Delay(Duration::from_millis(100)),
    Fault::Delay(Duration::from_millis(400)),
    Fault::Cut,
    Fault::CutInHalf,
    Fault::CutBefore,
];

/// An origin that counts its loads, and the most that ran at the same time.
#[derive(Clone, Default)]
struct Origin {
    begun: Arc<AtomicUsize>,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Origin {
    async fn load(self) -> Result<String, BoxError> {
        let number = self.begun.fetch_add(1, Ordering::SeqCst);
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        sleep(300 * MS).await;
        self.running.fetch_sub(1, Ordering::SeqCst);
        Ok(format!("value {number}"))
    }
}

/// Runs callers in the affected process and in another one, and checks the leftovers. Returns
/// `false` if the second try had no answer either.
async fn affect(
    server: &RedisServer,
    proxy: &Proxy,
    (what, fault): (&str, Fault),
    number: usize,
) -> bool {
    let case = format!("{what}: {fault:?}");
    let key = format!("{what}-{fault:?}-{number}").replace([' ', '(', ')', '{', '}'], "");
    // A late release of an earlier case must not get the answer that belongs to this one.
    let a = &connected(&proxy.url()).await;
    let b = &patient(&server.url()).await;
    let origin = Origin::default();
    let affected = proxy.once(kind_of(what, &key), fault);
    let mut callers = JoinSet::new();
    let mut ask = |cache: &Cache<String>| {
        for _ in 0..10 {
            let origin = origin.clone();
            callers.spawn(cache.request(&key).load(move |_| origin.load()));
        }
    };
    ask(a);
    let begun = || async { affected.count() == 1 };
    assert!(eventually(LIMIT, begun).await, "{case}: the fault did not happen");
    ask(b);
    let mut answers = Vec::new();
    while let Some(answer) = callers.join_next().await {
        answers.push(answer.unwrap().unwrap_or_else(|error| panic!("{case}: {error}")));
    }
    let both = [a, b].map(Cache::stats);
    if both.iter().any(|stats| stats.degraded + stats.unstored > 0) {
        println!("{case}: no answer in time, {answers:?}");
        return false;
    }
    assert!(answers.iter().all(|loaded| loaded.value == "value 0"), "{case}: {answers:?}");
    let loads = (origin.begun.load(Ordering::SeqCst), origin.most.load(Ordering::SeqCst));
    assert_eq!(loads, (1, 1), "{case}: there was more than one load");
    let stored: u64 = both.iter().map(|stats| stats.stored).sum();
    assert_eq!(stored, 1, "{case}: the value was not stored once: {both:?}");
    assert_eq!(b.get(&key).await.unwrap().as_deref(), Some("value 0"), "{case}");
    let mut raw = server.raw().await;
    let lease = raw.pttl(&format!("t:c:{{{key}}}:l")).await;
    let free = async || raw.pttl(&format!("t:c:{{{key}}}:l")).await == -2;
    let freed = comes_true(LIMIT / 20, free).await;
    assert!(freed, "{case}: the lease is still there, for {lease} ms");
    works_again(&mut raw, [a, b], RECOVERY).await;
    true
}

/// One try is lost, and the second recognises the effect of the first one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_or_late_answer_costs_no_second_load() {
    let _turn = turn().await;
    tokio::join!(affect_each("claim"), affect_each("commit"));
}

async fn affect_each(what: &str) {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    for fault in FAULTS {
        let case = (what, fault);
        let mut number = 1;
        while !affect(&server, &proxy, case, number).await {
            assert!(number < TRIES, "{case:?}: there was no answer in time");
            number += 1;
        }
    }
}

/// Both claims of a flight stay unanswered, and its callers are served without a lease. A claim
/// that was granted all the same ends within its time, even if it cannot be undone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_orphaned_lease_lasts_for_its_time_at_most() {
    const LEASE: Duration = Duration::from_secs(1);
    let _turn = turn().await;
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let build = |backend: RedisBackend| {
        Cache::<String>::builder(backend, "t").lease(LEASE).build().unwrap()
    };
    let cases =
        [(true, Fault::Silence), (true, Fault::Cut), (false, Fault::Silence), (false, Fault::Cut)];
    for (undone, fault) in cases {
        for number in 1..=TRIES {
            let backend = RedisBackend::open(&proxy.url()).unwrap();
            until_connected(&backend).await;
            let a = build(backend);
            let b = build(testkit::open(server.url()));
            a.get_or_load("warm", value("warm")).await.unwrap();
            let key = format!("orphan-{undone}-{fault:?}-{number}");
            let claims = proxy.when(kind_of("claim", &key), fault);
            if !undone {
                proxy.when(kind("release"), Fault::CutBefore);
            }
            let asked = Instant::now();
            let alone = a.request(&key).load(value("alone")).await.unwrap();
            assert_eq!(alone.source, Source::Degraded, "{key}: {:?}", asked.elapsed());
            // A busy machine may have the time for one try only.
            assert!((1..=2).contains(&claims.count()), "{key}: {}", claims.count());
            let other = b.request(&key).load(value("other")).await.unwrap();
            assert_eq!(other.source, Source::Led, "{key}");
            let took = asked.elapsed();
            println!("{key}: the next one began after {took:?}");
            proxy.clear();
            if took < LEASE + 700 * MS {
                break;
            }
            assert!(number < TRIES, "{key}: {took:?}");
        }
    }
}
