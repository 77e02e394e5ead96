//! Real sentinels, a real master that dies, and a replica that takes its place.

use std::sync::Mutex;

use futures_util::StreamExt;
use testkit::{Sentinels, handover_life};

use crate::prelude::*;

/// A busy machine does not reach it.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);

fn backend(set: &Sentinels) -> RedisBackend {
    let builder = RedisBackend::builder().sentinels(set.urls(), Sentinels::MASTER);
    builder.command_timeout(COMMAND_TIMEOUT).build().unwrap()
}

fn locks(set: &Sentinels) -> Locks {
    Locks::new(backend(set), "bellwether")
}

/// Waits until all writes have reached the replicas.
async fn replicated(raw: &mut Raw, replicas: usize) {
    raw.run::<()>(&["SET", "marker", "1", "PX", "1000"]).await;
    let reached: usize = raw.run(&["WAIT", &replicas.to_string(), "10000"]).await;
    assert_eq!(reached, replicas);
}

const LEASE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_replicated_lease_stays_held_and_waiters_get_their_turn() {
    let mut set = Sentinels::start(2).await;
    let here = locks(&set);
    let there = locks(&set);
    let guard = here.mutex("k").lease(LEASE).renew_every(LEASE / 60).lock().await.unwrap();
    let fence = guard.fence();
    let waiter = there.mutex("k").lease(LEASE).wait_limit(3 * LIMIT);
    let waiting = tokio::spawn(async move { waiter.lock().await });
    let mut raw = set.servers[0].raw().await;
    let waits = async || raw.clone().run::<u32>(&["ZCARD", "bellwether:l:{k}:q"]).await == 1;
    assert!(comes_true(LIMIT, waits).await, "there is no waiter");
    let listens = async || !raw.clone().process_channels().await.is_empty();
    assert!(comes_true(LIMIT, listens).await, "no waiter subscribed");
    replicated(&mut raw, 2).await;

    set.servers[0].kill();
    let new = set.master_after(set.servers[0].port()).await;
    // The lease was renewed at the new master if more of it is left than before. Each look needs a
    // new connection, because sentinels cut the connections to a server that they promote.
    let mut before = i64::MAX;
    let renewed = async || {
        let now = new.raw().await.try_run(&["PTTL", "bellwether:l:{k}:l"]).await;
        now.is_ok_and(|now| now > std::mem::replace(&mut before, now))
    };
    assert!(comes_true(LIMIT, renewed).await, "the lease is not renewed at the new master");
    assert!(!guard.is_lost());
    // The new master grants a free lock, and refuses this one. Each backend moves for itself.
    let grants = async || match there.mutex("other").try_lock().await {
        Ok(granted) => granted.is_some(),
        Err(_) => false,
    };
    assert!(comes_true(LIMIT, grants).await, "the new master grants no lock");
    assert!(!waiting.is_finished());
    let listens = async || {
        let channels = new.raw().await.try_run::<Vec<String>>(&["PUBSUB", "CHANNELS"]).await;
        channels.is_ok_and(|channels| channels.iter().any(|channel| channel.contains(":l:p:")))
    };
    assert!(comes_true(LIMIT, listens).await, "the waiter does not listen at the new master");

    guard.unlock().await.unwrap();
    // The waiter was woken by a push, because the lease would last for long.
    let next = timeout(LIMIT, waiting).await.expect("the waiter got no turn").unwrap().unwrap();
    assert!(next.fence() > fence);
    next.unlock().await.unwrap();
}

/// The master hangs and is replaced. It comes back in the belief that it still is the master.
#[tokio::test]
async fn a_master_that_hangs_is_replaced_and_not_used_again() {
    let set = Sentinels::start(1).await;
    let build = || Cache::<String>::builder(backend(&set), "bellwether").build().unwrap();
    let here = build();
    let there = build();
    let load = |cache: &Cache<String>, key: &'static str| {
        let cache = cache.clone();
        async move {
            cache.get_or_load(key, |_| async { Ok::<_, std::io::Error>("v".to_owned()) }).await
        }
    };
    load(&here, "before").await.unwrap();
    let old = &set.servers[0];
    old.stop_signal();
    let new = set.master_after(old.port()).await;
    old.resume();
    // Every caller is served during the failover, and in the end values are stored again.
    let mut at = 0;
    let mut stored = async || {
        at += 1;
        let key: &'static str = format!("during-{at}").leak();
        for cache in [&here, &there] {
            assert_eq!(load(cache, key).await.unwrap(), "v");
        }
        let mut raw = new.raw().await;
        raw.run::<bool>(&["EXISTS", &format!("bellwether:c:{{{key}}}:e")]).await
    };
    assert!(comes_true(LIMIT, &mut stored).await, "no value is stored at the new master");
    let demoted = async || {
        // The sentinel that makes the server a replica may cut the connection.
        let info = old.raw().await.try_run::<String>(&["INFO", "replication"]).await;
        info.is_ok_and(|info| info.contains("role:slave"))
    };
    assert!(comes_true(LIMIT, demoted).await);
    // A load that a busy machine makes degraded stores no value.
    let again = stored().await || stored().await || stored().await;
    assert!(again, "no value is stored at the new master any more");
}

