//! A fair lease is granted in the order of its queue.

use bellwether::{
    backend::{Change, Claim, Leases, Mode, Renewal},
    key::Name,
};
use testkit::{handover_life, queue_entry_life};

use crate::harness::{
    FullHarness, LEASE, MOMENT, claim, claim_in, elsewhere, granted, handed_over, held, listen,
    name, next,
};

fn fair(name: &Name) -> Claim {
    claim_in(Mode::Fair, name)
}

fn three(name: &Name) -> [Claim; 3] {
    std::array::from_fn(|_| fair(name))
}

pub async fn fair_waiters_are_served_in_their_order<H: FullHarness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    let name = name("k");
    let mut holder = fair(&name);
    let mut fence = granted(&here, &holder).await.fence();
    let waiting = three(&name);
    let mut changes = listen(&there, &name).await;
    for claim in &waiting {
        held(&there, claim).await;
    }
    for (turn, claim) in waiting.iter().enumerate() {
        assert!(here.release(&holder).await.unwrap());
        // The waiter holds the lease before it has asked again.
        let before = std::mem::replace(&mut fence, handed_over(&mut changes, claim).await.fence);
        assert!(fence > before);
        // The waiters behind, and a claim that comes now, wait for the first one.
        let late = fair(&name);
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

/// A waiter that does not listen would not learn that it holds the lease.
pub async fn a_lease_is_not_handed_to_a_waiter_that_does_not_listen<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let [first, second, third] = three(&name);
    let fence = granted(&backend, &first).await.fence();
    held(&backend, &second).await;
    held(&backend, &third).await;
    assert!(backend.release(&first).await.unwrap());
    assert_eq!(backend.holder(&name, Mode::Fair).await.unwrap(), None);
    // It is still the turn of the first waiter.
    let occupied = held(&backend, &third).await;
    assert_eq!((occupied.fence, occupied.holders), (0, 0));
    assert!(occupied.remaining <= queue_entry_life() && !occupied.remaining.is_zero());
    assert!(granted(&backend, &second).await.fence() > fence);
}

/// A holder died without a release, and so did a waiter for a plain mutex. A fair waiter behind it
/// keeps its place, though it does not hear either.
pub async fn a_plain_waiter_that_does_not_hear_is_passed_over<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let [mut first, second, third] = three(&name);
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

/// The owner of a handover dies. Its queue entry is gone, and the next waiter takes the lease in
/// time.
pub async fn a_handover_lasts_for_its_time<H: FullHarness>(h: &H) {
    let (waited, lasts) = (queue_entry_life() / 10, handover_life());
    let backend = h.backend();
    let name = name("k");
    let [first, second, third] = three(&name);
    let third = elsewhere(third);
    granted(&backend, &first).await;
    held(&backend, &second).await;
    let mut changes = listen(&backend, &name).await;
    h.pass(waited).await;
    held(&backend, &third).await;
    assert!(backend.release(&first).await.unwrap());
    let fence = handed_over(&mut changes, &second).await.fence;
    let occupied = backend.holder(&name, Mode::Fair).await.unwrap().unwrap();
    assert_eq!((occupied.fence, occupied.holders), (fence, 1));
    assert!(occupied.remaining <= lasts && !occupied.remaining.is_zero(), "{occupied:?}");
    h.pass(lasts).await;
    assert!(granted(&backend, &third).await.fence() > fence);
    assert_eq!(backend.renew(std::slice::from_ref(&second)).await.unwrap(), [Renewal::NotHeld]);
    assert!(!backend.release(&second).await.unwrap());
}

pub async fn a_waiter_that_asks_again_keeps_its_queue_entry<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let [first, second, third] = three(&name);
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
    let backend = h.backend();
    let name = name("k");
    let [first, mut second, third] = three(&name);
    second.waits = false;
    granted(&backend, &first).await;
    held(&backend, &second).await;
    backend.release(&first).await.unwrap();
    granted(&backend, &third).await;
    backend.release(&third).await.unwrap();
    // The lease may be granted to such a claim all the same.
    granted(&backend, &second).await;
}

pub async fn a_waiter_that_leaves_lets_the_next_pass<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let [first, second, third] = three(&name);
    granted(&backend, &first).await;
    held(&backend, &second).await;
    held(&backend, &third).await;
    let mut changes = listen(&backend, &name).await;
    assert!(!backend.release(&second).await.unwrap());
    backend.release(&first).await.unwrap();
    let fence = handed_over(&mut changes, &third).await.fence;
    // Sent twice, the release removes the waiter once.
    assert!(!backend.release(&second).await.unwrap());
    assert_eq!(granted(&backend, &third).await.fence(), fence);
}

pub async fn dead_waiters_are_skipped_together<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let [holder, first, second] = three(&name);
    let [first, second] = [first, second].map(elsewhere);
    let alive = fair(&name);
    granted(&backend, &holder).await;
    held(&backend, &first).await;
    h.pass(queue_entry_life() / 4).await;
    held(&backend, &second).await;
    for _ in 0..4 {
        held(&backend, &alive).await;
        h.pass(queue_entry_life() / 4).await;
    }
    let mut changes = listen(&backend, &name).await;
    backend.release(&holder).await.unwrap();
    let fence = handed_over(&mut changes, &alive).await.fence;
    assert_eq!(granted(&backend, &alive).await.fence(), fence);
}

pub async fn a_fair_claim_sent_twice_is_granted_one_lease<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let [first, second, _] = three(&name);
    let fence = granted(&backend, &first).await.fence();
    h.pass(LEASE / 2).await;
    assert_eq!(granted(&backend, &first).await.fence(), fence);
    assert!(held(&backend, &second).await.remaining > LEASE - MOMENT);
    assert_eq!(
        backend.renew(&[first.clone(), second.clone()]).await.unwrap(),
        [Renewal::Held, Renewal::NotHeld]
    );
    assert!(backend.release(&first).await.unwrap());
    assert!(!backend.release(&first).await.unwrap());
    granted(&backend, &second).await;
    assert!(!backend.release(&first).await.unwrap());
    assert_eq!(backend.renew(&[second]).await.unwrap(), [Renewal::Held]);
}

/// Both wait in one queue.
pub async fn a_fair_mutex_and_a_mutex_share_one_lease<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let [first, second, third] = three(&name);
    let plain = claim(&name);
    let fence = granted(&backend, &first).await.fence();
    held(&backend, &second).await;
    assert_eq!(held(&backend, &plain).await.fence, fence);
    backend.release(&first).await.unwrap();
    assert_eq!(held(&backend, &plain).await.fence, 0, "the fair waiter is before it");
    let seconds = granted(&backend, &second).await.fence();
    assert!(seconds > fence);
    assert_eq!(held(&backend, &plain).await.fence, seconds);
    backend.release(&second).await.unwrap();
    let plains = granted(&backend, &plain).await.fence();
    assert!(plains > seconds);
    assert_eq!(held(&backend, &third).await.fence, plains);
}

pub async fn a_cleared_lease_has_no_queue<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let [first, second, third] = three(&name);
    granted(&backend, &first).await;
    held(&backend, &second).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.clear(&name, Mode::Fair).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake);
    assert_eq!(backend.renew(&[first]).await.unwrap(), [Renewal::NotHeld]);
    granted(&backend, &third).await;
}
