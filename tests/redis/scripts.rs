//! Properties of a Redis server alone: scripts, memory, rights, and foreign keys.

use std::time::SystemTime;

use bellwether::{
    backend::{Announcement, BackOff, HANDOVER_LIFE, Tick, TickStep},
    lock::PreviousTick,
};

use crate::prelude::*;

async fn full(raw: &mut Raw) {
    raw.config_set("maxmemory", "1").await;
}

async fn roomy(raw: &mut Raw) {
    raw.config_set("maxmemory", "0").await;
}

// Scripts

/// A server that was restarted, failed over or flushed knows no script. It answers a digest with
/// NOSCRIPT.
#[tokio::test]
async fn a_server_that_has_forgotten_the_scripts_is_told_again() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let mut raw = server.raw().await;
    let name = name("k");
    let claim = claim(&name);
    macro_rules! forgotten {
        ($call:expr) => {{
            raw.run::<()>(&["SCRIPT", "FLUSH"]).await;
            $call.await.unwrap()
        }};
    }
    let Claimed::Granted(grant) = forgotten!(backend.claim(&claim, 0)) else { panic!() };
    assert_eq!(forgotten!(backend.renew(std::slice::from_ref(&claim))), [Renewal::Held]);
    let outcome = forgotten!(backend.commit(&claim, &grant, &value("v"), Some(TTL)));
    assert_eq!(outcome, Committed::Stored);
    assert!(!forgotten!(backend.release(&claim)));
    // Several batches of one renewal.
    let claims: Vec<_> = (0..250).map(|at| self::claim(&self::name(&format!("k{at}")))).collect();
    for claim in &claims {
        begun(&backend, claim).await;
    }
    assert_eq!(forgotten!(backend.renew(&claims)), [Renewal::Held; 250]);
    let put = forgotten!(backend.edit(&name, &Edit::Put(value("put"), TTL), FENCE_LIFE));
    assert!(forgotten!(backend.edit(&name, &Edit::Invalidate, FENCE_LIFE)) > put);
}

#[tokio::test]
async fn a_hit_is_one_command_and_a_rebuild_three() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let name = name("k");
    // The connection and the scripts are in place after this call.
    backend.edit(&name, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
    let mut raw = server.raw().await;
    let known = comes_true(LIMIT, async || raw.knows_all_scripts().await);
    assert!(known.await, "the scripts were not loaded at connecting");
    let mut monitor = server.monitor().await;
    assert_eq!(backend.get(&name).await.unwrap(), None);
    let claim = claim(&name);
    let grant = begun(&backend, &claim).await;
    backend.commit(&claim, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(commands(monitor.calls_from_clients().await), ["GET", "EVALSHA", "EVALSHA"]);
    assert!(backend.get(&name).await.unwrap().is_some());
    assert_eq!(commands(monitor.calls_from_clients().await), ["GET"]);
    // 250 renewals are three commands.
    let claims: Vec<_> = (0..250).map(|at| self::claim(&self::name(&format!("k{at}")))).collect();
    backend.renew(&claims).await.unwrap();
    assert_eq!(commands(monitor.calls_from_clients().await), ["EVALSHA"; 3]);
}

#[tokio::test]
async fn a_renewal_is_a_read_and_two_expiries_in_its_script() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let mut raw = server.raw().await;
    let claims: Vec<_> = (0..10).map(|at| claim(&name(&format!("k{at}")))).collect();
    for claim in &claims {
        begun(&backend, claim).await;
    }
    raw.reset_stats().await;
    assert_eq!(backend.renew(&claims).await.unwrap(), [Renewal::Held; 10]);
    let counts = [("evalsha", 1), ("get", 10), ("pexpire", 20)].map(owned_count);
    assert_eq!(calls_of_commands(&mut raw).await, counts);
}

fn owned_count((command, calls): (&str, u32)) -> (String, u32) {
    (command.to_owned(), calls)
}

