//! The callers of one process who wait for one lease stand in line, and only the first contends at the
//! backend.
//!
//! Whoever contends or holds has the line's one [`Seat`]. When he gives the lease back, it passes to the
//! next in line in one round trip, with a new fence; after [`PASSES`] times or [`TURN`] in a row it is
//! released instead, so that other processes get their turn. A seat that is dropped goes to the next in
//! line, who contends then.
//!
//! Of those who want permits, only who waits stands in line: whoever gets his gives the seat up, for there
//! may be more. Where a queue at the backend keeps the order, there is no line.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use hashbrown::{HashMap, hash_map::Entry};
use tokio::{runtime::Handle, sync::oneshot, time::Instant};

use super::{Claim, Held, Mode, Upkeep};
use crate::{backend::Changes, error::BackendErrorKind, key::Name};

/// How often a lease passes on within one process before others get their turn.
const PASSES: u32 = 16;
/// For how long it does.
const TURN: Duration = Duration::from_millis(50);

/// The lines of one engine, each there while someone contends or holds.
#[derive(Clone, Default)]
pub(crate) struct Lines(Arc<Mutex<HashMap<Of, VecDeque<Waiter>>>>);

/// What a line is for.
type Of = (Name, Mode);

/// One who waits in line.
pub(crate) struct Waiter {
    pub(crate) claim: Claim,
    pub(crate) upkeep: Upkeep,
    pub(crate) runtime: Handle,
    call: oneshot::Sender<Call>,
}

/// What someone in line is called for.
pub(crate) enum Call {
    /// The lease is his.
    Take(Held),
    /// It is his turn to contend. If the lease may have been passed to him already: how that failed.
    Contend { seat: Seat, passed: Option<BackendErrorKind> },
}

/// The right to contend for a lease, or to hold it, for this process.
pub(crate) struct Seat {
    lines: Lines,
    of: Of,
    passes: u32,
    since: Instant,
    /// The subscription of who contended, for the next who will.
    changes: Option<Changes>,
}

/// Where one is who wanted a place in a line.
pub(crate) enum Entered {
    /// There is no line to stand in.
    None,
    First(Seat),
    Behind(oneshot::Receiver<Call>),
}

impl Lines {
    /// Takes a place, before the first try or because it `waits` after one.
    pub(crate) fn enter(&self, claim: &Claim, upkeep: Upkeep, waits: bool) -> Entered {
        if claim.mode.is_ordered() {
            return Entered::None;
        }
        let of = (claim.name.clone(), claim.mode);
        match self.lines().entry(of) {
            Entry::Occupied(mut line) => {
                let (call, called) = oneshot::channel();
                let (claim, runtime) = (claim.clone(), Handle::current());
                let line = line.get_mut();
                // Those who left are not kept for as long as the lease is held.
                if line.len() == line.capacity() {
                    line.retain(|waiter| !waiter.call.is_closed());
                }
                line.push_back(Waiter { claim, upkeep, runtime, call });
                Entered::Behind(called)
            }
            Entry::Vacant(_) if matches!(claim.mode, Mode::Permit { .. }) && !waits => {
                Entered::None
            }
            Entry::Vacant(line) => {
                let of = line.key().clone();
                line.insert(VecDeque::new());
                Entered::First(Seat::new(self.clone(), of))
            }
        }
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<Of, VecDeque<Waiter>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    /// Calls him; whatever he was called for is dropped if he has left.
    pub(crate) fn call(self, call: Call) {
        drop(self.call.send(call));
    }
}

impl Seat {
    fn new(lines: Lines, of: Of) -> Self {
        Self { lines, of, passes: 0, since: Instant::now(), changes: None }
    }

    /// The turn of this process begins: the lease was won from others.
    pub(crate) fn begin(&mut self) {
        self.passes = 0;
        self.since = Instant::now();
    }

    /// Keeps a subscription for the next in line. (If none comes, it is ended with the hold, and not while others wait.)
    pub(crate) fn keep(&mut self, changes: Option<Changes>) {
        self.changes = changes;
    }

    /// The subscription of the last who contended.
    pub(crate) fn kept(&mut self) -> Option<Changes> {
        self.changes.take()
    }

    /// The next in line to pass the lease to, while the turn lasts.
    pub(crate) fn next(&mut self) -> Option<Waiter> {
        if self.passes >= PASSES || self.since.elapsed() >= TURN {
            return None;
        }
        self.passes += 1;
        first(self.lines.lines().get_mut(&self.of)?)
    }
}

/// The first who has not left.
fn first(line: &mut VecDeque<Waiter>) -> Option<Waiter> {
    std::iter::from_fn(|| line.pop_front()).find(|waiter| !waiter.call.is_closed())
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut lines = self.lines.lines();
        let Some(line) = lines.get_mut(&self.of) else { return };
        let Some(waiter) = first(line) else {
            lines.remove(&self.of);
            return;
        };
        // Without the lock: if he leaves just now, his seat is dropped here in turn.
        drop(lines);
        let mut seat = Self::new(self.lines.clone(), self.of.clone());
        seat.changes = self.changes.take();
        waiter.call(Call::Contend { seat, passed: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{Family, Key, Namespace};

    /// One holds it for long, and others try again and again.
    #[tokio::test]
    async fn those_who_left_are_not_kept_while_it_is_held() -> Result<(), crate::Error> {
        let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("k"), 512)?;
        let claim = Claim::new(name.clone(), Mode::Exclusive, TURN, TURN);
        let upkeep = Upkeep { refresh: None, max_hold: Duration::MAX };
        let lines = Lines::default();
        let Entered::First(seat) = lines.enter(&claim, upkeep, false) else {
            panic!("nobody is there")
        };
        let Entered::Behind(stays) = lines.enter(&claim, upkeep, false) else { panic!("no line") };
        for _ in 0..10_000 {
            drop(lines.enter(&claim, upkeep, false));
        }
        let of = (name, Mode::Exclusive);
        assert!(lines.lines().get(&of).is_some_and(|line| line.len() < 16));
        drop(seat);
        assert!(matches!(stays.await, Ok(Call::Contend { .. })));
        assert!(lines.lines().is_empty());
        Ok(())
    }
}
