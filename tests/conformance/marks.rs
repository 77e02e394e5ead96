//! The mark of a name is the last tick whose turn was begun. Only the holder of the mutex sets it.

use std::time::SystemTime;

use bellwether::backend::{
    Mark, Marked, Tick,
    TickStep::{self, Begin, BeginAgain, Done, Forget},
};

use crate::harness::*;

/// The time for which marks are kept here.
const KEPT: Duration = Duration::from_secs(3600);
/// A tick of today.
const TICK: u64 = 1_790_000_000_000_000;

async fn mark(backend: &impl Leases, claim: &Claim, at: u64, step: TickStep) -> Marked {
    backend.mark(claim, Tick { at, step, kept: KEPT }).await.unwrap()
}

async fn sets(backend: &impl Leases, claim: &Claim, at: u64, step: TickStep) -> bool {
    mark(backend, claim, at, step).await.is_set
}

/// Returns the mark of a name, as a stranger sees it.
async fn look(backend: &impl Leases, of: &Claim) -> Option<Mark> {
    let marked = mark(backend, &claim(&of.name), TICK + 9, BeginAgain).await;
    assert!(!marked.is_set, "a stranger set a mark");
    marked.before
}

/// Ends the lease of a holder, and grants it to a new one.
async fn next_holder(backend: &impl Leases, before: &Claim) -> Claim {
    assert!(backend.release(before).await.unwrap());
    let claim = claim(&before.name);
    granted(backend, &claim).await;
    claim
}

pub async fn a_mark_is_set_by_the_holder_alone<H: Harness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let holder = claim(&name("k"));
    assert!(!sets(&here, &holder, TICK, Begin).await);
    assert_eq!(look(&there, &holder).await, None);
    granted(&here, &holder).await;
    let begun = mark(&here, &holder, TICK, Begin).await;
    assert!(begun.is_set && begun.before.is_none(), "{begun:?}");
    let begun = Some(Mark { tick: TICK, begun_by: Some(holder.owner) });
    assert_eq!(look(&there, &holder).await, begun);
    // Another name has a mark of its own.
    assert_eq!(look(&there, &claim(&name("l"))).await, None);
    h.pass(LEASE).await;
    for step in [Begin, BeginAgain, Done] {
        assert!(!sets(&here, &holder, TICK + 1, step).await, "{step:?} after the lease");
    }
    assert_eq!(look(&there, &holder).await, begun);
}

pub async fn a_tick_that_is_not_greater_than_the_mark_does_not_begin<H: Harness>(h: &H) {
    let backend = h.backend();
    let mut holder = claim(&name("k"));
    granted(&backend, &holder).await;
    for tick in [9, TICK, TICK + 1] {
        assert!(sets(&backend, &holder, tick, Begin).await, "{tick}");
        assert!(sets(&backend, &holder, tick, Done).await, "{tick}");
        holder = next_holder(&backend, &holder).await;
        for (lower, step) in [(tick, Begin), (tick, BeginAgain), (tick - 1, BeginAgain)] {
            assert!(!sets(&backend, &holder, lower, step).await, "{lower} after {tick}");
        }
    }
    assert!(!sets(&backend, &holder, 10, Begin).await, "ticks are compared as texts");
}

pub async fn a_tick_that_is_not_done_begins_again_if_that_is_wanted<H: Harness>(h: &H) {
    let backend = h.backend();
    let mut holder = claim(&name("k"));
    granted(&backend, &holder).await;
    assert!(sets(&backend, &holder, TICK, Begin).await);
    holder = next_holder(&backend, &holder).await;
    assert!(!sets(&backend, &holder, TICK, Begin).await);
    assert!(!sets(&backend, &holder, TICK - 1, BeginAgain).await);
    assert!(sets(&backend, &holder, TICK, BeginAgain).await);
    let begun = Mark { tick: TICK, begun_by: Some(holder.owner) };
    assert_eq!(look(&backend, &holder).await, Some(begun));
    assert!(sets(&backend, &holder, TICK, Done).await);
    assert_eq!(look(&backend, &holder).await, Some(Mark { begun_by: None, ..begun }));
}