/// Returns how often each command was called since `CONFIG RESETSTAT`, also by scripts.
async fn calls_of_commands(raw: &mut Raw) -> Vec<(String, u32)> {
    let stats: String = raw.run(&["INFO", "commandstats"]).await;
    let calls = |line: &str| {
        let (command, calls) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        Some((command.to_owned(), calls.split(',').next()?.parse::<u32>().ok()?))
    };
    let mut calls: Vec<_> = stats.lines().filter_map(calls).collect();
    calls.retain(|(command, _)| !command.starts_with("config") && command != "info");
    calls.sort();
    calls
}

/// A process that comes late for a tick asks once. A turn is a look, a lease, a mark, the mark that
/// it is done, and the release.
#[tokio::test]
async fn a_late_process_asks_once_and_a_mark_is_four_calls_in_its_script() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let locks = Locks::new(backend.clone(), "bellwether");
    let mut raw = server.raw().await;
    let job = |second| locks.once("job", SystemTime::UNIX_EPOCH + Duration::from_secs(second));
    // The connection is in place after this turn.
    job(1).begin().await.unwrap().unwrap().done().await.unwrap();
    let mut monitor = server.monitor().await;
    job(2).begin().await.unwrap().unwrap().done().await.unwrap();
    assert_eq!(commands(monitor.calls_from_clients().await), ["EVALSHA"; 5]);
    assert!(job(2).begin().await.unwrap().is_none());
    assert_eq!(commands(monitor.calls_from_clients().await), ["EVALSHA"]);
    let claim = claim(&name("k"));
    begun(&backend, &claim).await;
    raw.reset_stats().await;
    let tick = Tick { at: 1, step: TickStep::Begin, kept: TTL };
    assert!(backend.mark(&claim, tick).await.unwrap().is_set);
    let expected = [("evalsha", 1), ("get", 2), ("set", 1), ("time", 1)];
    assert_eq!(calls_of_commands(&mut raw).await, expected.map(owned_count));
}

/// Each call of a script costs 3 to 5 us at a server whose caches are cold, as they are after a
/// load. A waiter of another process waits for all of them.
#[tokio::test]
async fn a_commit_is_eight_calls_in_its_script_if_a_process_waits() {
    let server = RedisServer::start().await;
    let [here, there] = [(); 2].map(|()| open(server.url()));
    let mut raw = server.raw().await;
    let name = name("k");
    let holder = claim(&name);
    let mut waiter = claim(&name);
    let grant = begun(&here, &holder).await;
    waiter.waits = false;
    let mut changes = testkit::changes_for(&there, &waiter).await.unwrap();
    let held = there.claim(&waiter, 0).await;
    assert!(matches!(held, Ok(Claimed::Occupied(_))), "{held:?}");
    raw.reset_stats().await;
    here.commit(&holder, &grant, &value("v"), Some(TTL)).await.unwrap();
    let change = next(&mut changes).await;
    assert!(matches!(change, Change::Entry(_)), "{change:?}");
    let expected = [
        // Of the lease with the record of failures.
        ("del", 1),
        ("evalsha", 1),
        // Of the lease and of its fence.
        ("get", 2),
        // To the process, and on the channel of the name.
        ("publish", 2),
        // The entry, and the mark of its fence.
        ("set", 2),
        ("time", 1),
    ];
    assert_eq!(calls_of_commands(&mut raw).await, expected.map(owned_count));
}

