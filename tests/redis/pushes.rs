//! The channel of a process, and what a wait costs with it.

use std::{future::pending, sync::Mutex as StdMutex};

use bellwether::{
    cache::{Lead, Raw as RawCodec},
    lock::Mutex,
};
use testkit::interceptor::{Answer, Hook, Interceptor, Operation};
use tokio::sync::oneshot;

use crate::prelude::*;

/// Returns a fair mutex if its name ends so.
fn mutex(locks: &Locks, name: &str) -> Mutex {
    let mutex = locks.mutex(name).lease(LEASE).wait_limit(LIMIT);
    if name.ends_with("fair") { mutex.fair() } else { mutex }
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
    let [here, there] = [(); 2].map(|()| Locks::new(open(server.url()), "bellwether"));
    let wait = async |raw: &mut Raw, name: &str| {
        let held = mutex(&here, name).lock().await.unwrap();
        let waiter = mutex(&there, name);
        let waiting = tokio::spawn(async move { waiter.lock().await.unwrap() });
        queued(raw, name).await;
        let released = Instant::now();
        held.unlock().await.unwrap();
        timeout(LIMIT, waiting).await.unwrap().unwrap().unlock().await.unwrap();
        released.elapsed()
    };
    wait(&mut raw, "first").await;
    let channels = raw.process_channels().await;
    assert_eq!(channels.len(), 1, "{channels:?}");
    let mut monitor = server.monitor().await;
    let mut all = 0;
    let mut counted = 0;
    let end = Instant::now() + LIMIT;
    while counted < WAITS {
        assert!(Instant::now() < end, "the machine is too busy for this test");
        all += 1;
        let begun = Instant::now();
        let kind = ["plain", "fair"][all % 2];
        let handover = wait(&mut raw, &format!("k{all}-{kind}")).await;
        let took = begun.elapsed();
        let calls = monitor.calls_from_clients().await;
        let count = |word: &str| calls.iter().filter(|call| call.command.contains(word)).count();
        assert_eq!(count("SUBSCRIBE"), 0, "{calls:?}");
        // After a longer time, the queue entry is kept, or the lease is renewed.
        if took < Duration::from_millis(500) && handover < Duration::from_millis(80) {
            // A lock, a wait, and two releases.
            assert_eq!(count("EVALSHA"), 4, "{calls:?}");
            counted += 1;
        }
    }
    assert_eq!(raw.process_channels().await, channels);
    assert_eq!(raw.pubsub_channels().await, [""; 0]);
}

/// Releases the lock between the refusal of a claim and the time at which its waiter sleeps.
#[derive(Clone)]
struct ReleasedInBetween {
    held: Arc<StdMutex<Option<MutexGuard>>>,
    claims: Arc<AtomicUsize>,
}

impl Hook<RedisBackend> for ReleasedInBetween {
    async fn around(
        &self,
        backend: &RedisBackend,
        operation: Operation,
    ) -> Result<Answer, BackendError> {
        let claim = match &operation {
            Operation::Acquire { claim } => claim.clone(),
            // Otherwise the keeper would find that the entry is gone.
            Operation::Keep { .. } => return pending().await,
            _ => return operation.perform(backend).await,
        };
        self.claims.fetch_add(1, Ordering::SeqCst);
        let mut observer = backend.listen(&claim.name, Some(&claim));
        let answer = operation.perform(backend).await;
        let held = self.held.lock().unwrap().take();
        if let Some(held) = held {
            held.unlock().await.unwrap();
            timeout(LIMIT, observer.next()).await.expect("nothing was pushed");
        }
        answer
    }
}

