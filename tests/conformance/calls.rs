//! Who waits for a plain mutex is called when it is free, one after the other, and it is kept for whoever is called
//! for a moment; then it is anyone's.

use std::time::Duration;

use bellwether::{
    backend::{
        Acquired, AcquiredAll, CALL_LIFE, Change, Changes, Claim, Leases, Mode, Occupied, Renewal,
    },
    key::{Family, Name},
};
use testkit::LIMIT;
use tokio::time::{Instant, timeout};

use crate::harness::{Harness, LEASE, MOMENT, claim, granted, hasty, held, listen, name_in, next};

/// Of a lock; for who waits for an entry is never called.
fn lock(key: &str) -> Name {
    name_in("conformance", Family::Lock, key)
}

fn claims<const N: usize>(name: &Name) -> [Claim; N] {
    std::array::from_fn(|_| claim(name))
}

/// Plays a scene until what it asks is answered within the moment for which it is kept for who was called, which on
/// a busy machine may be over before. It says when the moment began at the earliest.
async fn in_the_moment<T>(scene: impl AsyncFn(Name) -> (Instant, T)) -> T {
    let end = Instant::now() + LIMIT;
    for at in 0.. {
        let (begun, outcome) = scene(lock(&format!("k{at}"))).await;
        if begun.elapsed() < CALL_LIFE {
            return outcome;
        }
        assert!(Instant::now() < end, "nothing is answered in time");
    }
    unreachable!("it plays for ever")
}

/// One holds it, and another waits; then it is given back. Says when.
async fn called<H: Harness>(h: &H, name: &Name, waiting: &Claim) -> Instant {
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

/// What was pushed so far.
async fn pushed(backend: &impl Leases, changes: &mut Changes, name: &Name) -> Vec<Change> {
    // On the way behind all of it comes the news that it was cleared; but a call has a channel of its own.
    backend.clear(name, Mode::Exclusive).await.unwrap();
    let mut all = vec![next(changes).await];
    while let Ok(change) = timeout(Duration::ZERO, changes.next()).await {
        all.push(change);
    }
    while !all.contains(&Change::Wake) {
        all.push(next(changes).await);
    }
    all.retain(|change| *change != Change::Wake);
    all
}

pub async fn who_waits_is_called_when_it_is_free<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let waiting = claim(&name);
    called(h, &name, &waiting).await;
    let fence = granted(&backend, &waiting).await.fence();
    assert_ne!(fence, 0);
    let occupied = held(&backend, &hasty(&name)).await;
    assert_eq!(occupied.fence, fence);
    assert!(occupied.remaining > LEASE - MOMENT, "it is held for its full time");
    assert_eq!(backend.renew(std::slice::from_ref(&waiting)).await.unwrap(), [Renewal::Held]);
    assert!(backend.release(&waiting).await.unwrap());
}

pub async fn it_is_kept_for_who_was_called<H: Harness>(h: &H) {
    let backend = h.backend();
    let (alone, together, looked) = in_the_moment(async |name| {
        let begun = called(h, &name, &claim(&name)).await;
        let alone = backend.acquire(&hasty(&name)).await.unwrap();
        let together = [hasty(&lock("free")), hasty(&name)];
        let together = backend.acquire_all(&together).await.unwrap();
        let looked = backend.holder(&name, Mode::Exclusive).await.unwrap();
        (begun, (alone, together, looked))
    })
    .await;
    let kept = |occupied: Occupied| {
        assert_eq!(occupied.fence, 0, "nobody holds it");
        assert!(occupied.remaining <= CALL_LIFE, "{occupied:?}");
    };
    match (alone, together) {
        (Acquired::Held(alone), AcquiredAll::Held(1, together)) => {
            kept(alone);
            kept(together);
        }
        granted => panic!("it was not kept: {granted:?}"),
    }
    kept(looked.expect("it is kept"));
}

pub async fn it_is_kept_for_a_moment_only<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let [waiting, stranger] = claims(&name);
    called(h, &name, &waiting).await;
    h.pass(CALL_LIFE).await;
    let fence = granted(&backend, &stranger).await.fence();
    // Who came too late waits anew, and is called anew.
    let mut changes = listen(&backend, &name).await;
    assert_eq!(held(&backend, &waiting).await.fence, fence);
    assert!(backend.release(&stranger).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(waiting.owner));
    assert!(granted(&backend, &waiting).await.fence() > fence);
}

/// One who never comes is called once, and holds nobody up a second time.
pub async fn who_does_not_come_is_not_called_again<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let stranger = claim(&name);
    called(h, &name, &claim(&name)).await;
    h.pass(CALL_LIFE).await;
    granted(&backend, &stranger).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&stranger).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake);
    granted(&backend, &hasty(&name)).await;
}