/// Each process asked a sentinel each second in its own phase. Meanwhile the old master, which a
/// planned failover leaves alive, went on granting, and so did the new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_is_followed_from_its_announcement() {
    let set = Sentinels::start(1).await;
    let backends: Vec<_> = (0..4).map(|_| backend(&set)).collect();
    for backend in &backends {
        backend.ping().await.unwrap();
    }
    for sentinel in &set.sentinels {
        let listen = async || watches(sentinel).await == backends.len();
        assert!(comes_true(LIMIT, listen).await, "a backend does not listen");
    }
    let old = set.servers[0].port();
    let client = redis::Client::open(set.sentinels[0].url()).unwrap();
    let mut announced = client.get_async_pubsub().await.unwrap();
    announced.subscribe(&["+promoted-slave", "+switch-master"]).await.unwrap();
    set.sentinels[0].raw().await.run::<()>(&["SENTINEL", "FAILOVER", Sentinels::MASTER]).await;
    let message = timeout(LIMIT, announced.on_message().next()).await.unwrap().unwrap();
    let begun = Instant::now();
    let mut new = set.servers[1].raw().await;
    for (at, backend) in backends.iter().enumerate() {
        let name = name(&format!("k{at}"));
        let moved = async || {
            let Ok(fence) = backend.edit(&name, &Edit::Invalidate, LEASE).await else {
                return false;
            };
            let known: Option<u64> = new.try_run(&["GET", &name.suffixed("f")]).await.ok();
            known == Some(fence)
        };
        assert!(comes_true(LIMIT, moved).await, "the backend stays at the old master");
    }
    let channel = message.get_channel_name().to_owned();
    println!("all backends left {:?} after the announcement by {channel}", begun.elapsed());
    assert_ne!(set.master_after(old).await.port(), old);
}

/// The connections of a backend share one watch.
#[tokio::test]
async fn a_watch_ends_with_its_backend() {
    let set = Sentinels::start(1).await;
    let backend = backend(&set);
    let listens = backend.changes(&name("k")).await.unwrap();
    backend.ping().await.unwrap();
    let watched = async |expected| {
        let first = &set.sentinels[0];
        comes_true(LIMIT, async || watches(first).await == expected).await
    };
    assert!(watched(1).await);
    drop((backend, listens));
    assert!(watched(0).await, "the watch does not end with its backend");
}

/// Returns how many connections listen to the announcements of a sentinel.
async fn watches(sentinel: &RedisServer) -> usize {
    let clients: String = sentinel.raw().await.run(&["CLIENT", "LIST"]).await;
    clients.matches(" sub=2 ").count()
}

/// How many processes hold locks, and how many each.
const PROCESSES: usize = 4;
const HELD: usize = 250;