/// A waiter registers before its claim is sent. So it hears of the handover that comes before the
/// answer to its claim, and sends no second one.
#[tokio::test]
async fn a_push_before_the_answer_is_not_missed() {
    let server = RedisServer::start().await;
    let here = Locks::new(open(server.url()), "bellwether");
    let hook = ReleasedInBetween { held: Arc::default(), claims: Arc::default() };
    let inner = open(server.url());
    let there = Locks::new(Interceptor { inner, hook: hook.clone() }, "bellwether");
    let mut raw = server.raw().await;
    mutex(&there, "warm").lock().await.unwrap().unlock().await.unwrap();
    assert!(comes_true(LIMIT, async || raw.process_channels().await.len() == 1).await);
    for (name, claims) in [("first", 1), ("second", 1)] {
        let held = mutex(&here, name).lock().await.unwrap();
        *hook.held.lock().unwrap() = Some(held);
        hook.claims.store(0, Ordering::SeqCst);
        let guard = timeout(LIMIT, mutex(&there, name).lock()).await.unwrap().unwrap();
        assert_eq!(hook.claims.load(Ordering::SeqCst), claims, "{name}");
        guard.unlock().await.unwrap();
    }
}

fn cache(url: &str) -> Cache<Bytes> {
    let builder = Cache::builder(open(url), "t").codec(RawCodec).lease(LEASE);
    builder.wait_limit(LIMIT).load_limit(LIMIT).build().unwrap()
}

/// Begins the load of a key, which ends with a value of this size when the sender says so.
async fn led(
    cache: &Cache<Bytes>,
    key: &str,
    size: usize,
) -> (oneshot::Sender<()>, impl Future<Output = Source>) {
    let (begin, begun) = oneshot::channel();
    let (open, opened) = oneshot::channel::<()>();
    let loading = tokio::spawn(cache.request(key).load(move |_: Lead<_>| async move {
        let _ = begin.send(());
        let _ = opened.await;
        Ok::<_, BoxError>(Bytes::from(vec![b'v'; size]))
    }));
    begun.await.unwrap();
    (open, async move { loading.await.unwrap().unwrap().source })
}

/// Returns a claim as a leader makes it.
fn load_claim(name: &Name) -> Claim {
    let mut claim = Claim::new(name.clone(), Mode::Exclusive, LEASE, LEASE);
    claim.waits = false;
    claim
}

/// Returns the number of backends that wait for the load of a key.
async fn registered(raw: &mut Raw, key: &str) -> usize {
    raw.registered(&format!("t:c:{{{key}}}:l")).await
}

/// The backend has its channel since an earlier wait. So it looks, and its claim registers it; the
/// value comes by a push.
#[tokio::test]
async fn a_wait_for_the_load_of_another_process_costs_two_commands() {
    const WAITS: usize = 10;
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [here, there] = [(); 2].map(|()| cache(&server.url()));
    let mut monitor = server.monitor().await;
    for at in 0..=WAITS {
        let key = format!("k{at}");
        let (open, leading) = led(&here, &key, 100).await;
        let request = there.request(&key);
        let waiting = tokio::spawn(request.load(|_| async { Err(BoxError::from("not led")) }));
        assert!(comes_true(LIMIT, async || registered(&mut raw, &key).await == 1).await);
        open.send(()).unwrap();
        assert_eq!(leading.await, Source::Led);
        let waited = timeout(LIMIT, waiting).await.unwrap().unwrap().unwrap();
        assert_eq!((waited.source, waited.value.len()), (Source::Received, 100));
        if at == 0 {
            monitor.calls_from_clients().await;
        }
    }
    let calls = monitor.calls_from_clients().await;
    let count = |word: &str| calls.iter().filter(|call| call.command.contains(word)).count();
    // The leader looks, claims and commits. The waiter looks and claims.
    assert_eq!((count("GET"), count("EVALSHA")), (2 * WAITS, 3 * WAITS), "{calls:?}");
    assert_eq!(count("SUBSCRIBE"), 0, "{calls:?}");
}

