//! The guarantees of a flight in every order of its threads, by a model checker. `scripts/loom`
//! runs it.
//!
//! A count of late joiners that is off by one makes a test fail. A follower that does not look
//! under the lock sleeps through a landing, and the check does not end.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Waker},
};

use ::loom::{future::block_on, model, thread};

use super::{Epoch, Flights, Follower, Joined, Leader, Limits, Notice, flight::LeaderWork};
use crate::{
    key::Key,
    sync::checked::{AtomicU64, TaskTracker},
};

const RELAXED: Ordering = Ordering::Relaxed;

fn flights(cancels_abandoned: bool) -> Arc<Flights<u64>> {
    let limits = Limits { per_flight: usize::MAX, in_all: usize::MAX };
    Flights::new(cancels_abandoned, limits, TaskTracker::new())
}

fn key() -> Key {
    Key::from("key")
}

fn cell() -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(0))
}

/// Asks for the value of a source, which itself orders nothing. A leader leads in its own thread.
fn ask(flights: &Arc<Flights<u64>>, source: &AtomicU64) -> u64 {
    loop {
        let Joined { mut follower, leader } = join(flights);
        if let Some(leader) = leader {
            lead(leader, source);
        }
        if let Some(value) = block_on(follower.wait(false)) {
            return value;
        }
    }
}

fn lead(mut leader: Leader<u64>, source: &AtomicU64) {
    let epoch = leader.begin_epoch();
    let value = source.load(RELAXED);
    if leader.land(Some(value), epoch) {
        leader.land_late(Some(source.load(RELAXED)));
    }
}

/// The work of a leader that needs a task of its own for it.
fn work(mut leader: Leader<u64>, done: Arc<AtomicU64>) -> LeaderWork {
    Box::pin(async move {
        leader.own_task().await;
        done.store(1, RELAXED);
        let epoch = leader.begin_epoch();
        leader.land(Some(7), epoch);
    })
}

fn join(flights: &Arc<Flights<u64>>) -> Joined<u64> {
    flights.join(&key(), Default::default()).unwrap_or_else(|_| unreachable!())
}

/// Begins a flight, as its first caller.
fn begin(flights: &Arc<Flights<u64>>) -> (Follower<u64>, Leader<u64>) {
    let Joined { follower, leader } = join(flights);
    (follower, leader.unwrap())
}

