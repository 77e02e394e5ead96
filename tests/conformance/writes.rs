//! Writes and invalidations without a load. A load that is under way meanwhile is not stored.

use crate::harness::*;

pub async fn a_put_writes_and_ends_the_lease<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let first = claim(&name);
    begun(&here, &first).await;
    let fence = put(&there, &name, "put").await;
    assert_eq!(here.get(&name).await.unwrap(), Some(value("put").with_fence(fence)));
    assert!(!here.release(&first).await.unwrap(), "the lease outlived the put");
    assert!(matches!(here.claim(&claim(&name), fence).await, Ok(Claimed::Granted(_))));
}

pub async fn a_put_makes_the_commit_under_way_give_way<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let claim = claim(&name);
    let grant = begun(&backend, &claim).await;
    let fence = put(&backend, &name, "put").await;
    let outcome = backend.commit(&claim, &grant, &value("loaded"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Newer(value("put").with_fence(fence)));
    assert_eq!(read(&backend, &name).await.as_deref(), Some("put"));
    // The same holds when the entry of the put has ended.
    h.pass(TTL).await;
    let outcome = backend.commit(&claim, &grant, &value("loaded"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Refused);
}

/// Some are missing, and one is large. Those with windows come with their age.
pub async fn many_entries_are_answered_in_order_and_as_each_alone<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let names: Vec<_> = (0..40).map(|at| name(&format!("many-{at}"))).collect();
    for (at, name) in names.iter().enumerate().filter(|(at, _)| at % 3 > 0) {
        let entry = value(&"v".repeat(if at == 7 { 100_000 } else { at }));
        let windows = Windows::fresh(TTL / 2).stale(TTL / 2);
        let entry = if at % 3 == 1 { entry.with_windows(windows) } else { entry };
        edit(&backend, name, &Edit::Put(entry.clone(), TTL)).await;
    }
    for aged in [false, true, true] {
        let many = backend.get_many(&names, aged).await.unwrap();
        assert_eq!(many.len(), names.len());
        for ((at, name), entry) in names.iter().enumerate().zip(many) {
            let entry = entry.unwrap();
            assert_eq!(entry, backend.get(name).await.unwrap(), "{at}");
            let age = entry.map(|entry| entry.age.is_some());
            let expected = (at % 3 > 0).then_some(true).filter(|_| aged || at % 3 == 1);
            assert!(expected.is_none() || age == expected, "{at}: {age:?}");
        }
    }
    for aged in [false, true] {
        assert!(backend.get_many(&[], aged).await.unwrap().is_empty());
    }
}

/// A refresh is to show what the origin has now, so it beats each load that began before it.
pub async fn a_superseded_load_is_not_stored<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    assert!(edit(&there, &name, &Edit::Supersede).await > 0);
    let seen = stored(&here, &name, "v").await;
    let late = claim(&name);
    let grant = begun_over(&here, &late, seen).await;
    let mut changes = listen(&there, &name).await;
    let burnt = edit(&there, &name, &Edit::Supersede).await;
    assert!(burnt > grant.fence());
    // Its waiters claim by themselves.
    assert_eq!(next(&mut changes).await, Change::Wake);
    let outcome = here.commit(&late, &grant, &value("late"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Refused);
    assert_eq!(here.get(&name).await.unwrap(), Some(value("v").with_fence(seen)));
    let refresh = claim(&name);
    let grant = begun_over(&there, &refresh, burnt).await;
    assert!(grant.fence() > burnt);
    let outcome = there.commit(&refresh, &grant, &value("new"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
}

pub async fn an_invalidation_removes_and_ends_the_lease<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let first = stored(&here, &name, "v").await;
    let refresh = claim(&name);
    assert!(matches!(here.claim(&refresh, first).await, Ok(Claimed::Granted(_))));
    invalidated(&there, &name).await;
    assert_eq!(read(&here, &name).await, None);
    assert!(!renewed(&here, &refresh).await);
    // A later claim starts anew, and need not wait for the load that was under way.
    begun(&here, &claim(&name)).await;
}

/// The value is read, then changed in the database and invalidated, and then committed. If it were
/// stored, it would be served until its time ends.
pub async fn an_invalidation_makes_the_commit_under_way_fail<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let claim = claim(&name);
    let grant = begun(&backend, &claim).await;
    invalidated(&backend, &name).await;
    for _ in 0..2 {
        let outcome = backend.commit(&claim, &grant, &value("old"), Some(TTL)).await.unwrap();
        assert_eq!(outcome, Committed::Refused);
    }
    let outcome = backend.commit(&claim, &grant, &value("old"), None).await.unwrap();
    assert_eq!(outcome, Committed::Refused);
    assert_eq!(read(&backend, &name).await, None);
}

/// During a rolling deployment two versions of a service keep entries that only they can read.
pub async fn schemas_are_stored_side_by_side<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let old = name("k");
    let new = old.clone().with_schema(1);
    let first = stored(&backend, &old, "old").await;
    // The entry of the other schema neither stops a claim nor disappears.
    let second = stored(&backend, &new, "new").await;
    assert!(second > first);
    assert_eq!(read(&backend, &old).await.as_deref(), Some("old"));
    assert_eq!(read(&backend, &new).await.as_deref(), Some("new"));
    // Both schemas share one lease, so that two versions do not load the same value at once.
    let refresh = claim(&new);
    assert!(matches!(backend.claim(&refresh, second).await, Ok(Claimed::Granted(_))));
    assert!(matches!(backend.claim(&claim(&old), first).await, Ok(Claimed::Occupied(_))));
    assert!(backend.release(&refresh).await.unwrap());
}

pub async fn a_write_clears_the_neighbouring_schemas<H: FullHarness>(h: &H) {
    let backend = h.backend();
    // The schemas zero and `u16::MAX` are neighbours as well.
    for middle in [0, 1, 7, u16::MAX] {
        let at = |step: i16| name("k").with_schema(middle.wrapping_add_signed(step));
        for step in [-1, 0, 1] {
            stored(&backend, &at(step), "v").await;
        }
        invalidated(&backend, &at(0)).await;
        for step in [-1, 0, 1] {
            assert_eq!(read(&backend, &at(step)).await, None, "{middle} {step}");
            stored(&backend, &at(step), "v").await;
        }
        put(&backend, &at(0), "put").await;
        assert_eq!(read(&backend, &at(-1)).await, None, "{middle}");
        assert_eq!(read(&backend, &at(0)).await.as_deref(), Some("put"), "{middle}");
        assert_eq!(read(&backend, &at(1)).await, None, "{middle}");
    }
}
