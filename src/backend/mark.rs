//! The mark of a job: the last tick whose turn was begun.

use std::time::Duration;

use super::Owner;

/// The last tick of a name whose turn was begun. A tick is a number that only grows, in at most 16
/// digits: for jobs, microseconds since 1970. [`Leases::mark`](super::Leases::mark) sets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark {
    /// The tick.
    pub tick: u64,
    /// The owner of the tick's turn, until the turn is done.
    pub begun_by: Option<Owner>,
}

/// The request of [`Leases::mark`](super::Leases::mark): a step of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tick {
    /// The tick.
    pub at: u64,
    /// The step to take.
    pub step: TickStep,
    /// How long the mark is kept after the step.
    pub kept: Duration,
}

/// A step in the life of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TickStep {
    /// The tick begins, if it is greater than the mark.
    Begin,
    /// The tick begins, also if it is the mark and its turn is not done.
    BeginAgain,
    /// The turn of the tick is done.
    Done,
    /// The mark is removed, whichever owner has the mutex. With a mark, only if the mark of the
    /// name is still that mark.
    Forget(Option<Mark>),
}

impl Tick {
    /// Returns whether the step is possible after a mark. A request that is sent twice is possible
    /// both times.
    pub fn is_possible(&self, after: Option<Mark>, owner: Owner) -> bool {
        let Some(mark) = after.filter(|mark| mark.tick >= self.at) else { return true };
        let is_allowed = match self.step {
            TickStep::Begin => mark.begun_by == Some(owner),
            TickStep::BeginAgain => mark.begun_by.is_some(),
            TickStep::Done | TickStep::Forget(_) => true,
        };
        mark.tick == self.at && is_allowed
    }
}

/// The answer to [`Leases::mark`](super::Leases::mark).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    /// The mark before the request.
    pub before: Option<Mark>,
    /// Whether the mark is now the tick of the request, or a mark was removed.
    pub is_set: bool,
    /// The time of the backend: microseconds since 1970.
    pub now: u64,
}