/// The usual case of a lock and its unlock. Each call costs a busy server 1 to 2 us.
#[tokio::test]
async fn a_lock_and_its_unlock_are_few_calls_in_their_scripts() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let mut raw = server.raw().await;
    let sole = vec![("del", 1), ("evalsha", 2), ("exists", 2), ("get", 1), ("set", 2), ("time", 1)];
    let shared = vec![
        ("evalsha", 2),
        ("exists", 2),
        ("pexpire", 1),
        ("time", 2),
        ("zadd", 1),
        ("zrem", 1),
        ("zscore", 1),
    ];
    for (mode, expected) in [
        (Mode::Exclusive, &sole),
        (Mode::Fair, &sole),
        (Mode::Write, &sole),
        (Mode::Read, &shared),
        (Mode::Permit { limit: 3, count: 1 }, &shared),
    ] {
        let claim = |at| {
            let name = name_in(Family::Lock, &format!("{mode:?} {at}"));
            Claim::new(name, mode, LEASE, FENCE_LIFE)
        };
        // The second time, there is a last fence.
        for claim in [claim(0), claim(1), claim(1)] {
            raw.reset_stats().await;
            granted(&backend, &claim).await;
            assert!(backend.release(&claim).await.unwrap());
            let expected: Vec<_> = expected.iter().copied().map(owned_count).collect();
            let mut calls = calls_of_commands(&mut raw).await;
            // The backend may open a connection meanwhile.
            let opens = ["client", "hello", "role", "script"];
            calls.retain(|(command, _)| !opens.iter().any(|word| command.starts_with(word)));
            assert_eq!(calls, expected, "{mode:?}");
        }
    }
}

/// The waiter of another process gets its push after all calls of the script.
#[tokio::test]
async fn a_handover_is_nine_calls_in_its_script() {
    let server = RedisServer::start().await;
    let [here, there] = [(); 2].map(|()| open(server.url()));
    let mut raw = server.raw().await;
    let calls_of_script = [
        ("evalsha", 1),
        ("exists", 1),
        ("get", 1),
        ("publish", 1),
        // The fence and the lease.
        ("set", 2),
        ("time", 1),
        ("zrange", 1),
        ("zrem", 1),
        ("zscore", 1),
    ];
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Write] {
        let name = name_in(Family::Lock, &format!("{mode:?}"));
        let claim_of = |backend: &RedisBackend, label: Option<&str>| {
            let mut claim = Claim::new(name.clone(), mode, LEASE, FENCE_LIFE);
            claim.owner = backend.new_owner();
            claim.label = label.map(Into::into);
            claim
        };
        // Before the second time, the clock of the server was set back. In the third time, the
        // server is full.
        let fence_ahead = 9_000_000_000_000_000;
        for (label, last_fence, is_full) in [
            (Some("pod-7"), None, false),
            (None, Some(fence_ahead), false),
            (Some("pod-8"), None, true),
        ] {
            if let Some(fence) = last_fence {
                let text = format!("{fence:016}");
                raw.run::<()>(&["SET", &name.suffixed("f"), &text]).await;
            }
            let holder = claim_of(&here, None);
            let waiter = claim_of(&there, label);
            let mut changes = testkit::changes_for(&there, &waiter).await.unwrap();
            let first = granted(&here, &holder).await;
            held(&there, &waiter).await;
            if is_full {
                full(&mut raw).await;
            }
            raw.reset_stats().await;
            assert!(here.release(&holder).await.unwrap());
            let Change::Granted(handover) = next(&mut changes).await else { panic!("{mode:?}") };
            assert_eq!(handover.owner, waiter.owner);
            assert!(handover.fence > first.fence().max(last_fence.unwrap_or_default()));
            if last_fence.is_none() && !is_full {
                let calls = calls_of_commands(&mut raw).await;
                assert_eq!(calls, calls_of_script.map(owned_count), "{mode:?}");
            }
            let holding = there.inspect(&name, mode.into()).await.unwrap();
            assert_eq!((holding.holders, holding.waiting), (1, 0), "{mode:?}");
            assert_eq!(holding.fence, handover.fence);
            assert_eq!(holding.owner.as_deref(), label);
            // A lease that was handed over is short.
            assert!(holding.expires_in <= HANDOVER_LIFE, "{holding:?}");
            assert!(there.release(&waiter).await.unwrap());
            roomy(&mut raw).await;
        }
    }
}

