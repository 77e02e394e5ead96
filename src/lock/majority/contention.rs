//! Which process asks first, when several wait for a name.
//!
//! A release wakes them all. Each asks after a random time, so that mostly one of them finds a
//! majority free.
//!
//! A process that takes a lock again and again may meet no other, and does not know that others
//! wait. So it gives way from time to time.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::{key::Name, sync::lock};

/// For how long a name counts as contended after another claim was in the way.
const CONTENDED: Duration = Duration::from_secs(1);
/// The longest pause before a claim of a contended name.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);
/// A process that takes a lock again this soon takes it from waiters that are just woken.
const AGAIN: Duration = Duration::from_millis(5);
/// How often such a process gives way, and for how long.
const TURN: Duration = Duration::from_millis(50);
const GIVE_WAY: Duration = Duration::from_millis(2);
/// The number of names that are remembered.
const NAMES: usize = 1024;

/// The names that this process had of late, or for which other processes were in the way.
#[derive(Default)]
pub(super) struct Contention(Mutex<HashMap<Name, Contended>>);

struct Contended {
    /// Until when it counts as contended.
    until: Instant,
    /// When this process had the lock last.
    released: Instant,
    /// When this process gave way last, or came to the lock after a while.
    turn: Instant,
}

impl Contention {
    /// Returns how long a claim waits before it asks, if it is to wait.
    pub(super) fn pause(&self, name: &Name) -> Option<Duration> {
        let (mut names, now) = (lock(&self.0), Instant::now());
        let one = names.get_mut(name)?;
        let is_again = now - one.released < AGAIN;
        if one.until > now {
            // The process that had the lock last comes behind most others.
            let least = if is_again { 0.5 } else { 0.0 };
            return Some(LONGEST_PAUSE.mul_f64(least + (1.0 - least) * fastrand::f64()));
        }
        if is_again && now - one.turn < TURN {
            return None;
        }
        one.turn = now;
        is_again.then_some(GIVE_WAY)
    }

    /// Notes that another claim was in the way.
    pub(super) fn met(&self, name: &Name) {
        self.note(name, |one, now| one.until = now + CONTENDED);
    }

    /// Notes that this process has the lock no longer.
    pub(super) fn released(&self, name: &Name) {
        self.note(name, |one, now| one.released = now);
    }

    fn note(&self, name: &Name, change: impl FnOnce(&mut Contended, Instant)) {
        let (mut names, now) = (lock(&self.0), Instant::now());
        if names.len() >= NAMES {
            names.retain(|_, one| one.until > now);
        }
        if names.len() < NAMES {
            let new = || Contended { until: now, released: now, turn: now };
            change(names.entry(name.clone()).or_insert_with(new), now);
        }
    }
}