/// Joins until there is an outcome. A leader carries its work.
fn carry(flights: &Arc<Flights<u64>>) {
    loop {
        let Joined { mut follower, leader } = join(flights);
        if let Some(leader) = leader {
            follower.bring(work(leader, cell()));
        }
        if let Some(outcome) = block_on(follower.wait(false)) {
            break assert_eq!(outcome, 7);
        }
    }
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn is_told(leader: &Leader<u64>) -> bool {
    let mut told = std::pin::pin!(leader.told(Notice::Unwanted));
    told.as_mut().poll(&mut context()).is_ready()
}

/// A caller that knows of a change joins, while a leader asks for the value that has changed.
#[test]
fn a_caller_is_served_nothing_older_than_its_question() {
    model(|| {
        let (flights, source) = (flights(false), cell());
        let (theirs, changed) = (flights.clone(), source.clone());
        let knows = thread::spawn(move || {
            changed.store(1, RELAXED);
            assert_eq!(ask(&theirs, &changed), 1);
        });
        ask(&flights, &source);
        knows.join().unwrap();
        assert_eq!(flights.len(), 0);
    });
}

/// As above, with two callers: the one that joined before the epoch must not take the late one
/// along.
#[test]
fn late_joiners_are_told_apart() {
    model(|| {
        let (flights, source) = (flights(false), cell());
        let (mut follower, leader) = begin(&flights);
        let callers: Vec<_> = (0..2)
            .map(|at| {
                let (flights, source) = (flights.clone(), source.clone());
                thread::spawn(move || {
                    source.fetch_or(1 << at, RELAXED);
                    assert_ne!(ask(&flights, &source) & 1 << at, 0);
                })
            })
            .collect();
        lead(leader, &source);
        assert!(block_on(follower.wait(false)).is_some());
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}

/// A leader that is dropped without an outcome leaves no follower waiting.
#[test]
fn a_leader_that_is_dropped_sends_its_followers_on() {
    model(|| {
        let (flights, source) = (flights(false), cell());
        let (mut follower, leader) = begin(&flights);
        let (theirs, value) = (flights.clone(), source.clone());
        let other = thread::spawn(move || ask(&theirs, &value));
        drop(leader);
        assert_eq!(block_on(follower.wait(false)), None);
        other.join().unwrap();
        assert_eq!(flights.len(), 0);
    });
}

/// The work moves to a task while its caller carries it, polls it or leaves, and ends in any case.
#[test]
fn the_work_moves_and_ends() {
    for leaves in [false, true] {
        model(move || {
            let flights = flights(false);
            let (mut follower, leader) = begin(&flights);
            let theirs = flights.clone();
            let other = thread::spawn(move || carry(&theirs));
            follower.bring(work(leader, cell()));
            match leaves {
                true => drop(std::pin::pin!(follower.wait(false)).as_mut().poll(&mut context())),
                false => assert_eq!(block_on(follower.wait(false)), Some(7)),
            }
            drop(follower);
            other.join().unwrap();
        });
    }
}

/// Of callers that leave at the same time, the last one says that the flight is unwanted.
#[test]
fn a_flight_that_all_callers_have_left_is_unwanted() {
    model(|| {
        let flights = flights(true);
        let (follower, leader) = begin(&flights);
        let theirs = flights.clone();
        let other = thread::spawn(move || drop(join(&theirs)));
        drop(follower);
        other.join().unwrap();
        assert!(is_told(&leader));
    });
}

#[test]
fn a_flight_that_a_caller_has_joined_is_wanted() {
    model(|| {
        let flights = flights(true);
        let (follower, leader) = begin(&flights);
        let (theirs, leader) = (flights.clone(), Arc::new(leader));
        let led = leader.clone();
        let other = thread::spawn(move || {
            let joined = join(&theirs);
            assert!(joined.leader.is_some() || !is_told(&led));
            joined
        });
        drop(follower);
        let joined = other.join().unwrap();
        assert_eq!(joined.leader.is_none(), !is_told(&leader));
    });
}

/// A shutdown finds each leader that has begun, and none begins after it.
#[test]
fn a_leader_counts_before_a_shutdown_or_does_not_begin() {
    model(|| {
        let (limits, leaders) = (Limits { per_flight: 1, in_all: 1 }, TaskTracker::new());
        let flights = Flights::<u64>::new(false, limits, leaders.clone());
        let theirs = flights.clone();
        let other = thread::spawn(move || theirs.join(&key(), Default::default()));
        flights.close();
        let counted = leaders.len();
        let joined = other.join().unwrap();
        assert_eq!(joined.is_ok(), counted == 1);
    });
}

/// A follower that leaves while the flight lands takes no wake-up from another.
#[test]
fn no_waiter_sleeps_through_the_wake_up() {
    model(|| {
        let flights = flights(false);
        let (_follower, mut leader) = begin(&flights);
        let others: Vec<_> = [true, false]
            .into_iter()
            .map(|leaves| {
                let mut follower = join(&flights).follower;
                thread::spawn(move || match leaves {
                    true => {
                        drop(std::pin::pin!(follower.wait(false)).as_mut().poll(&mut context()))
                    }
                    false => assert_eq!(block_on(follower.wait(false)), Some(7)),
                })
            })
            .collect();
        leader.land(Some(7), Epoch::END);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// A notice that is given while the leader begins to wait for it reaches the leader.
#[test]
fn a_notice_reaches_the_leader() {
    model(|| {
        let flights = flights(false);
        let (follower, leader) = begin(&flights);
        let telling = thread::spawn(move || {
            follower.tell(Notice::LateJoiner);
            follower.tell(Notice::NeededByLoader);
        });
        block_on(leader.told(Notice::NeededByLoader));
        block_on(leader.late_joiner());
        telling.join().unwrap();
    });
}

/// A leader that lands a head. It asks once more for each caller that joins too late for it.
fn lead_head(leader: &Leader<u64>, source: &AtomicU64, callers: u64) {
    let (mut epoch, head) = (leader.begin_epoch(), source.load(RELAXED));
    leader.land_head(head, epoch);
    while epoch.joined < callers {
        block_on(leader.late_joiner());
        epoch = leader.begin_epoch();
        assert!(epoch.joined < callers || source.load(RELAXED) == 1);
        leader.land_head(head, epoch);
    }
}

/// A caller that joins around the landing of a head is admitted to it, by a question that comes
/// after what the caller did. The leader never lands for good.
#[test]
fn a_late_joiner_is_admitted_to_the_head() {
    model(|| {
        let (flights, source) = (flights(false), cell());
        let (_follower, leader) = begin(&flights);
        let (flight, changed) = (leader.flight.clone().unwrap(), source.clone());
        let knows = thread::spawn(move || {
            changed.store(1, RELAXED);
            let mut follower = flight.join(usize::MAX).unwrap();
            assert!(block_on(follower.wait(true)).is_some());
        });
        lead_head(&leader, &source, 2);
        knows.join().unwrap();
    });
}

/// A head that is closed leaves no late joiner waiting, and no caller joins it again.
#[test]
fn a_head_that_is_closed_sends_late_joiners_on() {
    model(|| {
        let (flights, source) = (flights(false), cell());
        let (_follower, leader) = begin(&flights);
        let theirs = flights.clone();
        let other = thread::spawn(move || {
            let Joined { mut follower, leader } = join(&theirs);
            leader.is_some() || block_on(follower.wait(true)).is_none()
        });
        leader.land_head(source.load(RELAXED), Epoch { joined: 1 });
        leader.close_head();
        assert!(other.join().unwrap());
        assert_eq!(flights.len(), 0);
    });
}

/// A flight is told that it is unwanted, or a caller has the head, but not both.
#[test]
fn a_flight_that_has_served_a_caller_is_wanted() {
    model(|| {
        let flights = flights(true);
        let (mut follower, leader) = begin(&flights);
        let other = join(&flights).follower;
        let leaves = thread::spawn(move || drop(other));
        leader.land_head(7, leader.begin_epoch());
        assert_eq!(block_on(follower.wait(true)), Some(7));
        drop(follower);
        leaves.join().unwrap();
        assert!(!is_told(&leader));
    });
}