#[tokio::test]
async fn each_connection_has_the_name_that_was_given() {
    let server = RedisServer::start().await;
    let named = |name: &str| testkit::builder().server(server.url()).client_name(name);
    let backend = named("pod-7").build().unwrap();
    // The subscription has a connection of its own.
    drop(backend.changes(&name("k")).await.unwrap());
    backend.get(&name("k")).await.unwrap();
    let mut raw = server.raw().await;
    let clients: String = raw.run(&["CLIENT", "LIST"]).await;
    assert_eq!(clients.matches(" name=pod-7 ").count(), 2, "{clients}");
    for wrong in ["", "a pod", "Größe", &"x".repeat(65)] {
        let error = named(wrong).build().map(drop).unwrap_err();
        assert_eq!(error.kind(), bellwether::ErrorKind::InvalidConfig, "{wrong:?}");
    }
}

#[tokio::test]
async fn a_label_costs_no_command_of_a_lock() {
    let server = RedisServer::start().await;
    let locks = Locks::new(open(server.url()), "bellwether").owner("pod-7");
    // The connection is in place after this call. The process subscribes at some time after it.
    assert_eq!(locks.mutex("k").holder().await.unwrap(), None);
    let mut monitor = server.monitor().await;
    let commands = |calls| {
        let of_locks = commands(calls).into_iter().filter(|command| *command != "SUBSCRIBE");
        of_locks.collect::<Vec<_>>()
    };
    let guard = locks.mutex("k").lock().await.unwrap();
    assert_eq!(commands(monitor.calls_from_clients().await), ["EVALSHA"]);
    let holder = locks.mutex("k").holder().await.unwrap().expect("the lock is held");
    assert_eq!((holder.fence, holder.owner.as_deref()), (guard.fence(), Some("pod-7")));
    monitor.calls_from_clients().await;
    guard.unlock().await.unwrap();
    assert_eq!(commands(monitor.calls_from_clients().await), ["EVALSHA"]);
    // Another kind of data in the place of a lock has no label.
    let foreign = ["SET", "bellwether:l:{foreign}:l", "what"];
    server.raw().await.run::<()>(&foreign).await;
    assert!(locks.mutex("foreign").holder().await.is_err());
}

#[tokio::test]
async fn several_locks_are_acquired_by_one_command_each() {
    let server = RedisServer::start().await;
    let locks = Locks::new(open(server.url()), "bellwether");
    let mut raw = server.raw().await;
    // The connection is in place after this call.
    locks.mutex("a0").lock().await.unwrap().unlock().await.unwrap();
    let mut monitor = server.monitor().await;
    let several = locks.several((0..64).map(|n| format!("a{n}"))).lease(LEASE);
    let guard = several.lock().await.unwrap();
    assert_eq!(commands(monitor.calls_from_clients().await), ["EVALSHA"; 64]);
    assert_eq!(raw.keys("*:l").await.len(), 64);
    // In the order of the names: the first is acquired and given back.
    assert!(locks.several(["b", "a", "a7"]).try_lock().await.unwrap().is_none());
    assert_eq!(raw.keys("*:l").await.len(), 64);
    monitor.calls_from_clients().await;
    guard.unlock().await.unwrap();
    assert_eq!(commands(monitor.calls_from_clients().await), ["EVALSHA"; 64]);
    // Only the fences of the held leases are left, each with an end.
    let keys = raw.keys("*").await;
    assert_eq!(keys.len(), 65);
    for key in keys {
        assert!(key.ends_with("}:f") && raw.pttl(&key).await > 0, "{key}");
    }
    raw.run::<()>(&["SCRIPT", "FLUSH"]).await;
    several.lock().await.unwrap().unlock().await.unwrap();
}

// Time

/// The other suites make keys older. Here the clock of the server ends a lease, and not before its
/// time.
#[tokio::test]
async fn the_servers_clock_ends_leases_and_entries() {
    const SHORT: Duration = Duration::from_millis(300);
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let name = name("k");
    let mut first = claim(&name);
    first.lease = SHORT;
    let sent = Instant::now();
    let last = begun(&backend, &first).await.fence();
    let second = claim(&name);
    let grant = loop {
        match backend.claim(&second, 0).await.unwrap() {
            Claimed::Granted(grant) => break grant,
            Claimed::Occupied(occupied) => assert!(occupied.remaining <= SHORT),
            other => panic!("{other:?}"),
        }
        assert!(sent.elapsed() < LIMIT, "the lease does not end");
    };
    // The server counts in whole milliseconds.
    assert!(sent.elapsed() + Duration::from_millis(2) >= SHORT, "the lease ended early");
    assert!(grant.fence() > last);
    let sent = Instant::now();
    backend.commit(&second, &grant, &value("v"), Some(SHORT)).await.unwrap();
    let gone = async || backend.get(&name).await.unwrap().is_none();
    assert!(eventually(LIMIT, gone).await, "the entry does not end");
    assert!(sent.elapsed() + Duration::from_millis(2) >= SHORT, "the entry ended early");
}

