//! The way from a claim to a stored entry.

use bellwether::backend::{EntryKind, Windows};

use crate::harness::*;

pub async fn an_entry_is_stored_and_the_lease_ended<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let name = name("product:42");
    assert_eq!(here.get(&name).await.unwrap(), None);
    let claim = claim(&name);
    let grant = begun(&here, &claim).await;
    assert_eq!(there.get(&name).await.unwrap(), None);
    let outcome = here.commit(&claim, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    assert_eq!(there.get(&name).await.unwrap(), Some(value("v").with_fence(grant.fence())));
    assert!(!here.release(&claim).await.unwrap(), "the lease outlived its commit");
}

pub async fn a_claim_gets_the_entry_that_it_had_not_seen<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let first = stored(&backend, &name, "first").await;
    let expected = Claimed::Newer(value("first").with_fence(first));
    assert_eq!(backend.claim(&claim(&name), 0).await.unwrap(), expected);
    assert_eq!(backend.claim(&claim(&name), first - 1).await.unwrap(), expected);
    // The caller has seen the entry and found it too old, so it may load again.
    let refresh = claim(&name);
    let granted = backend.claim(&refresh, first).await.unwrap();
    let Claimed::Granted(grant) = granted else { panic!("the claim was not granted: {granted:?}") };
    assert!(grant.fence() > first);
    // The lease is held now, which changes nothing for the others.
    assert_eq!(backend.claim(&claim(&name), 0).await.unwrap(), expected);
    let waits = backend.claim(&claim(&name), first).await.unwrap();
    let Claimed::Occupied(occupied) = waits else { panic!("the claim was not refused: {waits:?}") };
    assert_eq!(occupied.fence, grant.fence());
    assert!(occupied.remaining <= LEASE && occupied.remaining > LEASE - MOMENT, "{occupied:?}");
    // The claim is sent again with less knowledge. The load stays under way.
    assert_eq!(begun(&backend, &refresh).await.fence(), grant.fence());
}

/// The answer to a commit is lost, and the commit is sent again.
pub async fn a_commit_sent_twice_stores_once<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let mut changes = listen(&backend, &name).await;
    let claim = claim(&name);
    let grant = begun(&backend, &claim).await;
    for _ in 0..2 {
        let outcome = backend.commit(&claim, &grant, &value("v"), Some(TTL)).await.unwrap();
        assert_eq!(outcome, Committed::Stored);
        h.pass(TTL / 4).await;
    }
    // The second commit neither prolonged the entry nor pushed anything.
    h.pass(TTL / 2).await;
    assert_eq!(read(&backend, &name).await, None);
    let burnt = invalidated(&backend, &name).await;
    assert_eq!(next(&mut changes).await, Change::Entry(value("v").with_fence(grant.fence())));
    assert_eq!(next(&mut changes).await, Change::Invalidated(burnt));
}

/// The entry was written and has ended, and then the same commit arrives once more. A commit that
/// looks at the entry alone would write it again, with a time that it no longer has.
pub async fn a_commit_sent_twice_does_not_restore_an_ended_entry<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let claim = claim(&name);
    let grant = begun(&backend, &claim).await;
    let outcome = backend.commit(&claim, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    h.pass(TTL).await;
    let again = backend.commit(&claim, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(again, Committed::Pushed);
    assert_eq!(read(&backend, &name).await, None);
}

pub async fn a_commit_sent_twice_does_not_end_the_next_lease<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let first = claim(&name);
    let second = claim(&name);
    let grant = begun(&backend, &first).await;
    backend.commit(&first, &grant, &value("first"), Some(TTL)).await.unwrap();
    let next = backend.claim(&second, grant.fence()).await.unwrap();
    let Claimed::Granted(next) = next else { panic!("the claim was not granted: {next:?}") };
    let late = backend.commit(&first, &grant, &value("first"), Some(TTL)).await.unwrap();
    assert_eq!(late, Committed::Refused);
    assert_eq!(held(&backend, &claim(&name)).await.fence, next.fence());
    let outcome = backend.commit(&second, &next, &value("second"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    assert_eq!(read(&backend, &name).await.as_deref(), Some("second"));
}

pub async fn a_hand_over_sent_twice_hands_over_once<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let mut changes = listen(&backend, &name).await;
    let claim = claim(&name);
    let grant = begun(&backend, &claim).await;
    for _ in 0..2 {
        let outcome = backend.commit(&claim, &grant, &value("v"), None).await.unwrap();
        assert_eq!(outcome, Committed::Pushed);
    }
    assert_eq!(read(&backend, &name).await, None);
    assert!(begun(&backend, &crate::harness::claim(&name)).await.fence() > grant.fence());
    let burnt = invalidated(&backend, &name).await;
    assert_eq!(next(&mut changes).await, Change::Entry(value("v").with_fence(grant.fence())));
    assert_eq!(next(&mut changes).await, Change::Invalidated(burnt));
}

/// The waiter of another process was told that the value has a time to live.
pub async fn an_entry_that_is_not_stored_is_pushed_without_windows<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let mut changes = listen(&backend, &name).await;
    for is_stored in [false, true] {
        let claim = claim(&name);
        let grant = begun(&backend, &claim).await;
        let kept = value("v").with_windows(Windows::fresh(TTL).stale(TTL));
        let outcome = backend.commit(&claim, &grant, &kept, is_stored.then_some(TTL)).await;
        let Change::Entry(pushed) = next(&mut changes).await else {
            panic!("no entry: {is_stored}")
        };
        let (expected, windows) =
            if is_stored { (Committed::Stored, kept.windows) } else { (Committed::Pushed, None) };
        assert_eq!((outcome.unwrap(), pushed.windows), (expected, windows));
        assert_eq!((pushed.fence, pushed.payload), (grant.fence(), kept.payload));
    }
}

