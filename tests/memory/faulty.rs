//! The faults of the module `testing` that no other test plays.

use bellwether::{
    error::BackendError,
    testing::{Answer, Fault, Faulty, Hook, Interceptor, Op, Operation},
};

use crate::prelude::*;

const LOAD: Duration = Duration::from_millis(100);

fn cache(backend: Faulty) -> Cache<u64> {
    Cache::builder(backend, "bellwether").ttl(Duration::from_secs(60)).build().unwrap()
}

async fn load(cache: &Cache<u64>, key: &str) -> Loaded<u64> {
    cache.request(key).load(after(LOAD, 17)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_full_backend_reads_and_removes_and_stores_nothing() {
    let backend = Faulty::new(|_| None);
    let cache = cache(backend.clone());
    cache.insert("old", &1).await.unwrap();
    backend.plan(|_| Some(Fault::Full));
    assert_eq!(load(&cache, "old").await.source, Source::Hit);
    assert_eq!(load(&cache, "new").await.source, Source::Degraded);
    assert_eq!(cache.insert("new", &2).await.unwrap_err().kind(), ErrorKind::Backend);
    cache.invalidate("old").await.unwrap();
    backend.plan(|_| None);
    assert_eq!((cache.get("old").await.unwrap(), cache.get("new").await.unwrap()), (None, None));
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_fills_up_hands_the_load_over_and_lets_locks_end() {
    let inner = MemoryBackend::new();
    let front = || Faulty::over(inner.clone(), |_| None);
    let here = front();
    let there = cache(front());
    let guard = Locks::new(here.clone(), "bellwether").mutex("m").lock().await.unwrap();
    let leader = cache(here.clone());
    let fills = async {
        sleep(LOAD / 2).await;
        here.plan(|_| Some(Fault::Full));
    };
    let waits = async {
        sleep(MS).await;
        load(&there, "k").await
    };
    let (led, received, ()) = tokio::join!(load(&leader, "k"), waits, fills);
    assert_eq!((led.value, received.value), (17, 17));
    assert_eq!(received.source, Source::Received);
    assert_eq!((leader.stats().stored, there.stats().loads), (0, 0));
    assert_eq!(there.get("k").await.unwrap(), None);
    guard.renew().await.unwrap();
    guard.unlock().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_whose_push_is_lost_finds_out_by_itself() {
    let inner = MemoryBackend::new();
    let lossy = Faulty::over(inner.clone(), |_| Some(Fault::LosePushes));
    let here = cache(lossy.clone());
    let there = cache(Faulty::over(inner.clone(), |_| None));
    let begun = Instant::now();
    let waits = async {
        sleep(MS).await;
        load(&there, "k").await
    };
    let (_, waited) = tokio::join!(load(&here, "k"), waits);
    assert_eq!((waited.value, there.stats().loads), (17, 0));
    assert!(begun.elapsed() > Duration::from_secs(4), "{:?}", begun.elapsed());

    let guard = Locks::new(lossy.clone(), "bellwether").mutex("m").lock().await.unwrap();
    let rival = Locks::new(inner, "bellwether").mutex("m");
    let waits = spawn(async move { rival.lock().await.map(|_| Instant::now()) });
    sleep(MS).await;
    guard.unlock().await.unwrap();
    let unlocked = Instant::now();
    let locked = waits.await.unwrap().unwrap();
    assert!(locked > unlocked && locked - unlocked <= 700 * MS, "{:?}", locked - unlocked);
    assert_eq!(lossy.count(Op::Release), 1);
}

/// Gives the answer to another operation.
#[derive(Clone)]
struct Confused;

impl Hook<MemoryBackend> for Confused {
    async fn around(&self, _: &MemoryBackend, _: Operation) -> Result<Answer, BackendError> {
        Ok(Answer::ClearLatch(true))
    }
}

#[tokio::test(start_paused = true)]
async fn the_answer_to_another_operation_is_an_error() {
    let backend = Interceptor { inner: MemoryBackend::new(), hook: Confused };
    let error = Locks::new(backend, "bellwether").mutex("m").holder().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    let words = format!("{error:#}");
    assert!(words.contains("the hook answered Inspect with ClearLatch(true)"), "{words}");
}