/// A full server evicted the last fence of a name, and kept the lease of its load. The commit was
/// refused, the lease stood, and each waiter slept until its end.
#[tokio::test]
async fn a_load_whose_fence_was_evicted_ends_with_its_commit() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let [leader, waiter] = [(); 2].map(|()| open(server.url()));
    let name = name("k");
    let load = load_claim(&name);
    let waits = load_claim(&name);
    let Ok(Claimed::Granted(grant)) = leader.claim(&load, 0).await else { panic!() };
    let mut changes = testkit::changes_for(&waiter, &waits).await.unwrap();
    assert!(matches!(waiter.claim(&waits, 0).await, Ok(Claimed::Occupied(_))));
    assert_eq!(raw.run::<u64>(&["DEL", &name.suffixed("f")]).await, 1);
    let entry = Entry::value(1, Duration::ZERO, Bytes::from_static(b"v"));
    let committed = leader.commit(&load, &grant, &entry, Some(LEASE)).await.unwrap();
    assert_eq!(committed, Committed::Refused);
    assert_eq!(timeout(LIMIT, changes.next()).await.unwrap(), Change::Wake);
    assert!(matches!(waiter.claim(&waits, 0).await, Ok(Claimed::Granted(_))));
}

/// Many processes wait for a large value. All read it at once when they were told, their reads
/// timed out, and each loaded by itself. The value is loaded once, whatever its size.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_of_any_size_is_loaded_once_for_a_crowd() {
    const CROWD: usize = 100;
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    // The time-outs are the usual ones.
    let caches: Vec<_> = std::iter::repeat_with(|| {
        let backend = RedisBackend::open(&server.url()).unwrap();
        let builder = Cache::builder(backend, "t").codec(RawCodec).lease(LEASE);
        builder.wait_limit(LIMIT).load_limit(LIMIT).build().unwrap()
    })
    .take(CROWD)
    .collect();
    // All of them are connected, and have their channels.
    for cache in &caches {
        let key = format!("{:p}", cache);
        cache.request(key).load(|_| async { Ok::<_, BoxError>(Bytes::new()) }).await.unwrap();
    }
    for size in [100, 50 << 10, 1 << 20] {
        let mut received = Vec::new();
        // On a busy machine a server may be silent for longer than the usual time-out.
        while received.len() < 10 && received.last() != Some(&(CROWD - 1)) {
            let key = format!("k{size}-{}", received.len());
            received.push(received_by_a_crowd(&mut raw, &caches, &key, size).await);
        }
        assert_eq!(received.last(), Some(&(CROWD - 1)), "{received:?} of {size} bytes");
    }
}

/// Lets the first cache load a value for which all others wait. Returns how many of them received
/// it, or 0 if a cache degraded meanwhile.
async fn received_by_a_crowd(
    raw: &mut Raw,
    caches: &[Cache<Bytes>],
    key: &str,
    size: usize,
) -> usize {
    let degraded = || caches.iter().map(|cache| cache.stats().degraded).sum::<u64>();
    let before = degraded();
    let (open, leading) = led(&caches[0], key, size).await;
    let waiting: Vec<_> = caches[1..]
        .iter()
        .map(|cache| {
            let request = cache.request(key);
            tokio::spawn(request.load(|_| async { Err(BoxError::from("a second load")) }))
        })
        .collect();
    let wait = async || {
        let all = registered(raw, key).await == waiting.len();
        all || waiting.iter().any(|waiting| waiting.is_finished())
    };
    assert!(comes_true(LIMIT, wait).await, "not all caches wait");
    open.send(()).unwrap();
    let source = leading.await;
    let waited = timeout(2 * LIMIT, join_all(waiting)).await.unwrap();
    let received = waited.into_iter().filter(|waited| match waited {
        Ok(Ok(waited)) => {
            assert_eq!(waited.value.len(), size);
            waited.source == Source::Received
        }
        _ => false,
    });
    let received = received.count();
    if source == Source::Led && degraded() == before { received } else { 0 }
}
