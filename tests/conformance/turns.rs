//! A waiter for a plain mutex is notified when the lease is free, in the order of the queue. The
//! lease is kept for the notified waiter for a moment, then any claim gets it.

use bellwether::{
    backend::{Acquired, Change, Claim, Leases, Mode, Occupied, Renewal},
    key::{Family, Name},
};
use testkit::{LIMIT, turn_life};
use tokio::time::Instant;

use crate::harness::{
    Harness, LEASE, MOMENT, assert_newer, claim, elsewhere, granted, hasty, held, listen, name_in,
    next, pushed,
};

/// Names a lock, because a waiter for an entry is never notified.
fn lock(key: &str) -> Name {
    name_in("conformance", Family::Lock, key)
}

fn claims<const N: usize>(name: &Name) -> [Claim; N] {
    std::array::from_fn(|_| claim(name))
}

/// Plays a scene until its questions are answered within the moment for which the lease is kept. On
/// a busy machine that moment may be over before. The scene returns the earliest instant at which
/// the moment may have begun.
async fn in_the_moment<T>(scene: impl AsyncFn(Name) -> (Instant, T)) -> T {
    let end = Instant::now() + LIMIT;
    for at in 0.. {
        let (begun, outcome) = scene(lock(&format!("k{at}"))).await;
        if begun.elapsed() < turn_life() {
            return outcome;
        }
        assert!(Instant::now() < end, "no scene was answered in time");
    }
    unreachable!("the loop has no end")
}

/// Lets a holder release the lease while a claim waits, and returns the instant of the release.
async fn notified<H: Harness>(h: &H, name: &Name, waiting: &Claim) -> Instant {
    let backend = h.backend();
    let mut changes = listen(&backend, name).await;
    let holder = claim(name);
    granted(&backend, &holder).await;
    held(&backend, waiting).await;
    let begun = Instant::now();
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(waiting.owner));
    begun
}

pub async fn a_waiter_is_notified_when_the_lease_is_free<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let waiting = claim(&name);
    notified(h, &name, &waiting).await;
    let fence = granted(&backend, &waiting).await.fence();
    assert_newer::<H>(fence, 0);
    let occupied = held(&backend, &hasty(&name)).await;
    assert_eq!(occupied.fence, fence);
    assert!(occupied.remaining > LEASE - MOMENT, "the lease does not last its full time");
    assert_eq!(backend.renew(std::slice::from_ref(&waiting)).await.unwrap(), [Renewal::Held]);
    assert!(backend.release(&waiting).await.unwrap());
}

pub async fn a_free_lease_is_kept_for_the_notified_waiter<H: Harness>(h: &H) {
    let backend = h.backend();
    let answer = in_the_moment(async |name| {
        let begun = notified(h, &name, &claim(&name)).await;
        (begun, backend.acquire(&hasty(&name)).await.unwrap())
    })
    .await;
    match answer {
        Acquired::Occupied(occupied) => is_kept(occupied),
        granted => panic!("the lease was not kept: {granted:?}"),
    }
}

pub async fn a_kept_lease_can_be_looked_at<H: Harness>(h: &H) {
    let backend = h.backend();
    let looked = in_the_moment(async |name| {
        let begun = notified(h, &name, &claim(&name)).await;
        (begun, backend.holder(&name, Mode::Exclusive).await.unwrap())
    })
    .await;
    is_kept(looked.expect("the lease was not kept"));
}

fn is_kept(occupied: Occupied) {
    assert_eq!(occupied.fence, 0, "the lease has a holder");
    assert!(occupied.remaining <= turn_life(), "{occupied:?}");
}

pub async fn a_free_lease_is_kept_for_a_moment_only<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let [waiting, stranger] = claims(&name);
    notified(h, &name, &waiting).await;
    h.pass(turn_life()).await;
    let fence = granted(&backend, &stranger).await.fence();
    // A waiter that came too late waits anew, and is notified anew.
    let mut changes = listen(&backend, &name).await;
    assert_eq!(held(&backend, &waiting).await.fence, fence);
    assert!(backend.release(&stranger).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(waiting.owner));
    assert_newer::<H>(granted(&backend, &waiting).await.fence(), fence);
}

/// A waiter that never comes is notified once, and does not delay the others a second time.
pub async fn a_waiter_that_misses_its_turn_is_not_notified_again<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let stranger = claim(&name);
    notified(h, &name, &claim(&name)).await;
    h.pass(turn_life()).await;
    granted(&backend, &stranger).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&stranger).await.unwrap());
    granted(&backend, &hasty(&name)).await;
    assert_eq!(pushed(&backend, &mut changes, &name).await, []);
}

pub async fn a_notified_waiter_holds_nothing_before_it_asks<H: Harness>(h: &H) {
    let backend = h.backend();
    let (renewed, passed, released) = in_the_moment(async |name| {
        let [waiting, other] = claims(&name);
        let begun = notified(h, &name, &waiting).await;
        let renewed = backend.renew(std::slice::from_ref(&waiting)).await.unwrap();
        let passed = [
            backend.pass(&waiting, &other).await.unwrap(),
            backend.pass(&other, &waiting).await.unwrap(),
        ];
        (begun, (renewed, passed, backend.release(&waiting).await.unwrap()))
    })
    .await;
    assert_eq!((renewed, passed, released), (vec![Renewal::NotHeld], [None, None], false));
}