/// Each holder was told when its renewal was due, up to a third of the lease later. Meanwhile the
/// new master granted its lock to another process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_learn_at_once_that_a_new_master_lacks_their_leases() {
    let lease = Duration::from_secs(10);
    let set = Sentinels::start(1).await;
    let mut raw = set.servers[0].raw().await;
    let build = |number: usize| {
        let builder = RedisBackend::builder().sentinels(set.urls(), Sentinels::MASTER);
        let builder = builder.command_timeout(COMMAND_TIMEOUT);
        Locks::new(builder.client_name(format!("holder-{number}")).build().unwrap(), "bellwether")
    };
    let processes: Vec<_> = (0..PROCESSES).map(build).collect();
    for locks in &processes {
        locks.mutex("warm").lock().await.unwrap().unlock().await.unwrap();
    }
    replicated(&mut raw, 1).await;
    raw.run::<()>(&["ACL", "SETUSER", "default", "-psync", "-sync", "-replconf"]).await;
    raw.run::<()>(&["CLIENT", "KILL", "TYPE", "replica"]).await;
    // Leases that were renewed a moment ago are not due for long.
    let held = processes.iter().enumerate().map(|(number, locks)| async move {
        let locked = (0..HELD).map(|at| {
            let mutex = locks.mutex(format!("k-{number}-{at}")).lease(lease);
            async move { mutex.lock().await.unwrap() }
        });
        join_all(locked).await
    });
    let held = join_all(held).await;
    let waiter = processes[1].mutex("k-0-0").lease(lease).wait_limit(3 * LIMIT);
    let waiting = tokio::spawn(async move { waiter.lock().await });
    let queue = ["ZCARD", "bellwether:l:{k-0-0}:q"];
    let waits = async || raw.run::<u32>(&queue).await == 1;
    assert!(comes_true(LIMIT, waits).await, "there is no waiter");

    set.sentinels[0].raw().await.run::<()>(&["SENTINEL", "FAILOVER", Sentinels::MASTER]).await;
    let new = set.master_after(set.servers[0].port()).await;
    let met = (0..PROCESSES).map(|number| {
        let new = &new;
        let name = format!("name=holder-{number} ");
        async move {
            let has_met = async || {
                let clients = new.raw().await.try_run::<String>(&["CLIENT", "LIST"]).await;
                clients.is_ok_and(|clients| clients.contains(&name))
            };
            assert!(comes_true(LIMIT, has_met).await, "process {number} does not meet it");
            Instant::now()
        }
    });
    let told = held.iter().map(|guards| async move {
        let all = join_all(guards.iter().map(|guard| guard.lost()));
        timeout(LIMIT, all).await.expect("a loss is not told");
        Instant::now()
    });
    let (met, told) = tokio::join!(join_all(met), join_all(told));
    let late = met.iter().zip(&told).map(|(met, told)| told.saturating_duration_since(*met));
    let late: Vec<_> = late.collect();
    println!("told after the first contact with the new master: {late:?}");
    assert!(late.iter().all(|late| *late < Duration::from_millis(500)), "{late:?}");
    // The clock goes on, so the fence is greater, though the last one is unknown at the new master.
    let next = timeout(LIMIT, waiting).await.expect("the waiter got no turn").unwrap().unwrap();
    let lost = held.into_iter().next().unwrap().swap_remove(0);
    assert!(next.fence() > lost.fence() && !next.is_lost());
    assert_eq!(lost.unlock().await.unwrap_err().kind(), ErrorKind::Lost);
}

/// How many callers of one process wait for the fair lock of a planned failover.
const CALLERS: usize = 10;
/// For how long the lock is watched after it.
const WATCHED: Duration = Duration::from_secs(12);

/// Callers that leave while the master changes kept their places in the queue, and the lock was
/// handed over to one after another of them: for 18 s, nobody had it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_failover_costs_waiters_one_handover() {
    let set = Sentinels::start(1).await;
    let held = Arc::new(Mutex::new(Vec::new()));
    let mut processes = Vec::new();
    let mut callers = JoinSet::new();
    for at in 0..3 * CALLERS {
        if at % CALLERS == 0 {
            processes.push(locks(&set));
        }
        let lock = processes[at / CALLERS].mutex("k").fair().lease(LEASE / 3);
        // Some leave before they have waited for all others.
        let patience = if at % 2 == 0 { 2 * LEASE } else { 30 * MS };
        let held = held.clone();
        callers.spawn(async move {
            loop {
                // A call that meets the failover may fail, and the next one does not.
                let Ok(Ok(guard)) = timeout(patience, lock.lock()).await else { continue };
                held.lock().unwrap().push(Instant::now());
                sleep(5 * MS).await;
                let _ = guard.unlock().await;
            }
        });
    }
    let goes_round = async || held.lock().unwrap().len() > 100;
    assert!(comes_true(LIMIT, goes_round).await, "the lock does not go round");

    set.sentinels[0].raw().await.run::<()>(&["SENTINEL", "FAILOVER", Sentinels::MASTER]).await;
    let promoted = async || {
        let info = set.servers[1].raw().await.try_run::<String>(&["INFO", "replication"]).await;
        info.is_ok_and(|info| info.contains("role:master"))
    };
    assert!(comes_true(LIMIT, promoted).await, "no failover happens");
    let begun = Instant::now();
    sleep(WATCHED).await;
    callers.shutdown().await;
    let mut times: Vec<_> = held.lock().unwrap().iter().copied().filter(|at| *at > begun).collect();
    times.insert(0, begun);
    times.push(begun + WATCHED);
    let gap = |pair: &[Instant]| pair[1] - pair[0];
    let mut gaps: Vec<_> = times.windows(2).map(gap).filter(|gap| *gap > 500 * MS).collect();
    gaps.sort();
    println!("{} holds; nobody had the lock for {gaps:?}", times.len() - 2);
    // One handover that nobody takes, and a request to the old master that has no answer.
    let longest = handover_life() + COMMAND_TIMEOUT;
    assert!(gaps.iter().sum::<Duration>() <= longest, "{gaps:?}");
}
