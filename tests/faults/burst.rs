//! A burst of keys leaves nothing behind.

use std::panic;

use bellwether::ErrorKind;
use tokio::runtime::Handle;

use super::*;

/// The text of every planned panic.
const PLANNED_PANIC: &str = "planned panic";
const AT_ONCE: usize = 256;

#[derive(Debug, Default)]
struct Ends {
    values: usize,
    failures: usize,
    panics: usize,
    gone: usize,
}

/// Loads each key once. Most loads succeed, some fail, some panic, and some lose their callers.
async fn burst(caches: &[Cache<String>; 2], keys: std::ops::Range<usize>) -> Ends {
    let mut ends = Ends::default();
    let mut callers = JoinSet::new();
    let mut count = |end: Result<Result<String, bellwether::Error>, _>| match end {
        Err(_aborted) => ends.gone += 1,
        Ok(Ok(_)) => ends.values += 1,
        Ok(Err(error)) => match error.kind() {
            ErrorKind::Load => ends.failures += 1,
            ErrorKind::Panicked => ends.panics += 1,
            _ => panic!("{error:?}"),
        },
    };
    for number in keys {
        while callers.len() >= AT_ONCE {
            count(callers.join_next().await.unwrap());
        }
        let cache = caches[number % 2].clone();
        let caller = callers.spawn(async move {
            let load = cache.get_or_load(format!("key-{number}"), move |_| async move {
                match number % 20 {
                    4..6 => Err(BoxError::from("no such product")),
                    8 => panic!("{PLANNED_PANIC}"),
                    12..14 => {
                        sleep(5 * MS).await;
                        Ok("too late".to_owned())
                    }
                    _ => Ok(format!("value {number}")),
                }
            });
            load.await
        });
        if matches!(number % 20, 12..14) {
            tokio::spawn(async move {
                sleep(fastrand::u32(..5) * MS).await;
                caller.abort();
            });
        }
    }
    while let Some(end) = callers.join_next().await {
        count(end);
    }
    ends
}

/// Returns the resident memory of this process in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_keys_leaves_nothing_behind() {
    const KEYS: usize = 15_000;
    const WARM_UP: usize = 5_000;
    let _turn = turn_alone().await;
    let usual = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str() != Some(PLANNED_PANIC) {
            usual(panic);
        }
    }));
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let caches = [false, true].map(|cancels| {
        let builder = Cache::builder(testkit::open(server.url()), "t");
        let builder = builder.ttl(Duration::from_secs(600));
        let builder = if cancels { builder.cancel_abandoned() } else { builder };
        builder.build().unwrap()
    });
    let [a, b] = &caches;
    works_again(&mut raw, [a, b], LIMIT).await;
    burst(&caches, 0..WARM_UP).await;
    let alive = || Handle::current().metrics().num_alive_tasks();
    let quiet = async |raw: &mut Raw, tasks: usize| {
        let end = tokio::time::Instant::now() + LIMIT;
        loop {
            let flights: u64 = caches.iter().map(|cache| cache.stats().flights).sum();
            let leases = leases(raw).await;
            let subscriptions = raw.pubsub_channels().await.len();
            let left = (flights, leases, subscriptions, alive().saturating_sub(tasks));
            if left == (0, 0, 0, 0) {
                return;
            }
            let late = tokio::time::Instant::now() > end;
            assert!(!late, "flights, leases, subscriptions or tasks are left: {left:?}");
            sleep(5 * MS).await;
        }
    };
    // The tasks of the last callers must have ended as well.
    quiet(&mut raw, usize::MAX).await;
    let settled = async {
        let mut last = alive();
        let mut same = 0;
        while same < 20 {
            sleep(5 * MS).await;
            same = if alive() == last { same + 1 } else { 0 };
            last = alive();
        }
        last
    };
    let tasks = settled.await;
    let before = resident();

    let begun = tokio::time::Instant::now();
    let ends = burst(&caches, WARM_UP..WARM_UP + KEYS).await;
    println!("{KEYS} keys in {:?}: {ends:?}", begun.elapsed());
    assert_eq!(ends.failures, KEYS / 10);
    assert_eq!(ends.panics, KEYS / 20);
    assert!(ends.gone > KEYS / 100, "too few callers were aborted in time: {ends:?}");
    assert_eq!(ends.values + ends.failures + ends.panics + ends.gone, KEYS);

    quiet(&mut raw, tasks).await;
    assert!(caches.iter().all(|cache| cache.stats().degraded == 0), "some loads had no lease");
    let grown = || resident().saturating_sub(before) >> 10;
    println!("{tasks} tasks; {} KiB resident, grown by {} KiB", before >> 10, grown());
    // A hundred bytes for each key.
    let small = || async { grown() < KEYS / 10 };
    assert!(eventually(Duration::from_secs(2), small).await, "grown by {} KiB", grown());
    let (entries, fences, others, endless) = remaining(&mut raw).await;
    println!("in Redis: {entries} entries, {fences} fences");
    assert_eq!((endless, others), (0, 0), "some keys have no end, or are of other kinds");
    assert!(entries > KEYS / 2 && fences > 0, "{entries} entries and {fences} fences");
}

async fn leases(raw: &mut Raw) -> usize {
    raw.keys("*:l").await.len()
}

/// Returns the numbers of entries, of fences, of keys of other kinds, and of keys without an end.
async fn remaining(raw: &mut Raw) -> (usize, usize, usize, u64) {
    let keys = raw.keys("*").await;
    let count = |suffix: &str| keys.iter().filter(|key| key.ends_with(suffix)).count();
    let entries = count("}:e");
    let fences = count("}:f");
    // In one reading, since fences end meanwhile.
    let info: String = raw.run(&["INFO", "keyspace"]).await;
    let number = |field| {
        info.split([':', ',']).find_map(|field_text| field_text.strip_prefix(field)?.parse().ok())
    };
    let [all, ending]: [Option<u64>; 2] = ["keys=", "expires="].map(number);
    (entries, fences, keys.len() - entries - fences, all.unwrap() - ending.unwrap())
}