/// The clock of the server was ahead when the last fence was granted, and has been set back.
#[tokio::test]
async fn fences_grow_though_the_clock_steps_back() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let mut raw = server.raw().await;
    let ahead = 3_000_000_000_000_000_u64;
    let by_fence = name("fence");
    raw.run::<()>(&["SET", &by_fence.suffixed("f"), &ahead.to_string(), "PX", "60000"]).await;
    assert_eq!(begun(&backend, &claim(&by_fence)).await.fence(), ahead + 1);
    let by_entry = name("entry");
    let entry = String::from_utf8(value("v").with_fence(ahead).encode().to_vec()).unwrap();
    raw.run::<()>(&["SET", &by_entry.entry(), &entry, "PX", "60000"]).await;
    let first = claim(&by_entry);
    let grant = begun_over(&backend, &first, ahead).await;
    assert_eq!(grant.fence(), ahead + 1);
    assert_eq!(backend.edit(&by_entry, &Edit::Invalidate, FENCE_LIFE).await.unwrap(), ahead + 2);
    // A direct grant of a lock, a pass within the process, a handover, and an unlocked lock.
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Write] {
        let name = name_in(Family::Lock, &format!("{mode:?}"));
        let claim = || Claim::new(name.clone(), mode, LEASE, FENCE_LIFE);
        let [first, second, third, fourth] = [claim(), claim(), claim(), claim()];
        let digits = ahead.to_string();
        raw.run::<()>(&["SET", &name.suffixed("f"), &digits, "PX", "60000"]).await;
        assert_eq!(granted(&backend, &first).await.fence(), ahead + 1, "{mode:?}");
        assert_eq!(granted(&backend, &first).await.fence(), ahead + 1, "sent twice, {mode:?}");
        for _ in 0..2 {
            let passed = backend.pass(&first, &second).await.unwrap().unwrap();
            assert_eq!(passed.fence(), ahead + 2, "{mode:?}");
        }
        held(&backend, &third).await;
        let mut changes = testkit::changes_for(&backend, &third).await.unwrap();
        assert!(backend.release(&second).await.unwrap());
        let Change::Granted(handover) = next(&mut changes).await else { panic!("{mode:?}") };
        assert_eq!(handover.fence, ahead + 3, "{mode:?}");
        assert!(backend.release(&third).await.unwrap());
        assert_eq!(granted(&backend, &fourth).await.fence(), ahead + 4, "{mode:?}");
        // The key lives as long as the fence must.
        assert!(raw.pttl(&name.suffixed("f")).await > 500_000, "{mode:?}");
    }
}

// Foreign keys

