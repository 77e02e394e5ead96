//! A holder that dies with its process.

use bellwether::Redlock;

use super::{try_lock, unlock};
use crate::prelude::*;

/// The environment variable that makes this process a holder. It holds the URLs of the servers,
/// separated by spaces.
const VARIABLE: &str = "BELLWETHER_REDLOCK_HOLDER";
const HOLDS: &str = "the holder has the lock";
const LEASE: Duration = Duration::from_secs(2);

fn redlock<'a>(urls: impl Iterator<Item = &'a str>) -> Redlock {
    let backends: Vec<_> = urls.map(|url| RedisBackend::open(url).unwrap()).collect();
    Redlock::with_answer_limit(backends, "bellwether", Duration::from_millis(200)).unwrap()
}

/// Holds the lock until it is killed, if this process was started for that.
pub fn work() {
    let Ok(urls) = std::env::var(VARIABLE) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let redlock = redlock(urls.split(' '));
        let guard = redlock.mutex("m").lease(LEASE).lock().await.unwrap();
        println!("\n{HOLDS}");
        guard.lost().await;
        panic!("the lock was lost");
    });
}

#[tokio::test]
async fn a_killed_holder_costs_the_rest_of_its_lease() {
    let servers = join_all((0..3).map(|_| RedisServer::start())).await;
    let urls: Vec<_> = servers.iter().map(RedisServer::url).collect();
    let mut holder = Process::start("redlock::worker", [(VARIABLE, urls.join(" "))]);
    holder.says(HOLDS).await;
    // The holder renews: the lock is held for longer than its first lease would last.
    tokio::time::sleep(LEASE * 3 / 2).await;
    let other = redlock(urls.iter().map(String::as_str));
    assert!(try_lock(&other, "m").await.is_none());
    let mut raws = join_all(servers.iter().map(RedisServer::raw)).await;
    holder.kill().await;
    let killed = Instant::now();
    let mut ends = Vec::new();
    for raw in &mut raws {
        let asked = Instant::now();
        let left = u64::try_from(raw.pttl("bellwether:r:{m}:l").await).ok();
        ends.push(left.map(|left| asked + Duration::from_millis(left)));
    }
    ends.sort();
    let ends = ends[1].expect("two of three servers hold the lock");
    let guard = timeout(LIMIT, other.mutex("m").lock()).await.unwrap().unwrap();
    // Redis ends a key within a few milliseconds of its time.
    assert!(
        Instant::now() + Duration::from_millis(20) >= ends,
        "another process got the lock while two of three servers held it"
    );
    println!("after {:?}", killed.elapsed());
    assert!(killed.elapsed() < LEASE + Duration::from_secs(1), "{:?}", killed.elapsed());
    unlock(guard).await;
}
