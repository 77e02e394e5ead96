//! The end of a flight, and what it brings each of its followers.

use crate::sync::checked::OnceLock;

/// A moment in a flight. An outcome that belongs to it may go to the callers that joined before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// How many callers had joined.
    pub(super) joined: u64,
}

impl Epoch {
    /// The epoch that every caller joined before.
    pub(crate) const END: Self = Self { joined: u64::MAX };
}

/// How a flight has ended.
pub(super) enum Landing<T> {
    /// With one outcome for all followers. `None` if the leader was dropped without one.
    ForAll(Option<T>),
    /// With an outcome for the callers that joined before the epoch. Late joiners wait for another.
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
    /// Returns what there is for a follower, by the number that it joined with. `None` if it is a
    /// late joiner that has to wait.
    pub(super) fn of(&self, number: u64) -> Option<Waited<&T>> {
        let outcome = match self {
            Self::ForAll(outcome) => outcome.as_ref(),
            Self::Before { epoch, outcome, .. } if number < epoch.joined => Some(outcome),
            Self::Before { late, .. } => late.get()?.as_ref(),
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