#[tokio::test]
async fn a_foreign_entry_is_reported_and_replaced() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let mut raw = server.raw().await;
    let whole = String::from_utf8(value("v").with_fence(7).encode().to_vec()).unwrap();
    let foreign: Vec<Vec<String>> = [
        "SET K text",
        "SET K bw1v0000000000000007",
        // A cut entry of this crate, and an entry whose header is damaged behind the fence.
        &format!("SET K {}", &whole[..25]),
        &format!("SET K {}", whole.replacen("00000007", "0000000x", 2)),
        "HSET K field value",
        "RPUSH K element",
    ]
    .map(|line| line.split(' ').map(str::to_owned).collect())
    .into();
    for (at, mut words) in foreign.into_iter().enumerate() {
        let name = name(&format!("k{at}"));
        words[1] = name.entry();
        let what = words.join(" ");
        let words: Vec<_> = words.iter().map(String::as_str).collect();

        raw.run::<()>(&words).await;
        let error = backend.get(&name).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Foreign, "{what}: {error}");
        let first = claim(&name);
        let grant = begun(&backend, &first).await;
        let outcome = backend.commit(&first, &grant, &value("v"), Some(TTL)).await.unwrap();
        assert_eq!(outcome, Committed::Stored, "{what}");
        let found = backend.get(&name).await.unwrap();
        assert_eq!(found, Some(value("v").with_fence(grant.fence())), "{what}");

        raw.run::<()>(&["DEL", &name.entry()]).await;
        raw.run::<()>(&words).await;
        let fence = backend.edit(&name, &Edit::Put(value("put"), TTL), FENCE_LIFE).await.unwrap();
        let found = backend.get(&name).await.unwrap();
        assert_eq!(found, Some(value("put").with_fence(fence)), "{what}");

        raw.run::<()>(&["DEL", &name.entry()]).await;
        raw.run::<()>(&words).await;
        backend.edit(&name, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
        assert_eq!(backend.get(&name).await.unwrap(), None, "{what}");
    }
}

/// The foreign key was put there while two claims waited. The first one is told and leaves, which
/// must not hand the key over to the second one.
#[tokio::test]
async fn a_foreign_lease_is_not_handed_over() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let mut raw = server.raw().await;
    for (mode, suffix) in [(Mode::Exclusive, "l"), (Mode::Fair, "l"), (Mode::Write, "w")] {
        let name = name(&format!("{mode:?}"));
        let [holder, first, second] =
            [(); 3].map(|()| Claim::new(name.clone(), mode, LEASE, FENCE_LIFE));
        let _listening = backend.changes(&name).await.unwrap();
        backend.acquire(&holder).await.unwrap();
        for waiting in [&first, &second] {
            held(&backend, waiting).await;
        }
        let key = name.suffixed(suffix);
        for words in [&["SET", &key, "locked"][..], &["HSET", &key, "holder", "1"]] {
            raw.run::<()>(&["DEL", &key]).await;
            raw.run::<()>(words).await;
            let before: Vec<u8> = raw.run(&["DUMP", &key]).await;
            let error = backend.acquire(&first).await.unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Foreign, "{mode:?}, {words:?}: {error}");
            if mode == Mode::Exclusive {
                let error = backend.claim(&first, 0).await.unwrap_err();
                assert_eq!(error.kind(), BackendErrorKind::Foreign, "{words:?}: {error}");
            }
            assert_eq!(
                backend.renew(std::slice::from_ref(&holder)).await.unwrap(),
                [Renewal::NotHeld]
            );
            assert!(!backend.release(&first).await.unwrap());
            assert!(!backend.release(&holder).await.unwrap());
            let now: Vec<u8> = raw.run(&["DUMP", &key]).await;
            assert_eq!(now, before, "{mode:?}, {words:?} was touched");
        }
    }
}

/// A fence that cannot be read must not block the name for ever.
#[tokio::test]
async fn a_foreign_fence_is_replaced() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let mut raw = server.raw().await;
    for words in [&["SET", "K", "text"][..], &["HSET", "K", "field", "value"]] {
        let name = name(words[0]);
        let key = name.suffixed("f");
        let mut words = words.to_vec();
        words[1] = &key;
        raw.run::<()>(&words).await;
        let claim = claim(&name);
        let grant = begun(&backend, &claim).await;
        let outcome = backend.commit(&claim, &grant, &value("v"), Some(TTL)).await.unwrap();
        assert_eq!(outcome, Committed::Stored);
        assert!(raw.pttl(&key).await > 0);
    }
}

