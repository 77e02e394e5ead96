//! A waiter for a plain mutex that takes handovers gets the lease with the release, in turn and
//! without another claim.

use bellwether::{
    backend::{Claim, Leases, Mode, Renewal},
    key::{Family, Name},
};
use testkit::{handover_life, queue_entry_life};

use crate::harness::{
    FullHarness, LEASE, MOMENT, claim, granted, handed_over, hasty, held, listen, name_in, pushed,
};

fn lock() -> Name {
    name_in("conformance", Family::Lock, "k")
}

fn claims<const N: usize>(name: &Name) -> [Claim; N] {
    std::array::from_fn(|_| claim(name))
}

pub async fn a_waiter_is_handed_the_mutex_with_the_release<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock();
    let [holder, waiting] = claims(&name);
    let last = granted(&backend, &holder).await.fence();
    held(&backend, &waiting).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    let fence = handed_over(&mut changes, &waiting).await.fence;
    assert!(fence > last);
    let occupied = held(&backend, &hasty(&name)).await;
    assert_eq!((occupied.fence, occupied.holders), (fence, 1));
    assert!(occupied.remaining <= handover_life(), "{occupied:?}");
    // A handover is a lease like any other.
    assert_eq!(backend.renew(std::slice::from_ref(&waiting)).await.unwrap(), [Renewal::Held]);
    let occupied = held(&backend, &hasty(&name)).await;
    assert!(occupied.remaining > LEASE - MOMENT, "{occupied:?}");
    assert!(backend.release(&waiting).await.unwrap());
    assert!(granted(&backend, &hasty(&name)).await.fence() > fence);
    assert_eq!(pushed(&backend, &mut changes, &name).await, [], "the queue is not empty");
}

/// The waiter knows when it entered the queue. A later claim of the same waiter does not count.
pub async fn the_end_of_a_handover_counts_from_the_queue_entry<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock();
    let [holder, waiting] = claims(&name);
    granted(&backend, &holder).await;
    let mut changes = listen(&backend, &name).await;
    held(&backend, &waiting).await;
    let waits = waiting.queue_entry_life() / 4;
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
    let backend = h.backend();
    let name = lock();
    let [holder, gone, other] = claims(&name);
    let fence = granted(&backend, &holder).await.fence();
    held(&backend, &gone).await;
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(backend.holder(&name, Mode::Exclusive).await.unwrap(), None);
    assert!(granted(&backend, &other).await.fence() > fence);
    // The waiter returns, and enters the queue anew.
    held(&backend, &gone).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&other).await.unwrap());
    assert!(handed_over(&mut changes, &gone).await.fence > fence);
}

pub async fn a_release_sent_twice_hands_over_once<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock();
    let [holder, second, third] = claims(&name);
    granted(&backend, &holder).await;
    held(&backend, &second).await;
    held(&backend, &third).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    assert!(!backend.release(&holder).await.unwrap());
    let fence = handed_over(&mut changes, &second).await.fence;
    assert_eq!(held(&backend, &hasty(&name)).await.fence, fence);
    assert!(backend.release(&second).await.unwrap());
    assert!(!backend.release(&second).await.unwrap());
    assert!(handed_over(&mut changes, &third).await.fence > fence);
    assert!(backend.release(&third).await.unwrap());
}

/// Within a process the lease is passed on between callers. Its release hands it over to another
/// process.
pub async fn a_lease_that_was_passed_on_is_handed_over<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock();
    let [holder, next_one, waiting] = claims(&name);
    granted(&backend, &holder).await;
    held(&backend, &waiting).await;
    let mut changes = listen(&backend, &name).await;
    let passed = backend.pass(&holder, &next_one).await.unwrap().unwrap().fence();
    assert!(!backend.release(&holder).await.unwrap());
    assert!(backend.release(&next_one).await.unwrap());
    assert!(handed_over(&mut changes, &waiting).await.fence > passed);
    let [last] = claims(&name);
    assert!(
        backend.pass(&waiting, &last).await.unwrap().is_some(),
        "the new owner cannot pass the lease on"
    );
    assert!(backend.release(&last).await.unwrap());
}

/// The waiter had a queue entry when the lease was passed on to it. That ends the queue entry. A
/// release by the waiter, or by its successor, then hands over to no owner at all.
pub async fn a_waiter_that_already_had_the_lease_is_not_handed_it_again<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock();
    let [holder, waiting, last] = claims(&name);
    let mut changes = listen(&backend, &name).await;
    granted(&backend, &holder).await;
    held(&backend, &waiting).await;
    assert!(backend.pass(&holder, &waiting).await.unwrap().is_some());
    assert!(backend.release(&waiting).await.unwrap());
    assert_eq!(pushed(&backend, &mut changes, &name).await, []);

    let [holder, waiting] = claims(&name);
    granted(&backend, &holder).await;
    held(&backend, &waiting).await;
    let fence = backend.pass(&holder, &waiting).await.unwrap().unwrap().fence();
    assert_eq!(granted(&backend, &waiting).await.fence(), fence);
    assert!(backend.pass(&waiting, &last).await.unwrap().is_some());
    assert!(backend.release(&last).await.unwrap());
    granted(&backend, &hasty(&name)).await;
    assert_eq!(pushed(&backend, &mut changes, &name).await, []);
}

/// The waiter did not trust the handover, or had sent its claim before the handover arrived.
pub async fn a_handover_is_granted_again_to_its_owner<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock();
    let [holder, waiting] = claims(&name);
    granted(&backend, &holder).await;
    held(&backend, &waiting).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    let fence = handed_over(&mut changes, &waiting).await.fence;
    h.pass(handover_life() / 4).await;
    assert_eq!(granted(&backend, &waiting).await.fence(), fence);
    let occupied = held(&backend, &hasty(&name)).await;
    assert!(occupied.remaining > LEASE - MOMENT, "{occupied:?}");
    assert!(backend.release(&waiting).await.unwrap());
}