pub async fn a_commit_of_a_lost_lease_is_stored_if_no_other_claim_had_it<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let claim = claim(&name);
    let grant = begun(&backend, &claim).await;
    h.pass(LEASE).await;
    let outcome = backend.commit(&claim, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    assert_eq!(read(&backend, &name).await.as_deref(), Some("v"));
}

/// A leader stalls for longer than its lease, and another one loads meanwhile. The first value may
/// be older than the second one. It is neither stored nor pushed, whether the second load is done
/// or not.
pub async fn a_commit_of_a_lost_lease_is_refused_after_another_claim<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let [late, newer, last] = claims(Mode::Exclusive, &name);
    let grant = begun(&backend, &late).await;
    let commit = async || backend.commit(&late, &grant, &value("late"), Some(TTL)).await.unwrap();
    h.pass(LEASE).await;
    let fence = begun(&backend, &newer).await.fence();
    assert_eq!(commit().await, Committed::Refused);
    assert_eq!(held(&backend, &hasty(&name)).await.fence, fence);
    assert!(backend.release(&newer).await.unwrap());
    assert_eq!(commit().await, Committed::Refused);
    assert_eq!(read(&backend, &name).await, None);
    let mut changes = listen(&backend, &name).await;
    begun(&backend, &last).await;
    assert_eq!(commit().await, Committed::Refused);
    let newer = value("newer").with_fence(put(&backend, &name, "newer").await);
    assert_eq!(commit().await, Committed::Newer(newer.clone()));
    assert_eq!(read(&backend, &name).await.as_deref(), Some("newer"));
    let burnt = invalidated(&backend, &name).await;
    assert_eq!(next(&mut changes).await, Change::Entry(newer));
    assert_eq!(next(&mut changes).await, Change::Invalidated(burnt));
}

/// Without the fence, the backend cannot tell whether the name was invalidated meanwhile.
pub async fn a_commit_after_its_fence_is_forgotten_is_refused<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let claim = claim(&name);
    let grant = begun(&backend, &claim).await;
    h.forget_fence(&name).await;
    let outcome = backend.commit(&claim, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Refused);
    assert_eq!(read(&backend, &name).await, None);
}

/// A claim that the holder sends again does not make the fence known again.
pub async fn a_forgotten_fence_is_not_brought_back_by_its_holder<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let mut long = claim(&name);
    long.lease = FENCE_LIFE * 3;
    let grant = begun(&backend, &long).await;
    h.forget_fence(&name).await;
    assert_eq!(begun(&backend, &long).await.fence(), grant.fence());
    assert!(renewed(&backend, &long).await);
    let outcome = backend.commit(&long, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Refused);
}

pub async fn an_entry_ends_with_its_time<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    for loads in [true, false] {
        for text in ["first", "second"] {
            let write = async || {
                if loads {
                    stored(&backend, &name, text).await
                } else {
                    put(&backend, &name, text).await
                }
            };
            write().await;
            h.pass(TTL - MOMENT).await;
            assert_eq!(read(&backend, &name).await.as_deref(), Some(text), "{loads}");
        }
        h.pass(MOMENT).await;
        assert_eq!(read(&backend, &name).await, None, "{loads}");
        let next = claim(&name);
        begun(&backend, &next).await;
        assert!(backend.release(&next).await.unwrap());
    }
}

pub async fn an_uncacheable_entry_is_an_entry_too<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let first = claim(&name);
    let grant = begun(&backend, &first).await;
    let verdict = Entry::uncacheable(Duration::from_millis(210));
    let outcome = backend.commit(&first, &grant, &verdict, Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    let found = backend.get(&name).await.unwrap().unwrap();
    assert_eq!(found.kind, EntryKind::Uncacheable);
    assert_eq!(found, verdict.with_fence(grant.fence()));
    assert_eq!(backend.claim(&claim(&name), 0).await.unwrap(), Claimed::Newer(found));
}

pub async fn a_failure_ends_the_lease_and_stores_nothing<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let first = claim(&name);
    let stranger = claim(&name);
    let fence = begun(&backend, &first).await.fence();
    assert!(!backend.fail(&stranger, &failure(fence, "not mine"), None).await.unwrap());
    held(&backend, &stranger).await;
    assert!(backend.fail(&first, &failure(fence, "no such product"), None).await.unwrap());
    assert!(!backend.fail(&first, &failure(fence, "no such product"), None).await.unwrap());
    assert_eq!(read(&backend, &name).await, None);
    granted(&backend, &stranger).await;
}
