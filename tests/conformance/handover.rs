//! A waiter gets the lease with the release, in turn and without another claim.

use crate::harness::*;

/// A handover is a lease like any other, and is granted again to a waiter that asks.
pub async fn a_waiter_is_handed_the_lease_with_the_release<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for mode in ALONE {
        for asks in [false, true] {
            let name = name(&format!("{mode:?} {asks}"));
            let [holder, waiting] = claims(mode, &name);
            let last = granted(&backend, &holder).await.fence();
            held(&backend, &waiting).await;
            let mut changes = listen(&backend, &name).await;
            assert!(backend.release(&holder).await.unwrap());
            // The fence of a permit is not told to others.
            let told = handed_over(&mut changes, &waiting).await.fence;
            let fence = if mode.is_fenced() { told } else { 0 };
            assert!(fence > last || !mode.is_fenced());
            let occupied = held(&backend, &hasty_in(mode, &name)).await;
            assert_eq!((occupied.fence, occupied.holders), (fence, 1));
            assert!(occupied.remaining <= handover_life(), "{occupied:?}");
            if asks {
                assert_eq!(granted(&backend, &waiting).await.fence(), fence)
            } else {
                assert!(renewed(&backend, &waiting).await)
            }
            let occupied = held(&backend, &hasty_in(mode, &name)).await;
            assert!(occupied.remaining > LEASE - MOMENT, "{occupied:?}");
            assert!(backend.release(&waiting).await.unwrap());
            let next = hasty_in(mode, &name);
            assert!(granted(&backend, &next).await.fence() > fence || !mode.is_fenced());
            assert_eq!(pushed(&backend, &mut changes, &next).await, [], "there is a queue");
        }
    }
}

/// The second waiter leaves meanwhile, which is sent twice as well.
pub async fn a_release_sent_twice_hands_over_once<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for mode in ALONE {
        let name = name(&format!("{mode:?}"));
        let [holder, first, leaves, last] = claims(mode, &name);
        granted(&backend, &holder).await;
        for waiting in [&first, &leaves, &last] {
            held(&backend, waiting).await;
        }
        let mut changes = listen(&backend, &name).await;
        assert!(!backend.release(&leaves).await.unwrap());
        assert!(backend.release(&holder).await.unwrap());
        assert!(!backend.release(&holder).await.unwrap());
        let fence = handed_over(&mut changes, &first).await.fence;
        let seen = held(&backend, &hasty_in(mode, &name)).await;
        assert!(seen.fence == fence || !mode.is_fenced(), "{seen:?}");
        assert!(!backend.release(&leaves).await.unwrap());
        assert!(backend.release(&first).await.unwrap());
        assert!(!backend.release(&first).await.unwrap());
        assert!(handed_over(&mut changes, &last).await.fence > fence || !mode.is_fenced());
        assert!(backend.release(&last).await.unwrap());
    }
}

/// Waiters for a fair mutex and for a plain one are in one queue.
pub async fn waiters_are_served_in_their_order<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let order = [Mode::Exclusive, Mode::Fair, Mode::Fair, Mode::Exclusive, Mode::Fair];
    let waiting = order.map(|mode| claim_in(mode, &name));
    let mut holder = claim_in(Mode::Fair, &name);
    let mut fence = granted(&here, &holder).await.fence();
    let mut changes = listen(&there, &name).await;
    for claim in &waiting {
        held(&there, claim).await;
    }
    for (turn, claim) in waiting.iter().enumerate() {
        assert!(here.release(&holder).await.unwrap());
        // The waiter holds the lease before it has asked again.
        let before = std::mem::replace(&mut fence, handed_over(&mut changes, claim).await.fence);
        assert!(fence > before);
        // The waiters behind, and a claim that comes now, wait for it.
        let late = claim_in(Mode::Fair, &name);
        for other in waiting.iter().skip(turn + 1).chain([&late]) {
            let occupied = held(&there, other).await;
            assert_eq!((occupied.fence, occupied.holders), (fence, 1));
            assert!(occupied.remaining <= queue_entry_life() && !occupied.remaining.is_zero());
        }
        here.release(&late).await.unwrap();
        assert_eq!(granted(&there, claim).await.fence(), fence);
        holder = claim.clone();
    }
    assert!(here.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake);
}

/// The waiter knows when it entered the queue. A later claim of the same waiter does not count.
pub async fn the_end_of_a_handover_counts_from_the_queue_entry<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let [holder, waiting] = claims(Mode::Exclusive, &name);
    granted(&backend, &holder).await;
    let mut changes = listen(&backend, &name).await;
    held(&backend, &waiting).await;
    let waits = queue_entry_life() / 4;
    h.pass(waits).await;
    held(&backend, &waiting).await;
    for _ in 0..5 {
        h.pass(waits).await;
        backend.keep(std::slice::from_ref(&waiting), queue_entry_life()).await.unwrap();
    }
    h.pass(waits).await;
    assert!(backend.release(&holder).await.unwrap());
    let ends = handed_over(&mut changes, &waiting).await.ends;
    // A handover lasts no longer than the queue entry, which was kept one wait ago.
    let ended = 6 * waits + handover_life();
    assert!(ends >= ended && ends < ended + MOMENT, "{ends:?}");
}

