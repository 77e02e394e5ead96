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

use super::{Epoch, Flights, Follower, Joined, Landing, Leader, Limits};
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
        if let Landing::Outcome(value) = block_on(follower.wait(false)) {
            return value;
        }
    }
}

fn lead(leader: Leader<u64>, source: &AtomicU64) {
    let epoch = leader.begin_epoch();
    let value = source.load(RELAXED);
    if leader.land(Landing::Outcome(value), epoch) {
        leader.land_late(Landing::Outcome(source.load(RELAXED)));
    }
}

fn join(flights: &Arc<Flights<u64>>) -> Joined<u64> {
    flights.join(&key(), Default::default()).unwrap_or_else(|_| unreachable!())
}

/// Begins a flight, as its first caller.
fn begin(flights: &Arc<Flights<u64>>) -> (Follower<u64>, Leader<u64>) {
    let Joined { follower, leader } = join(flights);
    (follower, leader.unwrap())
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

fn is_abandoned(leader: &Leader<u64>) -> bool {
    let mut abandoned = std::pin::pin!(leader.abandoned());
    abandoned.as_mut().poll(&mut context()).is_ready()
}

/// A caller that knows of a change joins, while a leader asks for the value that has changed.
#[test]
fn a_caller_is_served_nothing_older_than_its_question() {
    model(|| {
        let flights = flights(false);
        let source = cell();
        let theirs = flights.clone();
        let changed = source.clone();
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
        let flights = flights(false);
        let source = cell();
        let (mut follower, leader) = begin(&flights);
        let callers: Vec<_> = (0..2)
            .map(|at| {
                let flights = flights.clone();
                let source = source.clone();
                thread::spawn(move || {
                    source.fetch_or(1 << at, RELAXED);
                    assert_ne!(ask(&flights, &source) & 1 << at, 0);
                })
            })
            .collect();
        lead(leader, &source);
        assert_ne!(block_on(follower.wait(false)), Landing::JoinAnew);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
    });
}

/// A leader that is dropped without an outcome leaves no follower waiting.
#[test]
fn a_leader_that_is_dropped_sends_its_followers_on() {
    model(|| {
        let flights = flights(false);
        let source = cell();
        let (mut follower, leader) = begin(&flights);
        let theirs = flights.clone();
        let value = source.clone();
        let other = thread::spawn(move || ask(&theirs, &value));
        drop(leader);
        assert_eq!(block_on(follower.wait(false)), Landing::JoinAnew);
        other.join().unwrap();
        assert_eq!(flights.len(), 0);
    });
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
        assert!(is_abandoned(&leader));
    });
}

#[test]
fn a_flight_that_a_caller_has_joined_is_wanted() {
    model(|| {
        let flights = flights(true);
        let (follower, leader) = begin(&flights);
        let theirs = flights.clone();
        let leader = Arc::new(leader);
        let led = leader.clone();
        let other = thread::spawn(move || {
            let joined = join(&theirs);
            assert!(joined.leader.is_some() || !is_abandoned(&led));
            joined
        });
        drop(follower);
        let joined = other.join().unwrap();
        assert_eq!(joined.leader.is_none(), !is_abandoned(&leader));
    });
}

/// A shutdown finds each leader that has begun, and none begins after it.
#[test]
fn a_leader_counts_before_a_shutdown_or_does_not_begin() {
    model(|| {
        let limits = Limits { per_flight: 1, in_all: 1 };
        let leaders = TaskTracker::new();
        let flights = Flights::<u64>::new(false, limits, leaders.clone());
        let theirs = flights.clone();
        let other = thread::spawn(move || theirs.join(&key(), Default::default()));
        flights.close();
        let counted = leaders.len();
        let joined = other.join().unwrap();
        assert!(joined.is_err() || counted == 1);
        drop(joined);
        assert_eq!(leaders.len(), 0);
    });
}

/// A follower that leaves while the flight lands takes no wake-up from another.
#[test]
fn no_waiter_sleeps_through_the_wake_up() {
    model(|| {
        let flights = flights(false);
        let (_follower, leader) = begin(&flights);
        let others: Vec<_> = [true, false]
            .into_iter()
            .map(|leaves| {
                let mut follower = join(&flights).follower;
                thread::spawn(move || match leaves {
                    true => {
                        drop(std::pin::pin!(follower.wait(false)).as_mut().poll(&mut context()))
                    }
                    false => assert_eq!(block_on(follower.wait(false)), Landing::Outcome(7)),
                })
            })
            .collect();
        leader.land(Landing::Outcome(7), Epoch::END);
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

/// What a follower tells while the leader begins to wait for it reaches the leader.
#[test]
fn the_leader_learns_of_a_loader_that_waits() {
    model(|| {
        let flights = flights(false);
        let (follower, leader) = begin(&flights);
        let telling = thread::spawn(move || follower.notify_of_loader());
        block_on(leader.needed_by_loader());
        telling.join().unwrap();
    });
}

/// A leader that lands a head. It asks once more for each caller that joins too late for it.
fn lead_head(leader: &Leader<u64>, source: &AtomicU64, callers: u64) {
    let mut epoch = leader.begin_epoch();
    let head = source.load(RELAXED);
    leader.land_head(head, epoch);
    while epoch.joined < callers {
        block_on(leader.late_joiner());
        epoch = leader.begin_epoch();
        assert!(epoch.joined < callers || source.load(RELAXED) == 1);
        leader.admit_to_head(epoch);
    }
}

/// A caller that joins around the landing of a head is admitted to it, by a question that comes
/// after what the caller did. The leader never lands for good.
#[test]
fn a_late_joiner_is_admitted_to_the_head() {
    model(|| {
        let flights = flights(false);
        let source = cell();
        let (_follower, leader) = begin(&flights);
        let flight = leader.flight.clone().unwrap();
        let changed = source.clone();
        let knows = thread::spawn(move || {
            changed.store(1, RELAXED);
            let mut follower = flight.join().unwrap().unwrap();
            assert_ne!(block_on(follower.wait(true)), Landing::JoinAnew);
        });
        lead_head(&leader, &source, 2);
        knows.join().unwrap();
    });
}

/// A head that is closed leaves no late joiner waiting, and no caller joins it again.
#[test]
fn a_head_that_is_closed_sends_late_joiners_on() {
    model(|| {
        let flights = flights(false);
        let source = cell();
        let (_follower, leader) = begin(&flights);
        let theirs = flights.clone();
        let other = thread::spawn(move || {
            let Joined { mut follower, leader } = join(&theirs);
            leader.is_some() || block_on(follower.wait(true)) == Landing::JoinAnew
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
        assert_eq!(block_on(follower.wait(true)), Landing::Outcome(7));
        drop(follower);
        leaves.join().unwrap();
        assert!(!is_abandoned(&leader));
    });
}

/// A lone look, a flight and a caller that leaves give back the use of their key.
#[test]
fn the_next_lone_look_begins_when_no_caller_asks_any_more() {
    model(|| {
        let flights = flights(true);
        let theirs = flights.clone();
        let source = cell();
        let other = thread::spawn(move || match theirs.begin_lone_look(&key()) {
            Some(key_use) => drop(key_use),
            None => {
                ask(&theirs, &source);
            }
        });
        let (follower, leader) = begin(&flights);
        drop(follower);
        lead(leader, &cell());
        other.join().unwrap();
        assert!(flights.begin_lone_look(&key()).is_some());
    });
}
