//! Which process asks first, when several wait for a name.
//!
//! A release wakes them all. A process that has waited for less time than it had to of late lets
//! the others ask first. So the one that has waited longest mostly comes first, and the one that
//! had the lock last comes last.
//!
//! A process that takes a lock again and again may meet no other, and does not know that others
//! wait. So it gives way from time to time.

use std::{collections::HashMap, sync::Mutex, time::Duration};

use tokio::time::Instant;

use crate::{key::Name, sync::lock};

/// For how long a name counts as contended after another claim was in the way.
const CONTENDED: Duration = Duration::from_secs(1);
/// The least and the longest pause of a process that had the lock last. In between, it is this part
/// of the wait, so that many processes stay apart.
const GIVE_WAY: Duration = Duration::from_millis(4);
const LONG_WAY: Duration = Duration::from_millis(12);
const WAIT_PART: u32 = 6;
/// After so much more waiting, a long wait counts no more. That depends on the time and not on the
/// number of holds, for a process that has many would ask ever sooner.
const FORGET: Duration = Duration::from_secs(2);
/// A shorter pause would last for a millisecond, which is the step of the timer.
const SHORTEST: Duration = Duration::from_micros(500);
/// A process that takes a lock again this soon takes it from waiters that are just woken.
const AGAIN: Duration = Duration::from_millis(5);
/// How often such a process gives way.
const TURN: Duration = Duration::from_millis(50);
/// The number of names that are remembered.
const NAMES: usize = 1024;

/// The names that this process had of late, or for which other processes were in the way.
#[derive(Default)]
pub(super) struct Contention(Mutex<HashMap<Name, Contended>>);

struct Contended {
    /// Until when it counts as contended.
    until: Instant,
    /// When this process began to wait, or released the lock.
    since: Instant,
    /// When this process gave way last, or came to the lock after a while.
    turn: Instant,
    /// The longest wait of this process of late.
    wait: Duration,
}

impl Contention {
    /// Returns how long a claim waits before it asks, if it is to wait.
    pub(super) fn pause(&self, name: &Name) -> Option<Duration> {
        let (mut names, now) = (lock(&self.0), Instant::now());
        let one = names.get_mut(name)?;
        let waited = now - one.since;
        if one.until > now {
            let part = (1.0 - waited.div_duration_f64(one.wait)).max(0.0);
            let longest = (one.wait / WAIT_PART).clamp(GIVE_WAY, LONG_WAY);
            // The rest is left to chance. Otherwise two processes whose waits are short, and two
            // whose waits are long, would keep their order.
            let pause = longest.mul_f64(part * (part + (1.0 - part) * fastrand::f64()));
            return (pause > SHORTEST).then_some(pause);
        }
        let gives_way = waited < AGAIN && now - one.turn >= TURN;
        if gives_way || waited >= AGAIN {
            one.turn = now;
        }
        gives_way.then_some(GIVE_WAY / 2)
    }

    /// Notes that another claim was in the way.
    pub(super) fn met(&self, name: &Name) {
        self.note(name, |one, now| one.until = now + CONTENDED);
    }

    /// Notes that this process has the lock.
    pub(super) fn won(&self, name: &Name) {
        self.note(name, |one, now| {
            let waited = now - one.since;
            let left = 1.0 - waited.div_duration_f64(FORGET);
            one.wait = one.wait.mul_f64(left.max(0.0)).max(waited).max(GIVE_WAY);
        });
    }

    /// Notes that this process has the lock no longer.
    pub(super) fn released(&self, name: &Name) {
        self.note(name, |one, now| one.since = now);
    }

    fn note(&self, name: &Name, change: impl FnOnce(&mut Contended, Instant)) {
        let (mut names, now) = (lock(&self.0), Instant::now());
        if names.len() >= NAMES {
            names.retain(|_, one| one.until > now);
        }
        if names.len() < NAMES {
            let new = || Contended { until: now, since: now, turn: now, wait: GIVE_WAY };
            change(names.entry(name.clone()).or_insert_with(new), now);
        }
    }
}
