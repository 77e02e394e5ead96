//! The waiters of a process that are told of changes.

use bellwether::backend::{Change, Changes, Channels, HandedHold, Handover, Owner};
use futures_util::FutureExt;

use crate::prelude::*;

/// Returns the next change, if there is one.
fn poll(changes: &mut Changes) -> Option<Change> {
    changes.next().now_or_never()
}

/// A grant reaches the waiters that it is for and those without an owner. The many others of the
/// process sleep.
#[test]
fn a_push_for_one_owner_wakes_no_waiter_with_another_one() {
    let channels = Channels::default();
    let topic = Arc::from("t");
    let mine = Owner::fresh();
    let granted = Change::Granted(Handover {
        owner: mine,
        fence: 1,
        ends: Duration::ZERO,
        hold: HandedHold::Mutex,
    });
    let others = std::iter::repeat_with(|| Some(Owner::fresh())).take(3000);
    let owners = [Some(mine), Some(mine), None].into_iter().chain(others);
    let mut waiters: Vec<_> = owners.map(|owner| channels.listen(&topic, owner)).collect();
    channels.push(&topic, granted.clone());
    channels.push("t2", Change::Wake);
    let told: Vec<_> = waiters.iter_mut().map(poll).collect();
    assert!(told[..3].iter().all(|told| told.as_ref() == Some(&granted)));
    assert_eq!(told.iter().flatten().count(), 3);
    channels.push(&topic, Change::Wake);
    assert!(waiters.iter_mut().all(|waiter| poll(waiter) == Some(Change::Wake)));
}

#[test]
fn a_slow_waiter_looks_again() {
    let channels = Channels::default();
    let topic = Arc::from("t");
    let mut changes = channels.listen(&topic, None);
    for fence in 0..17 {
        channels.push(&topic, Change::Invalidated(fence));
    }
    assert_eq!(poll(&mut changes), Some(Change::Wake));
    assert_eq!(poll(&mut changes), None);
}
