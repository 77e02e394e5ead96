//! The servers that took the place of others, which may not know of what these did last.

use std::sync::Mutex;

use tokio::{sync::watch, time::Instant};

use super::sentinel::HostPort;
use crate::sync::lock;

/// Notes and counts the replacements of servers, for those that watch them.
#[derive(Default)]
pub(in super::super) struct Replacements(watch::Sender<Replaced>);

/// The replacements until now.
#[derive(Clone, Copy, Default)]
pub(in super::super) struct Replaced {
    count: usize,
    /// When the last server was replaced.
    last: Option<Instant>,
}

/// The master to which a connection was made last.
#[derive(Default)]
pub(super) struct LastMaster(Mutex<Option<HostPort>>);

impl Replacements {
    /// Notes that a server was replaced. Requests may go to the new one from now on.
    pub(super) fn add(&self) {
        self.0.send_modify(|replaced| {
            *replaced = Replaced { count: replaced.count + 1, last: Some(Instant::now()) };
        });
    }

    /// Returns a number other than zero, which changes with each replacement.
    pub(super) fn number(&self) -> usize {
        self.0.borrow().count + 1
    }

    /// Returns whether a server was replaced at this time or later.
    pub(in super::super) fn came_after(&self, time: Instant) -> bool {
        self.0.borrow().last.is_some_and(|last| last >= time)
    }

    pub(in super::super) fn watch(&self) -> watch::Receiver<Replaced> {
        self.0.subscribe()
    }

    /// Wakes the watchers as a replacement does.
    pub(in super::super) fn wake(&self) {
        self.0.send_modify(|_| ());
    }
}

impl LastMaster {
    /// Notes the master to which the connection was made now. Returns whether it was another one
    /// before.
    pub(super) fn moves_to(&self, now: &HostPort) -> bool {
        lock(&self.0).replace(now.clone()).is_some_and(|before| before != *now)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_master_that_is_connected_to_again_was_not_replaced() {
        let last = LastMaster::default();
        let [one, other] = [1, 2].map(|port| ("host".to_owned(), port));
        let moves = [&one, &one, &other, &other, &one].map(|master| last.moves_to(master));
        assert_eq!(moves, [false, false, true, false, true]);
    }

    #[test]
    fn each_replacement_has_a_number_and_a_time() {
        let (replacements, begun) = (Replacements::default(), Instant::now());
        assert_eq!((replacements.number(), replacements.came_after(begun)), (1, false));
        replacements.add();
        assert_eq!((replacements.number(), replacements.came_after(begun)), (2, true));
        assert!(!replacements.came_after(Instant::now() + Duration::from_secs(1)));
        replacements.wake();
        assert_eq!(replacements.number(), 2);
    }
}