pub async fn a_tick_sent_twice_begins_and_ends_once<H: Harness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let holder = claim(&name("k"));
    granted(&here, &holder).await;
    for backend in [&here, &there] {
        assert!(sets(backend, &holder, TICK, Begin).await);
    }
    for backend in [&here, &there] {
        assert!(sets(backend, &holder, TICK, Done).await);
    }
    // The first question arrives once more. The turn stays done.
    assert!(!sets(&there, &holder, TICK, Begin).await);
    assert_eq!(look(&here, &holder).await, Some(Mark { tick: TICK, begun_by: None }));
}

/// An operator removes a mark that lies in the future, whoever has the mutex.
pub async fn a_mark_is_removed_by_anyone<H: Harness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let holder = claim(&name("k"));
    let stranger = claim(&holder.name);
    assert!(!sets(&there, &stranger, 0, Forget(None)).await, "there is no mark yet");
    granted(&here, &holder).await;
    assert!(sets(&here, &holder, TICK + 1, Begin).await);
    let begun = Mark { tick: TICK + 1, begun_by: Some(holder.owner) };
    let removed = mark(&there, &stranger, 0, Forget(None)).await;
    assert!(removed.is_set && removed.before == Some(begun), "{removed:?}");
    assert_eq!(look(&there, &holder).await, None);
    assert!(!sets(&there, &stranger, 0, Forget(None)).await, "the mark is removed twice");
    // The lease is untouched: an earlier tick begins, and the turn under way notes its end.
    assert!(sets(&here, &holder, TICK, Begin).await);
    assert!(sets(&here, &holder, TICK + 1, Done).await);
    assert_eq!(look(&there, &holder).await, Some(Mark { tick: TICK + 1, begun_by: None }));
}

/// A tick has begun since the operator read the mark. Without its mark, the tick could run twice.
pub async fn a_mark_is_removed_only_as_it_was_seen<H: Harness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    let mut holder = claim(&name("k"));
    let stranger = claim(&holder.name);
    granted(&here, &holder).await;
    assert!(sets(&here, &holder, TICK, Begin).await);
    let first = look(&there, &holder).await.unwrap();
    // The tick is done, begins again under another owner, and a later tick begins.
    assert!(sets(&here, &holder, TICK, Done).await);
    let done = look(&there, &holder).await.unwrap();
    for seen in [first, Mark { tick: TICK - 1, ..done }] {
        assert!(!sets(&there, &stranger, 0, Forget(Some(seen))).await, "{seen:?}");
    }
    holder = next_holder(&here, &holder).await;
    assert!(sets(&here, &holder, TICK + 1, Begin).await);
    let last = look(&there, &holder).await.unwrap();
    holder = next_holder(&here, &holder).await;
    assert!(sets(&here, &holder, TICK + 1, BeginAgain).await);
    let again = look(&there, &holder).await.unwrap();
    for seen in [first, done, last] {
        let refused = mark(&there, &stranger, 0, Forget(Some(seen))).await;
        assert!(!refused.is_set && refused.before == Some(again), "{refused:?} for {seen:?}");
    }
    assert_eq!(look(&there, &holder).await, Some(again));
    assert!(sets(&there, &stranger, 0, Forget(Some(again))).await);
    assert_eq!(look(&there, &holder).await, None);
    assert!(!sets(&there, &stranger, 0, Forget(Some(again))).await, "it is removed twice");
}

pub async fn a_mark_ends_with_its_time<H: Harness>(h: &H) {
    let backend = h.backend();
    let holder = claim(&name("k"));
    granted(&backend, &holder).await;
    assert!(sets(&backend, &holder, TICK, Begin).await);
    h.pass(LEASE / 2).await;
    assert!(sets(&backend, &holder, TICK, Done).await);
    // The time counts from the last step, and a clear of the lock is none.
    backend.clear(&holder.name, Mode::Exclusive).await.unwrap();
    h.pass(KEPT - MOMENT).await;
    assert_eq!(look(&backend, &holder).await, Some(Mark { tick: TICK, begun_by: None }));
    h.pass(MOMENT).await;
    assert_eq!(look(&backend, &holder).await, None);
}

pub async fn a_mark_tells_the_time_of_the_backend<H: Harness>(h: &H) {
    let backend = h.backend();
    let looks = claim(&name("k"));
    let times = [(); 2].map(|()| mark(&backend, &looks, TICK, Begin));
    let here = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let mut last = 0;
    for time in times {
        let now = time.await.now;
        assert!(now >= last, "{now} after {last}");
        assert!(Duration::from_micros(now).abs_diff(here) < MOMENT, "{now} at {here:?}");
        last = now;
    }
}
