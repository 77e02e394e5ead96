//! Releases that the old master answered, and that the new one does not know of.

use std::time::Duration;

use bellwether::{Cache, Locks, RedisBackend};
use futures_util::{FutureExt, future::join_all};
use testkit::{LIMIT, Raw, Sentinels, comes_true};
use tokio::time::timeout;

/// Longer than a test waits.
const LEASE: Duration = Duration::from_secs(60);
const WAITERS: usize = 12;

/// The process of the released owners goes on, and keeps their queue entries. So each owner was
/// handed the lock at the new master, which lasted for two seconds, one after the other. A lease
/// whose release was not replicated stood until its end.
#[tokio::test]
async fn releases_are_repeated_at_the_new_master_of_a_planned_failover() {
    let set = Sentinels::start(1).await;
    let released = released_at_the_old_master(&set).await;
    set.sentinels[0].raw().await.run::<()>(&["SENTINEL", "FAILOVER", Sentinels::MASTER]).await;
    released.are_free_at_the_new_master(&set).await;
}

#[tokio::test]
async fn releases_are_repeated_at_the_new_master_after_a_crash() {
    let mut set = Sentinels::start(1).await;
    let released = released_at_the_old_master(&set).await;
    set.servers[0].kill();
    released.are_free_at_the_new_master(&set).await;
}

/// Processes whose releases are lost with the old master, but for one lease that is held.
struct Released {
    here: Locks,
    there: Locks,
    cache: Cache<String>,
    held: bellwether::lock::MutexGuard,
}

fn backend(set: &Sentinels) -> RedisBackend {
    let builder = RedisBackend::builder().sentinels(set.urls(), Sentinels::MASTER);
    // A busy machine does not reach this time-out.
    builder.command_timeout(Duration::from_secs(1)).build().unwrap()
}

/// Holds leases, lets waiters queue up, and replicates that. Then cuts the replica off, and
/// releases everything.
async fn released_at_the_old_master(set: &Sentinels) -> Released {
    let (here, there) = (Locks::new(backend(set)), Locks::new(backend(set)));
    let cache = Cache::<String>::builder(backend(set)).lease(LEASE).build().unwrap();
    let mut raw = set.servers[0].raw().await;

    let held = here.mutex("held").lease(LEASE).lock().await.unwrap();
    let fair = here.fair_mutex("fair").lease(LEASE).lock().await.unwrap();
    let queued = (0..WAITERS).map(|_| {
        let waiter = there.fair_mutex("fair").lease(LEASE).wait_limit(LEASE);
        tokio::spawn(async move { waiter.lock().await.unwrap().unlock().await })
    });
    let queued: Vec<_> = queued.collect();
    let waits = async || raw.run::<usize>(&["ZCARD", "bellwether:l:{fair}:q"]).await == WAITERS;
    assert!(comes_true(LIMIT, waits).await, "the waiters do not queue up");
    let passed = here.mutex("passed").lease(LEASE);
    let first = passed.lock().await.unwrap();
    let mut second = Box::pin(passed.lock());
    assert!(second.as_mut().now_or_never().is_none());
    let permit = here.semaphore("permits", 1).lease(LEASE).acquire().await.unwrap();
    let reader = here.rw_lock("read").lease(LEASE).read().await.unwrap();
    let loading = cache.get_or_load("loaded", async move |_| {
        replicate(&mut raw).await;
        cut_off(&mut raw).await;
        Ok::<_, std::io::Error>("v".to_owned())
    });
    assert_eq!(loading.await.unwrap(), "v");

    fair.unlock().await.unwrap();
    for served in join_all(queued).await {
        served.unwrap().unwrap();
    }
    let (unlocked, second) = tokio::join!(first.unlock(), second);
    unlocked.unwrap();
    second.unwrap().unlock().await.unwrap();
    permit.release().await.unwrap();
    reader.unlock().await.unwrap();
    Released { here, there, cache, held }
}

impl Released {
    async fn are_free_at_the_new_master(self, set: &Sentinels) {
        let new = set.master_after(set.servers[0].port()).await;
        // A new waiter keeps the queue entries of its process.
        let waiter = self.there.fair_mutex("fair").lease(LEASE).wait_limit(LEASE);
        let next = timeout(LIMIT, waiter.lock()).await.expect("the waiter got no turn").unwrap();
        next.unlock().await.unwrap();
        let left = async || {
            let mut keys = new.raw().await.keys("bellwether:*").await;
            // The suffixes of what is held, or waits.
            let stands = [":l", ":w", ":r", ":p", ":q", ":u"];
            keys.retain(|key| stands.iter().any(|suffix| key.ends_with(suffix)));
            keys
        };
        let only_held = async || left().await == ["bellwether:l:{held}:l"];
        assert!(comes_true(LIMIT, only_held).await, "{:?} are left", left().await);
        assert!(!self.held.is_lost());
        self.held.unlock().await.unwrap();
        drop((self.here, self.cache));
    }
}

/// Waits until all writes have reached the replica.
async fn replicate(raw: &mut Raw) {
    raw.run::<()>(&["SET", "marker", "1", "PX", "1000"]).await;
    assert_eq!(raw.run::<usize>(&["WAIT", "1", "10000"]).await, 1);
}

/// Lets the replica get no data from here on: it is disconnected, and may not come back.
async fn cut_off(raw: &mut Raw) {
    raw.run::<()>(&["ACL", "SETUSER", "default", "-psync", "-sync", "-replconf"]).await;
    raw.run::<()>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
}
