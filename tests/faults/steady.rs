//! A steady load on three caches, while the server is killed and started again every few seconds.
//!
//! `BELLWETHER_STEADY_SECONDS` makes it longer, and `BELLWETHER_STEADY_RATE` sets the requests in a
//! second over all caches: `BELLWETHER_STEADY_SECONDS=60 BELLWETHER_STEADY_RATE=10000 cargo test
//! --release --test faults steady -- --nocapture`.

use tokio::time::sleep_until;

use super::load::Load;
use super::*;

fn setting(name: &str, usual: u32) -> u32 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_steady_load_survives_a_server_that_is_killed_every_few_seconds() {
    let _turn = turn_alone().await;
    let seconds = setting("BELLWETHER_STEADY_SECONDS", 12);
    let rate = setting("BELLWETHER_STEADY_RATE", 300);
    let period = Duration::from_secs(if seconds >= 60 { 10 } else { 3 });
    let mut server = RedisServer::start().await;
    let mut caches = Vec::new();
    for _ in 0..3 {
        caches.push(connected(&server.url()).await);
    }
    let end = Instant::now() + Duration::from_secs(seconds.into());
    let load = Load::start(&caches, (rate / 3).max(1));
    let mut kills = 0;
    let mut recovered = Vec::new();
    // The most requests that `works_again` has sent to each cache.
    let mut beside = [0; 3];
    while Instant::now() + period < end {
        let next = Instant::now() + period;
        server.kill();
        kills += 1;
        load.answers(usize::try_from(rate / 2).unwrap()).await;
        server.start_again().await;
        let a = kills % 3;
        let b = (kills + 1) % 3;
        let both = [&caches[a], &caches[b]];
        let (took, tries) = works_again(&mut server.raw().await, both, RECOVERY).await;
        recovered.push(took);
        beside[a] += tries;
        beside[b] += 2 * tries;
        sleep_until(next).await;
    }
    let outcome = load.stop().await;
    println!("{kills} kills, as before after {recovered:?}; {}", outcome.summary());
    outcome.assert_no_error();
    let mut loads = 0;
    for (number, cache) in caches.iter().enumerate() {
        let stats = cache.stats();
        println!("cache {number}: {stats:?}");
        // Every answer is counted under its source. The answers of `works_again` are counted as
        // well.
        let answers = outcome.answers.iter().filter(|answer| answer.cache == number).count() as u64;
        let counted = stats.hits + stats.led + stats.followed + stats.received + stats.degraded;
        let most = answers + beside[number];
        assert!((answers..=most).contains(&counted), "{answers} answers: {stats:?}");
        // A load under the lease led its caller, or lost against a newer value. A load without a
        // lease served at least one caller.
        let under_the_lease = stats.stored + stats.refused + stats.unstored;
        assert!(stats.led <= under_the_lease, "{stats:?}");
        assert!(stats.loads >= under_the_lease, "{stats:?}");
        let alone = stats.loads - under_the_lease;
        assert!(alone <= stats.degraded, "{alone} loads without a lease: {stats:?}");
        assert_eq!(stats.failures, 0, "{stats:?}");
        loads += outcome.loads[number] as u64;
        assert!(stats.loads >= outcome.loads[number] as u64, "{stats:?}");
        assert_eq!(stats.flights, 0, "{stats:?}");
    }
    assert!(loads < outcome.answers.len() as u64 / 2, "there were {loads} loads");
    assert!(outcome.count(Source::Degraded) > 0);
    let slowest = outcome.assert_slowest(Duration::from_millis(30 + 250 + 200));
    println!("the slowest took {slowest:?}");
}
