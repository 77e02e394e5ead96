//! The end of a flight, and what it brings each of its followers.

use super::members::Epoch;
use crate::sync::checked::OnceLock;

/// How a flight has ended.
pub(super) enum Landing<T> {
    /// With one outcome for all followers. `None` if the leader was dropped without one.
    ForAll(Option<T>),
    /// With an outcome for those who joined before the epoch. The late joiners wait for another.
    Before { epoch: Epoch, outcome: T, late: OnceLock<Option<T>> },
}

/// What a follower got.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Waited<T> {
    Outcome(T),
    /// There is no outcome for this follower, so it joins anew.
    JoinAgain,
}

impl<T> Landing<T> {
    /// Ends the flight for the late joiners. Returns `false` if it had ended for all already.
    pub(super) fn end(&self, outcome: Option<T>) -> bool {
        match self {
            Self::ForAll(_) => false,
            Self::Before { late, .. } => late.set(outcome).is_ok(),
        }
    }

    /// Returns what there is for a follower, by the number that it joined with. `None` if it is a late
    /// joiner that has to wait.
    pub(super) fn of(&self, number: u64) -> Option<Waited<&T>> {
        let outcome = match self {
            Self::ForAll(outcome) => outcome.as_ref(),
            Self::Before { epoch, outcome, .. } if epoch.is_after(number) => Some(outcome),
            Self::Before { late, .. } => late.get()?.as_ref(),
        };
        Some(outcome.map_or(Waited::JoinAgain, Waited::Outcome))
    }

    /// Returns the same as [`of`](Self::of), without a copy.
    pub(super) fn into(self, number: u64) -> Option<Waited<T>> {
        let outcome = match self {
            Self::ForAll(outcome) => outcome,
            Self::Before { epoch, outcome, .. } if epoch.is_after(number) => Some(outcome),
            Self::Before { late, .. } => late.into_inner()?,
        };
        Some(outcome.map_or(Waited::JoinAgain, Waited::Outcome))
    }
}

impl<T: Clone> Waited<&T> {
    pub(super) fn cloned(self) -> Waited<T> {
        match self {
            Self::Outcome(outcome) => Waited::Outcome(outcome.clone()),
            Self::JoinAgain => Waited::JoinAgain,
        }
    }
}