/// Keys belong to one database, but channels belong to the server.
#[tokio::test]
async fn databases_do_not_meet() {
    let server = RedisServer::start().await;
    let zero = open(server.url());
    let three = open(server.url_of("", 3));
    let name = name("k");
    let mut to_zero = zero.changes(&name).await.unwrap();
    let mut to_three = three.changes(&name).await.unwrap();
    let first = zero.edit(&name, &Edit::Put(value("zero"), TTL), FENCE_LIFE).await.unwrap();
    assert_eq!(three.get(&name).await.unwrap(), None);
    let second = three.edit(&name, &Edit::Put(value("three"), TTL), FENCE_LIFE).await.unwrap();
    begun(&zero, &claim(&self::name("held"))).await;
    begun(&three, &claim(&self::name("held"))).await;
    let burnt = zero.edit(&name, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
    assert_eq!(next(&mut to_zero).await, Change::Entry(value("zero").with_fence(first)));
    assert_eq!(next(&mut to_zero).await, Change::Invalidated(burnt));
    assert_eq!(next(&mut to_three).await, Change::Entry(value("three").with_fence(second)));
    assert!(three.get(&name).await.unwrap().is_some());
}

// Pushes

#[tokio::test]
async fn a_large_entry_is_announced_and_not_pushed() {
    let server = RedisServer::start().await;
    let backend = testkit::builder().server(server.url()).push_limit(144).build().unwrap();
    let name = name("k");
    let mut changes = backend.changes(&name).await.unwrap();
    // The limit of a push includes a header of 88 bytes.
    let small = value(&"v".repeat(56));
    let large = value(&"v".repeat(57));
    let fence = backend.edit(&name, &Edit::Put(small.clone(), TTL), FENCE_LIFE).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Entry(small.clone().with_fence(fence)));
    let fence = backend.edit(&name, &Edit::Put(large.clone(), TTL), FENCE_LIFE).await.unwrap();
    let announced = |fence| Change::Announced(Announcement { fence, bytes: 145, crowd: 0 });
    assert_eq!(next(&mut changes).await, announced(fence));
    let refresh = claim(&name);
    let grant = begun_over(&backend, &refresh, fence).await;
    backend.commit(&refresh, &grant, &large, Some(TTL)).await.unwrap();
    assert_eq!(next(&mut changes).await, announced(grant.fence()));
    assert_eq!(backend.get(&name).await.unwrap(), Some(large.with_fence(grant.fence())));
}

// A full server

/// One rule for all modes: a new lease or hold needs memory, and so does a place in a queue.
#[tokio::test]
async fn acquisitions_of_every_mode_are_refused_on_a_full_server() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let mut raw = server.raw().await;
    let permit = Mode::Permit { limit: 2, count: 1 };
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write, permit] {
        let claim = |lease| Claim::new(name_in(Family::Lock, "k"), mode, lease, FENCE_LIFE);
        let held = claim(LEASE);
        granted(&backend, &held).await;
        raw.age(LEASE / 2).await;
        full(&mut raw).await;
        // A lease that is held is renewed and granted again.
        assert_eq!(backend.renew(std::slice::from_ref(&held)).await.unwrap(), [Renewal::Held]);
        let left = testkit::holder(&backend, &held.name, mode).await.unwrap().unwrap().remaining;
        assert!(left > LEASE * 3 / 4, "{mode:?} was not renewed: {left:?}");
        granted(&backend, &held).await;
        assert!(backend.release(&held).await.unwrap());
        let error = backend.acquire(&claim(LEASE)).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Refused, "{mode:?}: {error}");
        if mode == Mode::Exclusive {
            let error = backend.claim(&claim(LEASE), 0).await.unwrap_err();
            assert_eq!(error.kind(), BackendErrorKind::Refused, "{error}");
        }
        roomy(&mut raw).await;
    }
}

