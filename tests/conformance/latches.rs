//! A latch is set once, counts each step once, and is not at zero where it was never set.

use bellwether::backend::{Countdown, Owner};

use crate::harness::*;

async fn set(backend: &impl Store, name: &Name, count: u32) {
    assert!(backend.set_latch(name, Owner::fresh(), count, TTL).await.unwrap());
}

async fn count(backend: &impl Store, name: &Name, by: u32) -> Option<u32> {
    let countdown = backend.count_down(name, Owner::fresh(), by).await.unwrap();
    countdown.map(|countdown| countdown.left)
}

async fn look(backend: &impl Store, name: &Name) -> Option<Countdown> {
    backend.latch(name).await.unwrap()
}

async fn left(backend: &impl Store, name: &Name) -> Option<u32> {
    look(backend, name).await.map(|countdown| countdown.left)
}

fn is_about(time: Duration, expected: Duration) -> bool {
    time <= expected && time + MOMENT > expected
}

pub async fn a_latch_is_counted_down_to_zero_and_no_lower<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    set(&here, &name, 6).await;
    assert_eq!(left(&there, &name).await, Some(6));
    for (by, then) in [(1, 5), (2, 3), (1, 2), (7, 0), (1, 0)] {
        assert_eq!(count(&there, &name, by).await, Some(then));
        assert_eq!(left(&here, &name).await, Some(then));
    }
}

pub async fn a_latch_that_was_never_set_is_not_at_zero<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    assert_eq!(left(&backend, &name).await, None);
    assert_eq!(count(&backend, &name, 1).await, None);
    // A step that counted nothing is not remembered.
    set(&backend, &name, 1).await;
    assert_eq!(left(&backend, &name).await, Some(1));
}

pub async fn a_latch_is_set_once<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let first = Owner::fresh();
    let second = Owner::fresh();
    assert!(here.set_latch(&name, first, 2, TTL).await.unwrap());
    for then in [1, 0] {
        assert_eq!(count(&here, &name, 1).await, Some(then));
        assert!(!there.set_latch(&name, second, 9, TTL).await.unwrap());
        // The same set, sent twice or late, is recognised. It sets nothing anew.
        assert!(here.set_latch(&name, first, 2, TTL).await.unwrap());
        assert_eq!(left(&there, &name).await, Some(then));
    }
}

pub async fn a_step_sent_twice_counts_once<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    set(&here, &name, 3).await;
    let one = Owner::fresh();
    let two = Owner::fresh();
    let three = Owner::fresh();
    let step = async |id, by| there.count_down(&name, id, by).await.unwrap().unwrap().left;
    assert_eq!(step(one, 1).await, 2);
    assert_eq!(step(one, 1).await, 2);
    assert_eq!(step(two, 1).await, 1);
    // The first step arrives once more, after others. Each was told a count of its own: a step
    // whose answer was lost was told what the next one had left.
    assert_eq!(step(one, 1).await, 2);
    assert_eq!(left(&there, &name).await, Some(1));
    assert_eq!(step(two, 1).await, 1);
    assert_eq!(step(three, 1).await, 0);
    assert_eq!(step(three, 1).await, 0);
    // The latch is done. The first step is told its own count once more, because zero belongs to
    // the step that has finished the latch.
    assert_eq!(step(one, 1).await, 2);
    assert_eq!(step(two, 7).await, 1);
    assert_eq!(left(&there, &name).await, Some(0));
    assert_eq!(step(Owner::fresh(), 1).await, 0);
}

pub async fn an_unfinished_latch_ends_with_its_time<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    set(&backend, &name, 2).await;
    assert!(is_about(look(&backend, &name).await.unwrap().remaining, TTL));
    h.pass(TTL / 2).await;
    // A step does not prolong the latch.
    let step = backend.count_down(&name, Owner::fresh(), 1).await.unwrap().unwrap();
    assert!(is_about(step.remaining, TTL / 2), "{step:?}");
    assert!(is_about(look(&backend, &name).await.unwrap().remaining, TTL / 2));
    h.pass(TTL / 2).await;
    assert_eq!(look(&backend, &name).await, None);
    assert_eq!(count(&backend, &name, 1).await, None);
    assert_eq!(h.keys().await, [""; 0]);
    set(&backend, &name, 1).await;
    assert_eq!(left(&backend, &name).await, Some(1));
}

