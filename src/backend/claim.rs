use std::time::Duration;

use super::Owner;
use crate::key::Name;

/// How a lease is held, and beside which other holders.
///
/// Exclusive and fair claims of one name are for the same lease, and so are read and write claims.
/// These two and the permits of one name are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder at a time.
    ///
    /// A claim that is not granted enters a queue, if it [waits](Claim::waits). A release [hands
    /// the lease over](Claim::takes_handover) to the first claim in the queue, or tells it that it
    /// is its turn and keeps the lease for it for a [moment](Claim::turn_life). After that any
    /// claim is granted.
    Exclusive,
    /// By one holder at a time, first come, first served.
    ///
    /// A claim that is not granted enters the queue, if it [waits](Claim::waits), and is granted
    /// when it is at the head.
    Fair,
    /// Beside other readers. Readers and writers wait in one queue: a reader is not granted while a
    /// writer is before it.
    Read,
    /// By one writer, and no reader beside it.
    Write,
    /// Beside others, as long as no more than `limit` permits are out; `count` of them at once.
    Permit {
        /// The number of permits. Each claim brings it, so that nothing is left to be changed.
        limit: u32,
        /// How many of them are claimed, all or none.
        count: u32,
    },
}

impl Mode {
    /// Returns whether claims wait in a queue at the backend.
    pub fn queues(self) -> bool {
        !matches!(self, Self::Permit { .. })
    }

    /// Returns whether claims are granted in the order of their queue only.
    pub(crate) fn is_ordered(self) -> bool {
        matches!(self, Self::Fair | Self::Read | Self::Write)
    }

    /// Returns whether a hold of this mode may pass to one of the other.
    pub fn passes_to(self, to: Self) -> bool {
        let alone = |mode| matches!(mode, Self::Exclusive | Self::Fair);
        match (self, to) {
            (Self::Read, Self::Write) | (Self::Write, Self::Read) => true,
            (from, to) => alone(from) && alone(to),
        }
    }

    /// Returns whether a release may hand a lease of this duration to a waiter, without harm to the
    /// others.
    pub(crate) fn can_be_handed_over(self, lease: Duration) -> bool {
        self.is_fenced() && lease >= HANDOVER_LIFE
    }

    /// Returns whether each grant has a fence of its own. It is zero where several holders may hold
    /// together.
    pub fn is_fenced(self) -> bool {
        matches!(self, Self::Exclusive | Self::Fair | Self::Write)
    }
}

/// How long a lease is kept for the claim whose turn it is: some round trips and a busy moment. If
/// that claim's process died, the others find out when they next renew their queue entries.
pub(crate) const TURN_LIFE: Duration = Duration::from_millis(50);

/// How long a lease that was handed over lasts unless it is renewed.
///
/// The claim has not asked for it just now: a holder that stands still or is cut off holds up the
/// others for so long. A holder whose connection is gone is passed over at once. Redis cannot tell
/// that while a subscription to a pattern of channels exists.
pub(crate) const HANDOVER_LIFE: Duration = Duration::from_secs(2);

/// How long a queue entry lasts at most unless its claim is sent again. Where the queue decides
/// which claim is granted, a waiter that died holds up those behind it for so long. The times of
/// several that died run together.
pub(crate) const QUEUE_ENTRY_LIFE: Duration = Duration::from_secs(5);

/// The life of a queue entry where no claim is held to the order: it need not be renewed for
/// itself.
const UNORDERED_ENTRY_LIFE: Duration = Duration::from_secs(12);

/// What is asked of [`Leases`](crate::backend::Leases): the right to act on a name for a limited
/// time.
///
/// A claim is sent as often as needed. A backend recognises by its owner a claim that it has
/// granted already.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// What the lease is for.
    pub name: Name,
    /// The id of its holder.
    pub owner: Owner,
    /// How it is held.
    pub mode: Mode,
    /// How long the lease lasts unless it is renewed.
    pub lease: Duration,
    /// How long the last fence of the name is remembered after the lease was granted. After each
    /// renewal at least three quarters of it are left. After a handover, it is the time of the
    /// holder that handed over.
    pub fence_life: Duration,
    /// Whether it enters the queue, where the mode has one and the claim is not granted at once.
    pub waits: bool,
    /// Whether a release may grant it the lease while it waits, and push that
    /// ([`Change::Granted`](crate::backend::Change::Granted)). Otherwise the claim is told that it
    /// is its turn, and asks.
    ///
    /// A claim that may have no use for the lease by then, or whose own lease is shorter than
    /// [`handover_life`](Self::handover_life), must not set it.
    pub takes_handover: bool,
}

impl Claim {
    /// Creates a claim of a fresh [`Owner`] that waits. If the mode grants in order, the lease may
    /// be handed over to it.
    pub fn new(name: Name, mode: Mode, lease: Duration, fence_life: Duration) -> Self {
        let takes_handover = mode.is_ordered() && mode.can_be_handed_over(lease);
        let owner = Owner::fresh();
        Self { name, owner, mode, lease, fence_life, waits: true, takes_handover }
    }

    /// Returns what is claimed, for errors.
    pub(crate) fn what(&self) -> String {
        let key = self.name.key();
        match self.mode {
            Mode::Exclusive | Mode::Fair => format!("the lock {key:?}"),
            Mode::Read => format!("the read lock {key:?}"),
            Mode::Write => format!("the write lock {key:?}"),
            Mode::Permit { count: 1, .. } => format!("a permit of {key:?}"),
            Mode::Permit { count, .. } => format!("a set of {count} permits of {key:?}"),
        }
    }

    /// Returns how long its queue entry lasts unless the claim is sent again.
    ///
    /// It is 5 s, or the lease if that is shorter; and 12 s where no claim is held to the order.
    pub fn queue_entry_life(&self) -> Duration {
        match self.mode {
            Mode::Exclusive => UNORDERED_ENTRY_LIFE,
            _ => QUEUE_ENTRY_LIFE.min(self.lease),
        }
    }

    /// Returns how long a released lease is kept for the claim when it is its turn: 50 ms.
    ///
    /// Only [exclusive](Mode::Exclusive) claims need it, since the others are granted in order.
    pub fn turn_life(&self) -> Duration {
        TURN_LIFE
    }

    /// Returns how long a lease that is [handed over](Self::takes_handover) to the claim lasts at
    /// most unless it is renewed: 2 s. A backend shortens it to what is left of the queue entry.
    pub fn handover_life(&self) -> Duration {
        HANDOVER_LIFE
    }
}

/// Proof that a claim was granted. It is not `Clone`: one grant, one commit.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    fence: u64,
}

impl Grant {
    /// Creates a grant with its fence, as a backend hands it out.
    pub fn new(fence: u64) -> Self {
        Self { fence }
    }

    /// Returns a number that is greater than that of every earlier grant of the name; zero where
    /// the mode [has none](Mode::is_fenced).
    pub fn fence(&self) -> u64 {
        self.fence
    }
}

/// What is in the way of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// The fence of the holder. It is zero where the mode has none, or where the lease is free and
    /// another claim is before this one in the queue.
    pub fence: u64,
    /// After how long the lease ends if it is not renewed.
    pub remaining: Duration,
    /// The number of holders; for permits, how many of them are out.
    pub holders: u32,
}
