//! Tags over a server and a cluster. Each backend stands for a process.

use bellwether::cache::Lead;

use crate::prelude::*;

const STALENESS: Duration = Duration::from_millis(500);

fn cache(backend: RedisBackend) -> Cache<u64> {
    Cache::builder(backend, "tags").tags().build().unwrap()
}

fn tiered(backend: RedisBackend) -> Cache<u64> {
    let tier = LocalTier::default().max_staleness(STALENESS);
    Cache::builder(backend, "tags").tags().local(tier).build().unwrap()
}

async fn load(cache: &Cache<u64>, key: &str, tag: &'static str, value: u64) -> u64 {
    let load = move |lead: Lead<u64>| async move {
        lead.tag(tag);
        Ok::<_, BoxError>(value)
    };
    cache.get_or_load(key, load).await.unwrap()
}

#[tokio::test]
async fn the_commands_of_tags_are_few_whatever_the_entries() {
    let server = RedisServer::start().await;
    let cache = cache(open(server.url()));
    let mut raw = server.raw().await;
    for key in 0..1000_u64 {
        cache.request(key.to_string()).tag("a").insert(&key).await.unwrap();
    }
    let keys: u64 = raw.run(&["DBSIZE"]).await;
    let mut monitor = server.monitor().await;
    assert_eq!(cache.get("7").await.unwrap(), Some(7));
    assert_eq!(commands(monitor.calls_from_clients().await), ["GET", "MGET"]);
    cache.invalidate_tag("a").await.unwrap();
    assert_eq!(commands(monitor.calls_from_clients().await), ["EVALSHA"]);
    let after: u64 = raw.run(&["DBSIZE"]).await;
    assert_eq!(after, keys + 1);
    assert_eq!(cache.get("7").await.unwrap(), None);
    monitor.calls_from_clients().await;
    assert_eq!(load(&cache, "8", "a", 8).await, 8);
    // The look and its tags, the claim, the number, the commit and the tags beside it.
    let mut all = commands(monitor.calls_from_clients().await);
    all.retain(|command| command != "SUBSCRIBE");
    assert_eq!(all[..4], ["GET", "MGET", "EVALSHA", "GET"]);
    all[4..].sort();
    assert_eq!(all[4..], ["EVALSHA", "MGET"]);
    let many = cache.get_many((0..100_u64).map(|key| key.to_string())).await;
    assert_eq!(many.into_iter().filter(|found| matches!(found, Ok(Some(_)))).count(), 1);
    let all = commands(monitor.calls_from_clients().await);
    // The entries, and the ends of their tags.
    assert_eq!(all, ["MGET", "MGET"]);
    for key in raw.keys("tags:t:*").await {
        let left = raw.pttl(&key).await;
        assert!(left > 29 * 86_400_000, "{key} is kept for {left} ms");
    }
}

#[tokio::test]
async fn a_tag_ends_in_each_process_and_database() {
    let server = RedisServer::start().await;
    for database in [0, 3] {
        let url = server.url_of("", database);
        let [here, there] = [(); 2].map(|()| tiered(open(&url)));
        let plain = cache(open(&url));
        let mut slowest = Duration::ZERO;
        let mut others_kept = 0;
        for round in 0..20 {
            let tag = ["a", "ü{b}"][round % 2];
            for key in ["k", "l"] {
                let tag = if key == "k" { tag } else { "other" };
                there.request(key).tag(tag).insert(&7).await.unwrap();
                warm(&here, key).await;
            }
            match round % 3 {
                0 => plain.invalidate_tag(tag).await.unwrap(),
                1 => there.expire_tag(tag).await.unwrap(),
                _ => plain.clear().await.unwrap(),
            }
            let ended = Instant::now();
            let gone = async || here.get_local("k").is_none();
            assert!(comes_true(STALENESS, gone).await, "the copy stays");
            slowest = slowest.max(ended.elapsed());
            let other = here.get_local("l");
            assert!(other.is_none() || round % 3 != 2, "a clear leaves a copy");
            others_kept += usize::from(other.is_some());
            for cache in [&here, &there, &plain] {
                assert_eq!(cache.get("k").await.unwrap(), None);
            }
        }
        // 14 at best. A process that stands still trusts no copy for a moment.
        assert!(others_kept > 6, "copies with another tag are dropped: {others_kept} are kept");
        println!("the slowest drop of database {database} took {slowest:?}");
    }
}

/// The number is lost with its key. The next one is greater still.
#[tokio::test]
async fn numbers_go_on_after_the_loss_of_their_key() {
    let server = RedisServer::start().await;
    let cache = cache(open(server.url()));
    let mut raw = server.raw().await;
    for round in 0..10 {
        assert_eq!(load(&cache, "k", "a", round).await, round);
        assert_eq!(load(&cache, "k", "a", round + 1).await, round);
        cache.invalidate_tag("a").await.unwrap();
        match round % 3 {
            0 => raw.run::<()>(&["DEL", "tags:t:{tags}:n"]).await,
            1 => raw.run::<()>(&["LPUSH", "tags:t:{tags}:gb", "foreign"]).await,
            _ => {}
        }
        assert_eq!(cache.get("k").await.unwrap(), None);
    }
    cache.request("k").tag("b").insert(&1).await.unwrap();
    assert_eq!(cache.get("k").await.unwrap(), Some(1), "foreign data is no end of a tag");
    cache.invalidate_tag("b").await.unwrap();
    assert_eq!(cache.get("k").await.unwrap(), None);
    // What cannot be read may be an end, until the tag ends again.
    cache.request("l").tag("c").insert(&1).await.unwrap();
    raw.run::<()>(&["SET", "tags:t:{tags}:gc", "unreadable"]).await;
    assert_eq!(cache.get("l").await.unwrap(), None);
    cache.expire_tag("c").await.unwrap();
    cache.request("l").tag("c").insert(&2).await.unwrap();
    assert_eq!(cache.get("l").await.unwrap(), Some(2));
}

/// The number of the tag is not known, so each entry with the tag counts as missing, until an
/// invalidation writes the number anew.
#[tokio::test]
async fn a_foreign_key_in_the_place_of_a_tag_costs_loads_and_nothing_else() {
    let server = RedisServer::start().await;
    let cache = cache(open(server.url()));
    let mut raw = server.raw().await;
    cache.request("k").tag("a").insert(&1).await.unwrap();
    cache.invalidate_tag("a").await.unwrap();
    for key in raw.keys("tags:t:*").await {
        raw.run::<()>(&["SET", &key, "text"]).await;
    }
    for value in 2..4 {
        assert_eq!(load(&cache, "k", "a", value).await, value);
        assert_eq!(cache.get("k").await.unwrap(), None);
    }
    cache.invalidate_tag("a").await.unwrap();
    assert_eq!(load(&cache, "k", "a", 4).await, 4);
    assert_eq!(cache.get("k").await.unwrap(), Some(4));
}
