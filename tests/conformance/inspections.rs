//! What a backend tells of locks, loads and failed loads, without a change of them.

use std::collections::BTreeSet;

use bellwether::backend::{Holding, SearchFrom};

use crate::harness::*;

fn lock(key: &str) -> Name {
    name_in("conformance", Family::Lock, key)
}

async fn look(backend: &impl Leases, name: &Name, kind: SemaphoreKind) -> Holding {
    backend.inspect(name, kind).await.unwrap()
}

pub async fn a_lock_tells_its_holder_and_its_waiters<H: Harness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let name = lock("k");
    assert_eq!(look(&there, &name, SemaphoreKind::Mutex).await, Holding::default());
    let mut holder = claim(&name);
    holder.label = Some("pod-7: a,b".into());
    let fence = granted(&here, &holder).await.fence();
    for waiter in [claim(&name), elsewhere(claim(&name))] {
        held(&there, &waiter).await;
    }
    let seen = look(&there, &name, SemaphoreKind::Mutex).await;
    assert_eq!((seen.holders, seen.fence, seen.waiting), (1, fence, 2));
    assert_eq!(seen.process.as_deref(), holder.owner.to_string().get(..16));
    assert_eq!(seen.owner.as_deref(), Some("pod-7: a,b"));
    assert!(seen.held_for.is_some_and(|held_for| held_for < MOMENT), "{seen}");
    assert!(seen.expires_in <= LEASE && seen.expires_in > LEASE - MOMENT, "{seen}");
    // The other locks of the name are free.
    assert_eq!(look(&there, &name, SemaphoreKind::Permits).await, Holding::default());
    h.pass(LEASE).await;
    assert_eq!(look(&there, &name, SemaphoreKind::Mutex).await.holders, 0);
}

pub async fn a_lock_that_is_shared_tells_how_many_hold_it<H: Harness>(h: &H) {
    let backend = h.backend();
    let permit = Mode::Permit { limit: 9, count: 3 };
    for (mode, kind, holders) in
        [(Mode::Read, SemaphoreKind::ReadWrite, 2), (permit, SemaphoreKind::Permits, 6)]
    {
        let name = lock("k");
        for _ in 0..2 {
            granted(&backend, &claim_in(mode, &name)).await;
        }
        let seen = look(&backend, &name, kind).await;
        assert_eq!((seen.holders, seen.fence, seen.process.as_ref()), (holders, 0, None));
        assert!(seen.expires_in <= LEASE && seen.expires_in > LEASE - MOMENT, "{seen}");
    }
}

pub async fn the_locks_of_a_namespace_are_listed<H: Harness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let held_ones = [
        ("a", Mode::Exclusive, SemaphoreKind::Mutex),
        ("a", Mode::Read, SemaphoreKind::ReadWrite),
        ("{b}:%", Mode::Write, SemaphoreKind::ReadWrite),
        ("c", Mode::Permit { limit: 1, count: 1 }, SemaphoreKind::Permits),
    ];
    for (key, mode, _) in held_ones {
        granted(&here, &claim_in(mode, &lock(key))).await;
    }
    // Neither a lock that is free again, nor a load, nor another namespace.
    let free = claim(&lock("free"));
    granted(&here, &free).await;
    assert!(here.release(&free).await.unwrap());
    granted(&here, &claim(&name("load"))).await;
    granted(&here, &claim(&name_in("conformance2", Family::Lock, "x"))).await;
    let namespace = Namespace::new("conformance").unwrap();
    let text = |name: &Name, kind| format!("{name:?} {kind}");
    let mut listed = BTreeSet::new();
    let mut from = Some(SearchFrom::default());
    while let Some(step) = from {
        let found = there.lock_names(&namespace, &step).await.unwrap();
        listed.extend(found.locks.iter().map(|(name, kind)| text(name, *kind)));
        from = found.next;
    }
    let expected = held_ones.map(|(key, _, kind)| text(&lock(key), kind));
    assert_eq!(listed, BTreeSet::from(expected));
}

pub async fn a_load_tells_its_process_and_those_that_wait<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let load = hasty(&name);
    let fence = begun(&here, &load).await.fence();
    assert_eq!(look(&there, &name, SemaphoreKind::Mutex).await.waiting, 0);
    let waiter = hasty(&name);
    let _changes = testkit::changes_for(&there, &waiter).await.unwrap();
    assert!(matches!(there.claim(&waiter, 0).await, Ok(Claimed::Occupied(_))));
    let seen = look(&there, &name, SemaphoreKind::Mutex).await;
    assert_eq!((seen.holders, seen.fence), (1, fence));
    assert_eq!(seen.process.as_deref(), load.owner.to_string().get(..16));
    // In a cluster, the waiters listen to a channel of the name.
    assert!(seen.waiting <= 1, "{seen}");
}

pub async fn failed_loads_are_told_until_they_are_forgotten<H: FullHarness>(h: &H) {
    const WAIT: Duration = Duration::from_secs(40);
    let (here, there, name) = h.two();
    let failed = async || look(&there, &name, SemaphoreKind::Mutex).await.failed;
    assert_eq!(failed().await, None);
    let load = hasty(&name);
    let failure = failure(begun(&here, &load).await.fence(), "the database is away");
    let back_off = BackOff { wait: WAIT, failures: 3 };
    assert!(here.fail(&load, &failure, Some(back_off)).await.unwrap());
    let (told, of) = failed().await.unwrap();
    assert_eq!((told.failures, &of), (3, &failure));
    assert!(told.wait <= WAIT && told.wait > WAIT - MOMENT, "{told:?}");
    h.pass(WAIT).await;
    let (told, _) = failed().await.unwrap();
    assert_eq!(told, BackOff { wait: Duration::ZERO, failures: 3 });
    invalidated(&here, &name).await;
    assert_eq!(failed().await, None);
}