/// The waiter is skipped, and the lease is free.
pub async fn a_waiter_that_does_not_listen_is_skipped<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let [holder, gone, other] = claims(Mode::Exclusive, &name);
    let fence = granted(&backend, &holder).await.fence();
    held(&backend, &gone).await;
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(testkit::holder(&backend, &name, Mode::Exclusive).await.unwrap(), None);
    assert!(granted(&backend, &other).await.fence() > fence);
    // The waiter returns, and enters the queue anew.
    held(&backend, &gone).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&other).await.unwrap());
    assert!(handed_over(&mut changes, &gone).await.fence > fence);
}

/// Within a process the lease is passed on between callers. Its release hands it over to another
/// process.
pub async fn a_lease_that_was_passed_on_is_handed_over<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let [holder, next_one, waiting] = claims(Mode::Exclusive, &name);
    granted(&backend, &holder).await;
    held(&backend, &waiting).await;
    let mut changes = listen(&backend, &name).await;
    let passed = backend.pass(&holder, &next_one).await.unwrap().unwrap().fence();
    assert!(!backend.release(&holder).await.unwrap());
    assert!(backend.release(&next_one).await.unwrap());
    assert!(handed_over(&mut changes, &waiting).await.fence > passed);
    let [last] = claims(Mode::Exclusive, &name);
    assert!(
        backend.pass(&waiting, &last).await.unwrap().is_some(),
        "the new owner cannot pass the lease on"
    );
    assert!(backend.release(&last).await.unwrap());
}

/// The waiter had a queue entry when the lease was passed on to it. That ends the queue entry. A
/// release by the waiter, or by its successor, then hands over to no owner at all.
pub async fn a_waiter_that_already_had_the_lease_is_not_handed_it_again<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let [holder, waiting, last] = claims(Mode::Exclusive, &name);
    let mut changes = listen(&backend, &name).await;
    granted(&backend, &holder).await;
    held(&backend, &waiting).await;
    assert!(backend.pass(&holder, &waiting).await.unwrap().is_some());
    assert!(backend.release(&waiting).await.unwrap());
    assert_eq!(pushed(&backend, &mut changes, &last).await, []);

    let [holder, waiting] = claims(Mode::Exclusive, &name);
    granted(&backend, &holder).await;
    held(&backend, &waiting).await;
    let fence = backend.pass(&holder, &waiting).await.unwrap().unwrap().fence();
    assert_eq!(granted(&backend, &waiting).await.fence(), fence);
    assert!(backend.pass(&waiting, &last).await.unwrap().is_some());
    assert!(backend.release(&last).await.unwrap());
    granted(&backend, &hasty(&name)).await;
    assert_eq!(pushed(&backend, &mut changes, &last).await, []);
}

/// A waiter that does not listen would not learn that it holds the lease.
pub async fn a_lease_is_not_handed_to_a_waiter_that_does_not_listen<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let [first, second, third] = claims(Mode::Fair, &name);
    let fence = granted(&backend, &first).await.fence();
    held(&backend, &second).await;
    held(&backend, &third).await;
    assert!(backend.release(&first).await.unwrap());
    assert_eq!(testkit::holder(&backend, &name, Mode::Fair).await.unwrap(), None);
    // It is still the turn of the first waiter.
    let occupied = held(&backend, &third).await;
    assert_eq!((occupied.fence, occupied.holders), (0, 0));
    assert!(occupied.remaining <= queue_entry_life() && !occupied.remaining.is_zero());
    assert!(granted(&backend, &second).await.fence() > fence);
}

/// A holder died without a release, and so did a waiter for a plain mutex. A fair waiter behind it
/// keeps its place, though it does not hear either.
pub async fn a_plain_waiter_that_does_not_hear_is_passed_over<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let [mut first, second, third] = claims(Mode::Fair, &name);
    first.lease = queue_entry_life() / 2;
    granted(&backend, &first).await;
    held(&backend, &claim(&name)).await;
    held(&backend, &second).await;
    held(&backend, &third).await;
    h.pass(queue_entry_life() / 2).await;
    backend.keep(std::slice::from_ref(&third), queue_entry_life()).await.unwrap();
    let occupied = held(&backend, &third).await;
    assert_eq!((occupied.fence, occupied.holders), (0, 0));
    assert!(occupied.remaining <= queue_entry_life(), "{occupied:?}");
    granted(&backend, &second).await;
}

pub async fn a_waiter_that_asks_again_keeps_its_queue_entry<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let [first, second, third] = claims(Mode::Fair, &name);
    granted(&backend, &first).await;
    held(&backend, &second).await;
    held(&backend, &third).await;
    // The loop takes longer than a queue entry is kept without another claim.
    for _ in 0..8 {
        h.pass(queue_entry_life() / 4).await;
        held(&backend, &third).await;
        held(&backend, &second).await;
    }
    backend.release(&first).await.unwrap();
    held(&backend, &third).await;
    granted(&backend, &second).await;
}

pub async fn a_claim_that_does_not_wait_gets_no_queue_entry<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let [first, mut second, third] = claims(Mode::Fair, &name);
    second.waits = false;
    granted(&backend, &first).await;
    held(&backend, &second).await;
    backend.release(&first).await.unwrap();
    granted(&backend, &third).await;
    backend.release(&third).await.unwrap();
    // The lease may be granted to such a claim all the same.
    granted(&backend, &second).await;
}
