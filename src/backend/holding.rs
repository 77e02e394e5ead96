//! The state of a name in a backend, for an operator.

use std::{fmt, time::Duration};

use tokio::time::Instant;

use super::{BackOff, Failure, Mode, Occupied, Owner, SemaphoreKind};
use crate::{escape::Escaped, key::Name};

/// The holder of a lock or of a load, and the number of waiters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The number of holders: 1 for a mutex, a writer or a load; otherwise readers, or permits that
    /// are out. Zero if nothing is held.
    pub holders: u32,
    /// The sole holder. `None` for readers and permits.
    pub(crate) holder: Option<Owner>,
    /// The id of the sole holder's process.
    pub process: Option<String>,
    /// The label of that process, if the lock was acquired with a [label](crate::Locks::owner). A
    /// load has no label.
    pub owner: Option<String>,
    /// The fencing token of the sole holder, or zero.
    pub fence: u64,
    /// How long the sole holder has had the lock. The fence shows this, because it begins as the
    /// time of the grant.
    pub held_for: Option<Duration>,
    /// The time until the last lease ends, if no holder renews.
    pub expires_in: Duration,
    /// How many claims wait at the server. A waiter that died in the last seconds counts.
    ///
    /// Of a mutex that is not fair, and of a load, each process counts once, however many of its
    /// callers wait. The server does not know the callers that wait in the process of the holder.
    /// Each other waiter counts.
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
        let held_for = Some(Duration::from_micros(now.saturating_sub(fence)));
        let process = Some(holder.process().to_string());
        let owner = label.map(str::to_owned);
        Self { holder: Some(holder), process, owner, fence, held_for, ..self }
    }

    /// Returns what a claim of this mode would find in its way, if the holders have that mode. Only
    /// a sole holder has a fence.
    pub(crate) fn in_mode(&self, mode: Mode) -> Option<Occupied> {
        let is_sole = self.fence > 0;
        if self.holders == 0 || mode.is_fenced() != is_sole {
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
            write!(f, " for {held_for:.1?}, fence {}", self.fence)?;
        }
        if self.holders > 0 {
            write!(f, ", {:.1?} left", self.expires_in)?;
        }
        write!(f, ", {} waiting at the server", self.waiting)
    }
}
