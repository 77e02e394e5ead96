//! A caller goes away at each point at which it waits.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
};

use testkit::primitives::{Asked, Guard, Pair};

use super::faults::nothing_is_left;
use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(3);
/// Far less than a lease, also on a busy machine.
const AT_ONCE: Duration = Duration::from_secs(1);
/// A future that is not woken for this long waits for an event that will not come.
const PARKED: Duration = Duration::from_millis(150);

/// The progress of a future before it was dropped.
enum Went<T> {
    Through(T),
    /// The future was polled the given number of times, and dropped.
    SoFar,
    /// The future waited, and was dropped.
    Parked,
}

async fn dropped_after<T>(polls: usize, future: impl Future<Output = T>) -> Went<T> {
    let mut future = pin!(future);
    let mut left = polls;
    let polled = poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(cx).map(Some)
    });
    match timeout(PARKED, polled).await {
        Ok(Some(output)) => Went::Through(output),
        Ok(None) => Went::SoFar,
        Err(_) => Went::Parked,
    }
}

/// Another process holds the lock. The wait may be dropped at any point, and the next caller gets
/// the lock at once.
pub async fn a_wait_that_is_dropped_leaves_nothing(pair: Pair) {
    let server = RedisServer::start().await;
    let asked = |locks: &Asked| locks.clone();
    let [a, b, c] = [(); 3].map(|()| Asked::new(&server.url(), "k", LEASE));
    for polls in 1..40 {
        let held = (pair.one.take)(asked(&a)).await.unwrap();
        let went = dropped_after(polls, (pair.rival.take)(asked(&b))).await;
        assert!(!matches!(went, Went::Through(_)), "the lock has two holders");
        held.give_back().await.unwrap();
        let asking = Instant::now();
        let next = timeout(LIMIT, (pair.one.take)(asked(&c))).await.unwrap().unwrap();
        let took = asking.elapsed();
        assert!(took < AT_ONCE, "{polls} polls: {took:?}");
        next.give_back().await.unwrap();
        if matches!(went, Went::Parked) {
            assert!(polls > 1, "the wait was parked before its first claim");
            nothing_is_left(&server).await;
            return;
        }
    }
    panic!("the wait was never parked");
}

/// The lock is free. The acquisition may be dropped at any point, and the next caller gets the lock
/// at once.
pub async fn a_try_that_is_dropped_leaves_nothing(pair: Pair) {
    let server = RedisServer::start().await;
    let a = Asked::new(&server.url(), "k", LEASE);
    let b = Asked::new(&server.url(), "k", LEASE);
    for polls in 1..40 {
        let went = dropped_after(polls, (pair.one.attempt)(a.clone())).await;
        let through = match went {
            Went::Through(taken) => {
                left(taken.unwrap().expect("the free lock was refused")).await;
                true
            }
            _ => false,
        };
        let asking = Instant::now();
        let next = timeout(LIMIT, (pair.rival.take)(b.clone())).await.unwrap().unwrap();
        let took = asking.elapsed();
        assert!(took < AT_ONCE, "{polls} polls: {took:?}");
        next.give_back().await.unwrap();
        if through {
            nothing_is_left(&server).await;
            return;
        }
    }
    panic!("the acquisition never completed");
}

/// The lock passes to a caller of the same process, or of another one. That caller may be dropped
/// at any point from then on, and the next one gets the lock at once.
pub async fn a_handover_that_is_dropped_leaves_nothing(pair: Pair) {
    let server = RedisServer::start().await;
    let [a, b, c] = [(); 3].map(|()| Asked::new(&server.url(), "k", LEASE));
    for receiver in [&a, &b] {
        for polls in 0.. {
            assert!(polls < 40, "the handover was never taken");
            let held = (pair.one.take)(a.clone()).await.unwrap();
            let mut waiting = (pair.rival.take)(receiver.clone());
            assert!(timeout(PARKED, &mut waiting).await.is_err(), "the lock has two holders");
            held.give_back().await.unwrap();
            let went = dropped_after(polls, waiting).await;
            let is_through = matches!(went, Went::Through(_));
            if let Went::Through(taken) = went {
                left(taken.unwrap()).await;
            }
            let asking = Instant::now();
            let next = timeout(LIMIT, (pair.one.take)(c.clone())).await.unwrap().unwrap();
            let took = asking.elapsed();
            assert!(took < AT_ONCE, "{polls} polls: {took:?}");
            next.give_back().await.unwrap();
            if is_through {
                break;
            }
        }
    }
    nothing_is_left(&server).await;
}

/// The release may be dropped at any point. Those that wait get the lock at once, in the same
/// process and in another one, and so does the next caller.
pub async fn an_unlock_that_is_dropped_leaves_nothing(pair: Pair) {
    let server = RedisServer::start().await;
    let [a, b] = [(); 2].map(|()| Asked::new(&server.url(), "k", LEASE));
    for waiter in [None, Some(&a), Some(&b)] {
        for polls in 1.. {
            assert!(polls < 40, "the release never completed");
            let held = (pair.one.take)(a.clone()).await.unwrap();
            let mut waiting = waiter.map(|asked| (pair.rival.take)(asked.clone()));
            if let Some(waiting) = &mut waiting {
                assert!(timeout(PARKED, waiting).await.is_err(), "the lock has two holders");
            }
            let went = dropped_after(polls, held.give_back()).await;
            let asking = Instant::now();
            let next = waiting.unwrap_or_else(|| (pair.rival.take)(b.clone()));
            let next = timeout(LIMIT, next).await.unwrap().unwrap();
            let took = asking.elapsed();
            assert!(took < AT_ONCE, "{polls} polls: {took:?}");
            next.give_back().await.unwrap();
            if let Went::Through(released) = went {
                released.unwrap();
                break;
            }
        }
    }
    nothing_is_left(&server).await;
}

/// Leaves a guard. It releases its lease, but a permit with an id would stay until it ends.
async fn left(guard: Guard) {
    if guard.is_watched() { drop(guard) } else { guard.give_back().await.unwrap() }
}
