//! Each change of a name reaches its listeners.
//!
//! A push may be lost when a connection breaks. No connection breaks in these rules, so each push
//! arrives once and in order.

use crate::harness::*;

pub async fn a_release_wakes<H: Harness>(h: &H) {
    let (here, there, name) = h.two();
    let claim = claim(&name);
    granted(&here, &claim).await;
    let mut changes = listen(&there, &name).await;
    assert!(here.release(&claim).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake);
}

/// Whatever ends the lease in the way, the next claim need not wait for its time.
pub async fn a_claim_that_waits_is_told_how_the_load_ends<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    for end in 0..6 {
        let name = name(&format!("k{end}"));
        let load = hasty(&name);
        let waits = hasty(&name);
        let grant = begun(&here, &load).await;
        let mut changes = testkit::changes_for(&there, &waits).await.unwrap();
        for _ in 0..2 {
            assert!(matches!(there.claim(&waits, 0).await, Ok(Claimed::Occupied(_))));
        }
        let fence = grant.fence();
        let expected = match end {
            0 => {
                here.commit(&load, &grant, &value("v"), Some(TTL)).await.unwrap();
                Change::Entry(value("v").with_fence(fence))
            }
            1 => {
                here.fail(&load, &failure(fence, "the database is away"), None).await.unwrap();
                Change::Failed(failure(fence, "the database is away"))
            }
            2 => Change::Invalidated(invalidated(&here, &name).await),
            3 => {
                let fence = put(&here, &name, "v").await;
                Change::Entry(value("v").with_fence(fence))
            }
            4 => {
                assert!(here.clear(&name, load.mode).await.unwrap());
                Change::Wake
            }
            _ => {
                assert!(here.release(&load).await.unwrap());
                Change::Wake
            }
        };
        assert_eq!(next(&mut changes).await, expected);
    }
}

/// The other waiters of the process, and those with an earlier owner, sleep on.
pub async fn a_turn_reaches_the_claim_that_it_is_for<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let claims: [_; 3] = std::array::from_fn(|_| claim_in(Mode::Fair, &name));
    granted(&here, &claims[0]).await;
    let mut waiting = Vec::new();
    for claim in &claims[1..] {
        waiting.push(testkit::changes_for(&there, claim).await.unwrap());
        held(&there, claim).await;
    }
    let [second, third] = &mut waiting[..] else { unreachable!() };
    let handed = |change| match change {
        Change::Granted(handover) => handover.owner,
        other => panic!("the lease was not handed over: {other:?}"),
    };
    assert!(here.release(&claims[0]).await.unwrap());
    assert_eq!(handed(next(second).await), claims[1].owner);
    assert!(there.release(&claims[1]).await.unwrap());
    // The first push of the third waiter is its own.
    assert_eq!(handed(next(third).await), claims[2].owner);
    // The next claim of the process registers anew.
    let fourth = claim_in(Mode::Fair, &name);
    *second = testkit::changes_for(&there, &fourth).await.unwrap();
    held(&there, &fourth).await;
    assert!(there.release(&claims[2]).await.unwrap());
    assert_eq!(handed(next(second).await), fourth.owner);
    assert!(there.release(&fourth).await.unwrap());
}

pub async fn a_release_of_nothing_is_silent<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let mut changes = listen(&there, &name).await;
    let stranger = claim(&name);
    granted(&here, &claim(&name)).await;
    assert!(!here.release(&stranger).await.unwrap());
    assert!(!here.fail(&stranger, &failure(1, "not mine"), None).await.unwrap());
    let burnt = invalidated(&here, &name).await;
    assert_eq!(next(&mut changes).await, Change::Invalidated(burnt));
}

pub async fn a_commit_hands_its_entry_over<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let mut changes = listen(&there, &name).await;
    let fence = stored(&here, &name, "v").await;
    assert_eq!(next(&mut changes).await, Change::Entry(value("v").with_fence(fence)));
    // Bytes of every kind, in an entry that each backend pushes whole. The rules for large entries
    // say what follows a larger one.
    let payload: Bytes = (0..16_000).map(|at| (at % 256) as u8).collect();
    let entry = Entry::value(9, Duration::from_secs(1), payload);
    let fence = edit(&here, &name, &Edit::Put(entry.clone(), TTL)).await;
    assert_eq!(next(&mut changes).await, Change::Entry(entry.with_fence(fence)));
}

pub async fn every_listener_is_told<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let mut listeners = Vec::new();
    for backend in [&here, &there, &here, &there] {
        listeners.push(listen(backend, &name).await);
    }
    // One listener of each process leaves, the others stay.
    listeners.drain(..2);
    let burnt = invalidated(&here, &name).await;
    for changes in &mut listeners {
        assert_eq!(next(changes).await, Change::Invalidated(burnt));
    }
}

pub async fn only_listeners_of_the_name_are_told<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let this = name("this");
    let other = name("other");
    let mut to_this = listen(&there, &this).await;
    let mut to_other = listen(&there, &other).await;
    let first = invalidated(&here, &this).await;
    let second = invalidated(&here, &other).await;
    let third = invalidated(&here, &this).await;
    assert_eq!(next(&mut to_other).await, Change::Invalidated(second));
    assert_eq!(next(&mut to_this).await, Change::Invalidated(first));
    assert_eq!(next(&mut to_this).await, Change::Invalidated(third));
}

pub async fn a_new_listener_gets_the_changes_that_follow<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    drop(listen(&backend, &name).await);
    h.no_listener_is_left().await;
    invalidated(&backend, &name).await;
    let mut changes = listen(&backend, &name).await;
    let burnt = invalidated(&backend, &name).await;
    assert_eq!(next(&mut changes).await, Change::Invalidated(burnt));
}

/// The last listener of a name leaves while a new one comes, again and again. The new listener was
/// told that its subscription is in place. An unsubscription that is sent too late would take that
/// subscription away.
pub async fn a_listener_that_replaces_another_misses_nothing<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let names = ["a", "b", "c"].map(name);
    let churn = names.iter().map(async |name| {
        for turn in 0..60 {
            let mut changes = listen(&there, name).await;
            let burnt = invalidated(&here, name).await;
            // A push of an earlier change may still be on its way to the new listener.
            loop {
                match next(&mut changes).await {
                    Change::Invalidated(fence) if fence < burnt => {}
                    change => break assert_eq!(change, Change::Invalidated(burnt), "{turn}"),
                }
            }
            if turn % 3 == 0 {
                tokio::task::yield_now().await;
            }
        }
    });
    futures_util::future::join_all(churn).await;
}
