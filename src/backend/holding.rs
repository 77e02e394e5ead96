//! The state of a name in a backend, for an operator.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::{BackOff, Failure, Occupied, Owner, SemaphoreKind};
use crate::{escape::Escaped, key::Name};

/// The holder of a lock or of a load, and the number of waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The number of holders: 1 for a mutex, a writer or a load; otherwise readers, or permits that
    /// are out. Zero if nothing is held.
    pub holders: u32,
    /// The sole holder. `None` for readers and permits, and if nothing is held.
    pub(crate) holder: Option<Owner>,
    /// The id of the sole holder's process. `None` if there is no sole holder.
    pub process: Option<String>,
    /// The label of that process. `None` if the lock was acquired without a
    /// [label](crate::Locks::owner). A load has no label.
    pub owner: Option<String>,
    /// The fencing token of the sole holder, or zero.
    pub fence: u64,
    /// How long the sole holder has had the lock: the time of the server minus the fence. The fence
    /// is the time of the grant, or greater if the clock of the server went back. `None` if there
    /// is no sole holder, or if the fence is ahead of the clock.
    pub held_for: Option<Duration>,
    /// The time until the last lease ends, if no holder renews.
    pub expires_in: Duration,
    /// How many claims wait at the server. A waiter that died in the last seconds counts.
    ///
    /// - For a mutex that is not fair, and for a load, each process counts once, however many of
    ///   its callers wait. The server does not know the callers in the process of the holder.
    /// - For all other locks, each caller counts.
    pub waiting: u32,
    /// The failed loads of an entry in a row, and the last failure. The wait is zero if the
    /// back-off has ended and the failures are still [remembered](BackOff::remembered).
    pub failed: Option<(BackOff, Failure)>,
    /// The name holds data that this crate did not write, so nothing else is known. Only lists set
    /// this: a question about a single name returns an error.
    pub is_foreign: bool,
}

impl Holding {
    /// Returns this state with its sole holder. The fence shows how long the holder has had the
    /// lock.
    pub(crate) fn by(self, holder: Owner, fence: u64, now: u64, label: Option<&str>) -> Self {
        let held_for = now.checked_sub(fence).map(Duration::from_micros);
        let process = Some(holder.process().to_string());
        let owner = label.map(str::to_owned);
        Self { holder: Some(holder), process, owner, fence, held_for, ..self }
    }

    /// Returns what a claim of a mutex would find in its way. Only a sole holder has a fence.
    pub(crate) fn sole_hold(&self) -> Option<Occupied> {
        if self.holders == 0 || self.fence == 0 {
            return None;
        }
        Some(Occupied { fence: self.fence, remaining: self.expires_in, holders: self.holders })
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.holders == 0 && self.waiting == 0 && !self.is_foreign
    }
}

/// The round trip and the age of the connections to the servers of a backend.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// How long the last ping took, while there is a connection.
    pub round_trip: Option<Duration>,
    /// How long all connections have stood. Zero if a connection is broken. `None` before the first
    /// connection.
    pub stood_for: Option<Duration>,
}

/// Where a search for locks goes on, at each server. The default is the start of a search.
#[doc(hidden)]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SearchFrom {
    /// The cursor of each server, or `None` where the search has ended. Empty before the start.
    pub(crate) cursors: Vec<Option<String>>,
    /// When the last step ended.
    pub(crate) at: Option<Instant>,
}

/// The locks that one step of a search has found.
#[doc(hidden)]
#[derive(Clone, Debug, Default)]
pub struct FoundLocks {
    /// The locks that are held or waited for, in any order. A lock may come twice, or be free when
    /// the caller reads this.
    pub locks: Vec<(Name, SemaphoreKind)>,
    /// Where the next step begins. `None` if this was the last step.
    pub next: Option<SearchFrom>,
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_foreign {
            return f.write_str("holds data that this crate did not write");
        }
        match (self.holders, &self.owner, &self.process) {
            (0, ..) => f.write_str("not held")?,
            (_, Some(owner), _) => write!(f, "held by {}", Escaped(owner))?,
            (_, None, Some(process)) => write!(f, "held by process {process}")?,
            (holders, None, None) => write!(f, "held by {holders}")?,
        }
        if let Some(held_for) = self.held_for {
            write!(f, " for {held_for:.1?}")?;
        }
        if self.fence > 0 {
            write!(f, ", fence {}", self.fence)?;
        }
        if self.holders > 0 {
            write!(f, ", {:.1?} left", self.expires_in)?;
        }
        write!(f, ", {} waiting at the server", self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock of the server went back. The holder seemed to have just acquired the lock.
    #[test]
    fn a_fence_ahead_of_the_clock_does_not_show_the_time_of_the_grant() {
        let holder = Owner::fresh();
        let held = Holding { holders: 1, ..Holding::default() };
        let usual = held.clone().by(holder, 1_000_000, 3_000_000, Some("w"));
        assert_eq!(usual.held_for, Some(Duration::from_secs(2)));
        let after_a_step = held.by(holder, 3_000_000, 1_000_000, Some("w"));
        assert_eq!(after_a_step.held_for, None);
        let text = after_a_step.to_string();
        assert!(text.starts_with("held by w, fence 3000000, "), "{text}");
    }
}
