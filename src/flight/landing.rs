//! The landings of a flight, and what they bring each of its followers.

use std::sync::atomic::Ordering;

use crate::sync::checked::{AtomicU64, OnceLock};

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

/// The first of two landings: an outcome that callers may have while the flight is under way.
///
/// Its state is one word: how many callers are admitted to the outcome, and whether more may be. A
/// follower reads it again under the lock of the waiters, and each change is followed by a wake-up
/// under that lock. So no access needs an ordering of its own.
pub(super) struct FirstLanding<T> {
    outcome: OnceLock<T>,
    /// The callers that joined before this number are admitted. Zero before the landing. With
    /// [`CLOSED`].
    admitted: AtomicU64,
}

/// No more callers are admitted.
const CLOSED: u64 = 1 << 63;

/// The first landing, as a follower sees it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum First<T> {
    /// The flight has not landed.
    UnderWay,
    /// The follower may have the outcome.
    Admitted(T),
    /// The follower joined too late. The leader is to be told, and may admit it.
    Late,
    /// The follower joined too late, and no more callers are admitted.
    Closed,
}

/// The landing that a follower got.
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

    /// Returns what there is for the leader's caller, which joined before each epoch.
    pub(super) fn into_first(self) -> Waited<T> {
        match self {
            Self::ForAll(Some(outcome)) | Self::Before { outcome, .. } => Waited::Outcome(outcome),
            Self::ForAll(None) => Waited::JoinAgain,
        }
    }
}

impl<T> Default for FirstLanding<T> {
    fn default() -> Self {
        Self { outcome: OnceLock::default(), admitted: AtomicU64::default() }
    }
}

impl<T> FirstLanding<T> {
    /// Lands with this outcome, unless it has landed.
    pub(super) fn land(&self, outcome: T) {
        let _ = self.outcome.set(outcome);
    }

    pub(super) fn has_landed(&self) -> bool {
        self.outcome.get().is_some()
    }

    /// Admits the callers that joined before the epoch. To be called by the leader alone.
    pub(super) fn admit(&self, epoch: Epoch) {
        let admitted = self.admitted.load(Ordering::Relaxed);
        if admitted & CLOSED == 0 {
            self.admitted.store(admitted.max(epoch.joined & !CLOSED), Ordering::Relaxed);
        }
    }

    /// Admits no more callers.
    pub(super) fn close(&self) {
        self.admitted.fetch_or(CLOSED, Ordering::Relaxed);
    }

    /// Returns what there is for a follower, by the number that it joined with.
    pub(super) fn of(&self, number: u64) -> First<&T> {
        let Some(outcome) = self.outcome.get() else { return First::UnderWay };
        let admitted = self.admitted.load(Ordering::Relaxed);
        match number < admitted & !CLOSED {
            true => First::Admitted(outcome),
            false if admitted & CLOSED == 0 => First::Late,
            false => First::Closed,
        }
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn epoch(joined: u64) -> Epoch {
        Epoch { joined }
    }

    #[test]
    fn a_first_landing_admits_more_callers_until_it_is_closed() {
        let first = FirstLanding::default();
        first.admit(epoch(2));
        assert_eq!((first.of(0), first.has_landed()), (First::UnderWay, false));
        first.land(7);
        first.land(8);
        assert_eq!((first.of(1), first.of(2)), (First::Admitted(&7), First::Late));
        // An epoch that began earlier takes nothing back.
        first.admit(epoch(1));
        first.admit(epoch(3));
        assert_eq!((first.of(1), first.of(2), first.of(3)), {
            (First::Admitted(&7), First::Admitted(&7), First::Late)
        });
        first.close();
        first.admit(epoch(9));
        assert_eq!((first.of(2), first.of(3)), (First::Admitted(&7), First::Closed));
    }

    #[test]
    fn a_first_landing_may_admit_every_caller() {
        let first = FirstLanding::default();
        first.land(7);
        first.admit(Epoch::END);
        assert_eq!(first.of(u64::MAX >> 2), First::Admitted(&7));
    }
}
