//! Commits of loads that found the stored value unchanged, which do not write it again.

use std::time::Duration;

use bellwether::backend::{
    Change, Claim, Claimed, Committed, Entry, Grant, Leases, Store, Windows,
};

use bytes::Bytes;

use crate::harness::{
    FENCE_LIFE, FullHarness, MOMENT, TTL, claim, listen, name, next, read, value,
};

fn windows() -> Windows {
    Windows::fresh(TTL / 4).stale(TTL / 2).error(TTL / 2)
}

/// Puts an entry and begins a load beside it. Returns the fence of the entry as well.
async fn loading<B: Store>(backend: &B, entry: Entry) -> (Claim, Grant, u64) {
    let entry = entry.with_windows(windows());
    let fence = backend.put(&name("k"), &entry, windows().kept(), FENCE_LIFE).await.unwrap();
    let load = claim(&name("k"));
    let Claimed::Granted(grant) = backend.claim(&load, fence).await.unwrap() else {
        panic!("the claim was not granted");
    };
    (load, grant, fence)
}

/// Returns what the loads below say of their entry.
fn terms() -> Entry {
    let windows = Windows::fresh(TTL).stale(TTL / 4).error(TTL / 2);
    let entry = Entry::value(7, Duration::from_millis(70), Bytes::new());
    entry.with_windows(windows).with_spread(TTL / 100)
}

fn renewed(entry: Entry, grant: &Grant) -> Entry {
    let mut renewed = terms().with_fence(grant.fence());
    renewed.payload = entry.payload;
    renewed
}

pub async fn an_unchanged_entry_is_renewed_with_its_load<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    let (load, grant, seen) = loading(&here, value("v")).await;
    h.pass(TTL / 2).await;
    let mut changes = listen(&there, &name("k")).await;
    for _ in 0..2 {
        let outcome = here.commit_unchanged(&load, &grant, seen, &terms()).await.unwrap();
        assert_eq!(outcome, Committed::Stored);
    }
    let expected = renewed(value("v"), &grant);
    assert_eq!(next(&mut changes).await, Change::Entry(expected.clone()));
    let entry = there.get_aged(&name("k")).await.unwrap().unwrap();
    assert_eq!(entry, expected);
    assert!(entry.age.unwrap() < MOMENT, "{entry:?}");
    assert!(!here.release(&load).await.unwrap(), "the lease outlived its commit");
    let found = here.claim(&claim(&name("k")), seen).await.unwrap();
    assert_eq!(found, Claimed::Newer(expected));
    // It is kept to the end of the new windows.
    h.pass(TTL + TTL / 4).await;
    assert_eq!(read(&there, &name("k")).await.as_deref(), Some("v"));
    h.pass(TTL / 4).await;
    assert_eq!(read(&there, &name("k")).await, None);
}

/// The entry was evicted or has ended during the load, or another one stands.
pub async fn an_entry_that_is_gone_is_not_renewed<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let (load, grant, seen) = loading(&backend, value("v")).await;
    let outcome = backend.commit_unchanged(&load, &grant, seen - 1, &terms()).await.unwrap();
    assert_eq!(outcome, Committed::Gone);
    assert_eq!(read(&backend, &name("k")).await.as_deref(), Some("v"));
    h.pass(windows().kept()).await;
    backend.renew(std::slice::from_ref(&load)).await.unwrap();
    for _ in 0..2 {
        let outcome = backend.commit_unchanged(&load, &grant, seen, &terms()).await.unwrap();
        assert_eq!(outcome, Committed::Gone);
    }
    assert_eq!(read(&backend, &name("k")).await, None);
    // The load goes on, and may commit the whole entry.
    let outcome = backend.commit(&load, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    // The commit was made, and a renewal that comes late changes nothing.
    let outcome = backend.commit_unchanged(&load, &grant, seen, &terms()).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    assert_eq!(backend.get(&name("k")).await.unwrap(), Some(value("v").with_fence(grant.fence())));
}

pub async fn an_act_beats_a_renewal_that_began_before_it<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    for act in 0..4 {
        let (load, grant, seen) = loading(&here, value("v")).await;
        match act {
            0 => there.invalidate(&name("k"), FENCE_LIFE).await.unwrap(),
            1 => there.put(&name("k"), &value("put"), TTL, FENCE_LIFE).await.unwrap(),
            2 => there.touch(&name("k"), windows(), FENCE_LIFE).await.unwrap().unwrap(),
            _ => there.expire(&name("k"), FENCE_LIFE).await.unwrap(),
        };
        let before = there.get(&name("k")).await.unwrap();
        for _ in 0..2 {
            let outcome = here.commit_unchanged(&load, &grant, seen, &terms()).await.unwrap();
            let expected = before.clone().map_or(Committed::Refused, Committed::Newer);
            assert_eq!(outcome, expected, "{act}");
        }
        assert_eq!(there.get(&name("k")).await.unwrap(), before);
        there.invalidate(&name("k"), FENCE_LIFE).await.unwrap();
    }
}

pub async fn the_waiters_for_a_large_unchanged_entry_are_told<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    for size in [40_000, 100_000, 3_000_000] {
        let entry = value(&"x".repeat(size));
        let (load, grant, seen) = loading(&here, entry.clone()).await;
        let mut changes = listen(&there, &name("k")).await;
        let outcome = here.commit_unchanged(&load, &grant, seen, &terms()).await.unwrap();
        assert_eq!(outcome, Committed::Stored, "{size}");
        let found = match next(&mut changes).await {
            Change::Entry(entry) => Some(entry),
            Change::Announced(announced) => {
                assert_eq!(announced.fence, grant.fence());
                there.fetch(&name("k"), &announced).await.unwrap()
            }
            other => panic!("{size}: {other:?}"),
        };
        assert!(found == Some(renewed(entry, &grant)), "{size}");
        assert!(begun_after(&there, &grant).await, "{size}: the lease outlived its commit");
    }
}

/// Returns whether a next load may begin.
async fn begun_after(backend: &impl Store, grant: &Grant) -> bool {
    let next = claim(&name("k"));
    let claimed = backend.claim(&next, grant.fence()).await.unwrap();
    backend.invalidate(&name("k"), FENCE_LIFE).await.unwrap();
    matches!(claimed, Claimed::Granted(_))
}