pub async fn a_notified_waiter_that_leaves_notifies_the_next<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let [second, third] = claims(&name);
    let holder = claim(&name);
    granted(&backend, &holder).await;
    held(&backend, &second).await;
    held(&backend, &third).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(second.owner));
    assert!(!backend.release(&second).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(third.owner));
    granted(&backend, &third).await;
}

pub async fn the_last_notified_waiter_that_leaves_frees_the_lease<H: Harness>(h: &H) {
    let backend = h.backend();
    let (woken, after) = in_the_moment(async |name| {
        let waiting = claim(&name);
        let begun = notified(h, &name, &waiting).await;
        let mut changes = listen(&backend, &name).await;
        backend.release(&waiting).await.unwrap();
        let after = backend.acquire(&hasty(&name)).await.unwrap();
        let begun = if begun.elapsed() < turn_life() { Instant::now() } else { begun };
        (begun, (pushed(&backend, &mut changes, &name).await, after))
    })
    .await;
    assert_eq!(woken, []);
    assert!(matches!(after, Acquired::Granted(_)), "{after:?}");
}

/// A waiter leaves before it is notified.
pub async fn a_waiter_that_left_is_not_notified<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let [holder, second, third] = claims(&name);
    granted(&backend, &holder).await;
    held(&backend, &second).await;
    held(&backend, &third).await;
    let mut changes = listen(&backend, &name).await;
    assert!(!backend.release(&second).await.unwrap());
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(third.owner));
    granted(&backend, &third).await;
}

pub async fn waiters_are_notified_in_their_order<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    let name = lock("k");
    let mut holder = claim(&name);
    let mut fence = granted(&here, &holder).await.fence();
    let waiting = claims::<5>(&name);
    for claim in &waiting {
        held(&here, claim).await;
    }
    // A waiter that asks again keeps its queue entry.
    for claim in waiting.iter().rev() {
        held(&there, claim).await;
    }
    let mut changes = listen(&there, &name).await;
    for claim in waiting {
        assert!(here.release(&holder).await.unwrap());
        assert_eq!(next(&mut changes).await, Change::Turn(claim.owner));
        let before = std::mem::replace(&mut fence, granted(&there, &claim).await.fence());
        assert_newer::<H>(fence, before);
        holder = claim;
    }
    assert!(here.release(&holder).await.unwrap());
    assert_eq!(pushed(&there, &mut changes, &name).await, [], "the queue is not empty");
}

pub async fn a_claim_that_does_not_wait_is_not_notified<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let (holder, hasty) = (claim(&name), hasty(&name));
    granted(&backend, &holder).await;
    held(&backend, &hasty).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    granted(&backend, &claim(&name)).await;
    assert_eq!(pushed(&backend, &mut changes, &name).await, []);
}

pub async fn a_waiter_with_an_ended_queue_entry_is_not_notified<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let [holder, gone, waiting] = claims(&name);
    let gone = elsewhere(gone);
    granted(&backend, &holder).await;
    held(&backend, &gone).await;
    h.pass(gone.queue_entry_life() * 3 / 4).await;
    held(&backend, &waiting).await;
    h.pass(gone.queue_entry_life() / 4).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(waiting.owner));
}

pub async fn a_release_sent_twice_notifies_once<H: Harness>(h: &H) {
    let backend = h.backend();
    let (again, notified) = in_the_moment(async |name| {
        let [holder, second, third] = claims(&name);
        granted(&backend, &holder).await;
        held(&backend, &second).await;
        held(&backend, &third).await;
        let mut changes = listen(&backend, &name).await;
        let begun = Instant::now();
        assert!(backend.release(&holder).await.unwrap());
        let again = backend.release(&holder).await.unwrap();
        let on_time = begun.elapsed() < turn_life();
        let notified = pushed(&backend, &mut changes, &name).await;
        let begun = if on_time { Instant::now() } else { begun };
        (begun, (again, notified == [Change::Turn(second.owner)]))
    })
    .await;
    assert!(!again && notified);
}

pub async fn a_waiter_that_leaves_twice_notifies_once<H: Harness>(h: &H) {
    let backend = h.backend();
    let notified = in_the_moment(async |name| {
        let [holder, second, third, fourth] = claims(&name);
        granted(&backend, &holder).await;
        for claim in [&second, &third, &fourth] {
            held(&backend, claim).await;
        }
        let mut changes = listen(&backend, &name).await;
        let begun = Instant::now();
        assert!(backend.release(&holder).await.unwrap());
        assert!(!backend.release(&second).await.unwrap());
        assert!(!backend.release(&second).await.unwrap());
        let on_time = begun.elapsed() < turn_life();
        let notified = pushed(&backend, &mut changes, &name).await;
        let begun = if on_time { Instant::now() } else { begun };
        (begun, notified == [second.owner, third.owner].map(Change::Turn))
    })
    .await;
    assert!(notified);
}

pub async fn a_notified_waiter_that_asks_twice_is_granted_one_lease<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let waiting = claim(&name);
    notified(h, &name, &waiting).await;
    let fence = granted(&backend, &waiting).await.fence();
    assert_eq!(granted(&backend, &waiting).await.fence(), fence);
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&waiting).await.unwrap());
    assert!(!backend.release(&waiting).await.unwrap());
    assert_eq!(pushed(&backend, &mut changes, &name).await, [], "the waiter is still in the queue");
}
