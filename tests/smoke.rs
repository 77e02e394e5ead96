#![allow(clippy::unwrap_used)]
use bellwether::{Cache, Locks, MemoryBackend, RedisBackend, backend::Store, cache::Source};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

async fn herd<B: Store + Clone>(backend: B) {
    let caches: Vec<Cache<String>> = (0..4)
        .map(|_| Cache::builder(backend.clone()).namespace("smoke").build().unwrap())
        .collect();
    let loads = Arc::new(AtomicUsize::new(0));
    for round in 0..5 {
        let begun = std::time::Instant::now();
        let mut tasks = Vec::new();
        for i in 0..1000 {
            let cache = caches[i % 4].clone();
            let loads = loads.clone();
            tasks.push(tokio::spawn(async move {
                cache
                    .request(format!("k{round}"))
                    .load(move |_| async move {
                        loads.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(100)).await;
                        Ok::<_, std::io::Error>("v".to_owned())
                    })
                    .await
                    .unwrap()
            }));
        }
        let mut sources = std::collections::HashMap::new();
        for t in tasks {
            let l = t.await.unwrap();
            let e = sources.entry(l.source()).or_insert((0, Duration::ZERO));
            e.0 += 1;
            e.1 = e.1.max(begun.elapsed());
        }
        println!("{:?} {sources:?} loads {}", begun.elapsed(), loads.load(Ordering::SeqCst));
        assert_eq!(loads.load(Ordering::SeqCst), round + 1);
    }
    println!("{:?}", caches[0].stats());
    let locks = Locks::new(backend.clone());
    let g = locks.mutex("a{b}").lock().await.unwrap();
    assert!(locks.mutex("a{b}").try_lock().await.unwrap().is_none());
    let l2 = locks.clone();
    let t = tokio::spawn(async move { l2.mutex("a{b}").lock().await.unwrap().fence() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    let f = g.fence();
    let at = std::time::Instant::now();
    g.unlock().await.unwrap();
    assert!(t.await.unwrap() > f);
    println!("handoff {:?}", at.elapsed());
    caches[0].shutdown(Duration::from_secs(1)).await;
}
#[tokio::test(flavor = "multi_thread")]
async fn memory() {
    herd(MemoryBackend::new()).await
}
#[tokio::test(flavor = "multi_thread")]
async fn redis() {
    herd(RedisBackend::open("redis://127.0.0.1:7999/").unwrap()).await
}