#[tokio::test]
async fn an_invalidation_and_the_end_of_a_turn_pass_on_a_full_server() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let locks = Locks::new(backend.clone(), "bellwether");
    let job = || locks.once("job", SystemTime::now());
    let mut raw = server.raw().await;
    let other = name("other");
    let name = name("k");
    backend.edit(&name, &Edit::Put(value("old"), TTL), FENCE_LIFE).await.unwrap();
    let under_way = claim(&other);
    let grant = begun(&backend, &under_way).await;
    let turn = job().begin().await.unwrap().unwrap();
    full(&mut raw).await;
    backend.edit(&name, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
    assert_eq!(backend.get(&name).await.unwrap(), None);
    assert!(backend.edit(&other, &Edit::Invalidate, FENCE_LIFE).await.unwrap() > grant.fence());
    let tagged = Cache::<u8>::builder(backend.clone(), "tagged").tags().build().unwrap();
    tagged.invalidate_tag("t").await.unwrap();
    tagged.clear().await.unwrap();
    turn.done().await.unwrap();
    roomy(&mut raw).await;
    let outcome = backend.commit(&under_way, &grant, &value("old"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Refused);
    let next = job().begin().await.unwrap().unwrap();
    assert!(matches!(next.previous(), Some(PreviousTick::Done(_))), "it has crashed");
}

// Rights

async fn user(raw: &mut Raw, rights: &[&str]) {
    raw.set_user("app", &[&["~*", "+@all"], rights].concat()).await;
}

/// A channel that the server refuses is asked for once a second.
#[tokio::test]
async fn subscriptions_work_once_they_are_permitted() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    for rights in [&["-subscribe"][..], &["resetchannels"]] {
        user(&mut raw, rights).await;
        let backend = open(server.url_of("app:secret", 0));
        backend.ping().await.unwrap();
        let mut changes = backend.listen(&name("k"), None);
        let refused = timeout(LIMIT / 20, changes.confirmed()).await;
        assert!(refused.is_err(), "{rights:?}");
        user(&mut raw, &["+subscribe", "allchannels"]).await;
        timeout(LIMIT, changes.confirmed()).await.unwrap();
        let burnt = backend.edit(&name("k"), &Edit::Invalidate, FENCE_LIFE).await.unwrap();
        assert_eq!(next(&mut changes).await, Change::Invalidated(burnt));
    }
}

/// Subscriptions that open together are one command, and the server refuses it as a whole if one
/// channel is forbidden. Listeners of the permitted channels must still be served.
#[tokio::test]
async fn one_forbidden_channel_does_not_silence_the_others() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    user(&mut raw, &["resetchannels", "&*allowed*", "&t:c:p:*"]).await;
    let backend = open(server.url_of("app:secret", 0));
    let names: Vec<_> = (0..4)
        .map(|at| name(&format!("{}{at}", if at % 2 == 0 { "allowed" } else { "forbidden" })))
        .collect();
    backend.ping().await.unwrap();
    let mut all: Vec<_> = names.iter().map(|name| backend.listen(name, None)).collect();
    assert!(all.iter_mut().all(|changes| !changes.subscribe()));
    for (at, (name, changes)) in names.iter().zip(&mut all).enumerate() {
        if at % 2 == 1 {
            assert!(!changes.subscribe());
            continue;
        }
        timeout(LIMIT, changes.confirmed()).await.unwrap();
        let burnt = backend.edit(name, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
        assert_eq!(next(changes).await, Change::Invalidated(burnt));
    }
}

/// A clock that was set back by an hour left a name backing off for an hour.
#[tokio::test]
async fn a_back_off_ends_when_the_clock_is_set_back() {
    let server = RedisServer::start().await;
    let backend = open(server.url());
    let name = name("k");
    let load = claim(&name);
    let fence = begun(&backend, &load).await.fence();
    let failure = testkit::leases::failure(fence, "the database is away");
    let back_off = BackOff { wait: Duration::from_secs(60), failures: 4 };
    assert!(backend.fail(&load, &failure, Some(back_off)).await.unwrap());
    let refused = backend.claim(&claim(&name), 0).await.unwrap();
    assert!(matches!(refused, Claimed::BacksOff(..)), "{refused:?}");
    // The end of a key is a time of the clock, so it is an hour further away then.
    let hour_later = Duration::from_secs(120 + 3600).as_millis().to_string();
    server.raw().await.run::<()>(&["PEXPIRE", &name.suffixed("b"), &hour_later]).await;
    assert_eq!(begun(&backend, &claim(&name)).await.failures(), 4);
}