pub async fn who_was_called_has_nothing_before_he_asks<H: Harness>(h: &H) {
    let backend = h.backend();
    let (renewed, passed, released) = in_the_moment(async |name| {
        let [waiting, other] = claims(&name);
        let begun = called(h, &name, &waiting).await;
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

pub async fn who_is_called_and_leaves_calls_the_next<H: Harness>(h: &H) {
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

pub async fn the_last_who_is_called_and_leaves_leaves_it_free<H: Harness>(h: &H) {
    let backend = h.backend();
    let (woken, after) = in_the_moment(async |name| {
        let waiting = claim(&name);
        let begun = called(h, &name, &waiting).await;
        let mut changes = listen(&backend, &name).await;
        backend.release(&waiting).await.unwrap();
        let after = backend.acquire(&hasty(&name)).await.unwrap();
        // Late, there was nothing left to give back, and nothing to tell.
        let woken = match begun.elapsed() < CALL_LIFE {
            true => Some(next(&mut changes).await),
            false => None,
        };
        (begun, (woken, after))
    })
    .await;
    assert_eq!(woken, Some(Change::Wake));
    assert!(matches!(after, Acquired::Granted(_)), "{after:?}");
}

/// One who waits and is not called yet goes away.
pub async fn who_leaves_before_is_not_called<H: Harness>(h: &H) {
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

pub async fn they_are_called_in_their_order<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    let name = lock("k");
    let mut holder = claim(&name);
    let mut fence = granted(&here, &holder).await.fence();
    let waiting = claims::<5>(&name);
    for claim in &waiting {
        held(&here, claim).await;
    }
    // Who asks again keeps the place.
    for claim in waiting.iter().rev() {
        held(&there, claim).await;
    }
    let mut changes = listen(&there, &name).await;
    for claim in waiting {
        assert!(here.release(&holder).await.unwrap());
        assert_eq!(next(&mut changes).await, Change::Turn(claim.owner));
        let before = std::mem::replace(&mut fence, granted(&there, &claim).await.fence());
        assert!(fence > before);
        holder = claim;
    }
    assert!(here.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake, "nobody waits any more");
}

pub async fn who_does_not_wait_is_not_called<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let (holder, hasty) = (claim(&name), hasty(&name));
    granted(&backend, &holder).await;
    held(&backend, &hasty).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake);
    granted(&backend, &claim(&name)).await;
}

pub async fn who_did_not_keep_the_place_is_not_called<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let [holder, gone, waiting] = claims(&name);
    granted(&backend, &holder).await;
    held(&backend, &gone).await;
    h.pass(gone.place_life() / 2).await;
    held(&backend, &waiting).await;
    h.pass(gone.place_life() / 2).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(waiting.owner));
}

pub async fn a_release_sent_twice_calls_once<H: Harness>(h: &H) {
    let backend = h.backend();
    let (again, called) = in_the_moment(async |name| {
        let [holder, second, third] = claims(&name);
        granted(&backend, &holder).await;
        held(&backend, &second).await;
        held(&backend, &third).await;
        let mut changes = listen(&backend, &name).await;
        let begun = Instant::now();
        assert!(backend.release(&holder).await.unwrap());
        let again = backend.release(&holder).await.unwrap();
        let on_time = begun.elapsed() < CALL_LIFE;
        let called = pushed(&backend, &mut changes, &name).await;
        let begun = if on_time { Instant::now() } else { begun };
        (begun, (again, called == [Change::Turn(second.owner)]))
    })
    .await;
    assert!(!again && called);
}

pub async fn who_leaves_twice_calls_once<H: Harness>(h: &H) {
    let backend = h.backend();
    let called = in_the_moment(async |name| {
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
        let on_time = begun.elapsed() < CALL_LIFE;
        let called = pushed(&backend, &mut changes, &name).await;
        let begun = if on_time { Instant::now() } else { begun };
        (begun, called == [second.owner, third.owner].map(Change::Turn))
    })
    .await;
    assert!(called);
}

pub async fn who_was_called_is_granted_once_and_the_same_again<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = lock("k");
    let waiting = claim(&name);
    called(h, &name, &waiting).await;
    let fence = granted(&backend, &waiting).await.fence();
    assert_eq!(granted(&backend, &waiting).await.fence(), fence);
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&waiting).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake);
    assert!(!backend.release(&waiting).await.unwrap());
    assert_eq!(pushed(&backend, &mut changes, &name).await, [], "he waits no more");
}

/// Of several at once the one that stands in the way is waited for, and called for.
pub async fn who_wants_several_is_called_for_what_stands_in_the_way<H: Harness>(h: &H) {
    let backend = h.backend();
    let [free, taken] = [lock("{a}"), lock("{b}")];
    let holder = claim(&taken);
    let fence = granted(&backend, &holder).await.fence();
    let both = [claim(&free), claim(&taken)];
    match backend.acquire_all(&both).await.unwrap() {
        AcquiredAll::Held(1, occupied) => assert_eq!(occupied.fence, fence),
        other => panic!("not held up by the second: {other:?}"),
    }
    let mut changes = listen(&backend, &taken).await;
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(both[1].owner));
    match backend.acquire_all(&both).await.unwrap() {
        AcquiredAll::Granted(grants) => assert!(grants[1].fence() > fence && grants[0].fence() > 0),
        other => panic!("not granted: {other:?}"),
    }
    for claim in &both {
        assert!(backend.release(claim).await.unwrap());
    }
}
