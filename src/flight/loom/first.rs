//! Flights that land twice.

use super::*;
use crate::flight::Epoch;

/// A leader that lands twice. It asks once more for each late joiner of its first landing.
fn lead_twice(leader: &Leader<u64>, source: &AtomicU64, callers: u64) {
    let mut epoch = leader.begin_epoch();
    leader.land_first(source.load(RELAXED), epoch);
    while epoch.joined < callers {
        block_on(leader.late_joiner());
        epoch = leader.begin_epoch();
        assert!(epoch.joined < callers || source.load(RELAXED) == 1);
        leader.admit(epoch);
    }
}

/// A caller that joins a flight around its first landing is admitted to it, by a question that
/// comes after what the caller did. The leader never lands for good.
#[test]
fn a_late_joiner_is_admitted_to_the_first_landing() {
    model(|| {
        let (group, source) = (group(Abandoned::Finish), cell());
        let (_follower, leader) = begin(&group);
        let (flight, changed) = (leader.flight.clone(), source.clone());
        let knows = thread::spawn(move || {
            changed.store(1, RELAXED);
            let mut follower = Follower::new(flight);
            follower.take_first();
            assert!(matches!(block_on(follower.wait()), Waited::Outcome(_)));
        });
        lead_twice(&leader, &source, 2);
        knows.join().unwrap();
    });
}

/// A first landing that is closed leaves no late joiner waiting, and no caller joins it again.
#[test]
fn a_first_landing_that_is_closed_sends_late_joiners_on() {
    model(|| {
        let (group, source) = (group(Abandoned::Finish), cell());
        let (_follower, leader) = begin(&group);
        let theirs = group.clone();
        let other = thread::spawn(move || {
            let Joined { mut follower, leader } = join(&theirs);
            follower.take_first();
            leader.is_some() || block_on(follower.wait()) == Waited::JoinAgain
        });
        leader.land_first(source.load(RELAXED), Epoch { joined: 1 });
        leader.close_first();
        assert!(other.join().unwrap());
        assert_eq!(group.len(), 0);
    });
}

/// A flight is told that it is unwanted, or a caller has the first landing, but not both.
#[test]
fn a_flight_that_has_served_a_caller_is_wanted() {
    model(|| {
        let group = group(Abandoned::Cancel);
        let (mut follower, leader) = begin(&group);
        follower.take_first();
        let other = join(&group).follower;
        let leaves = thread::spawn(move || drop(other));
        leader.land_first(7, leader.begin_epoch());
        assert_eq!(block_on(follower.wait()), Waited::Outcome(7));
        drop(follower);
        leaves.join().unwrap();
        assert!(!is_told(&leader));
    });
}