pub async fn a_finished_latch_stands_for_its_time_again<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    set(&backend, &name, 1).await;
    h.pass(TTL / 2).await;
    let id = Owner::fresh();
    for _ in 0..2 {
        let done = backend.count_down(&name, id, 1).await.unwrap().unwrap();
        assert!(done.left == 0 && is_about(done.remaining, TTL), "{done:?}");
    }
    h.pass(TTL / 2).await;
    // Late calls do not prolong the finished latch.
    backend.count_down(&name, id, 1).await.unwrap();
    assert!(!backend.set_latch(&name, Owner::fresh(), 1, TTL).await.unwrap());
    let late = look(&backend, &name).await.unwrap();
    assert!(late.left == 0 && is_about(late.remaining, TTL / 2), "{late:?}");
    h.pass(TTL / 2).await;
    assert_eq!(look(&backend, &name).await, None);
    assert_eq!(h.keys().await, [""; 0]);
}

/// A waiter for zero need not be woken for each of ten thousand steps.
pub async fn zero_is_pushed_once_and_the_steps_are_not<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    set(&here, &name, 3).await;
    let mut changes = listen(&there, &name).await;
    let last = Owner::fresh();
    for id in [Owner::fresh(), Owner::fresh(), last, last, Owner::fresh()] {
        here.count_down(&name, id, 1).await.unwrap();
    }
    // Pushes keep their order, so no other push precedes this one.
    let marker = claim(&name);
    granted(&here, &marker).await;
    let failure = crate::harness::failure(7, "the end");
    bellwether::backend::Store::fail(&here, &marker, &failure, None).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Wake);
    assert_eq!(next(&mut changes).await, Change::Failed(failure));
}

pub async fn a_latch_that_is_cleared_is_not_set_and_wakes<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    assert!(!there.clear_latch(&name).await.unwrap());
    set(&here, &name, 2).await;
    let id = Owner::fresh();
    here.count_down(&name, id, 1).await.unwrap();
    let mut changes = listen(&here, &name).await;
    assert!(there.clear_latch(&name).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake);
    assert_eq!(left(&here, &name).await, None);
    set(&here, &name, 1).await;
    count(&here, &name, 1).await;
    assert!(there.clear_latch(&name).await.unwrap());
    assert_eq!(left(&here, &name).await, None);
}

pub async fn a_latch_and_a_lease_of_one_name_do_not_meet<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let claim = claim(&name);
    granted(&backend, &claim).await;
    set(&backend, &name, 2).await;
    assert!(backend.clear(&name, Mode::Exclusive).await.unwrap());
    assert_eq!(left(&backend, &name).await, Some(2));
    granted(&backend, &claim).await;
    assert!(backend.clear_latch(&name).await.unwrap());
    assert!(backend.release(&claim).await.unwrap());
}

/// Several processes send each step twice at once.
pub async fn no_step_is_lost_and_none_counted_twice<H: FullHarness>(h: &H) {
    let backends: Vec<_> = (0..4).map(|_| h.backend()).collect();
    let name = name("k");
    set(&backends[0], &name, 101).await;
    let steps = (0..100).flat_map(|at| {
        let id = Owner::fresh();
        let backends = &backends;
        let name = &name;
        [at, at + 1].map(|by| async move { backends[by % 4].count_down(name, id, 1).await })
    });
    let counted = join_all(steps).await;
    assert!(counted.iter().all(|step| matches!(step, Ok(Some(step)) if step.left > 0)));
    assert_eq!(left(&backends[0], &name).await, Some(1));
    assert_eq!(count(&backends[1], &name, 1).await, Some(0));
}
