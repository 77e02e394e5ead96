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
    /// the lease over](Claim::takes_handover) to the claim that has waited longest, or tells it
    /// that it is its turn and keeps the lease for it for a [moment](Claim::turn_life). After that
    /// any claim is granted.
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
    /// Beside others, as long as no more than `limit` permits are out; `count` of them at once. A
    /// claim is not granted while another one is before it in the queue, whatever that wants.
    Permit {
        /// The number of permits. Each claim brings it, so that nothing is left to be changed.
        limit: u32,
        /// How many of them are claimed, all or none.
        count: u32,
    },
}

impl Mode {
    /// Returns whether claims are granted in the order of their queue only.
    pub fn is_ordered(self) -> bool {
        self != Self::Exclusive
    }

    /// Returns whether a hold of this mode may pass to one of the other.
    pub fn passes_to(self, to: Self) -> bool {
        let alone = |mode| matches!(mode, Self::Exclusive | Self::Fair);
        match (self, to) {
            (Self::Read, Self::Write) | (Self::Write, Self::Read) => true,
            (from, to) => alone(from) && alone(to),
        }
    }

    /// Returns whether each grant has a fence of its own. It is zero where several holders may hold
    /// together.
    pub fn is_fenced(self) -> bool {
        matches!(self, Self::Exclusive | Self::Fair | Self::Write)
    }
}

/// The claims of a name that wait for the same. A process keeps its entries among them together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum QueueKind {
    Mutex,
    ReadWrite,
    Permits,
}

impl From<Mode> for QueueKind {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive | Mode::Fair => Self::Mutex,
            Mode::Read | Mode::Write => Self::ReadWrite,
            Mode::Permit { .. } => Self::Permits,
        }
    }
}

/// How many queues one request keeps: a script of about two milliseconds.
pub(crate) const QUEUES_KEPT_AT_ONCE: usize = 150;

/// How long a lease is kept for an unordered claim whose turn it is: some round trips and a busy
/// moment.
pub(crate) const TURN_LIFE: Duration = Duration::from_millis(50);

/// How long a lease that was handed over lasts unless it is renewed.
///
/// The claim has not asked for it just now: a holder that stands still or is cut off holds up the
/// others for so long. A holder whose connection is gone is passed over at once. Redis cannot tell
/// that while a subscription to a pattern of channels exists.
pub(crate) const HANDOVER_LIFE: Duration = Duration::from_secs(2);

/// How long the queue entries of a process last unless it keeps them. A process that died or stands
/// still holds up the claims behind it for so long. The times of several processes run together.
pub(crate) const QUEUE_ENTRY_LIFE: Duration = Duration::from_secs(2);

/// A question to [`Leases`](crate::backend::Leases) for the right to act on a name for a limited
/// time.
///
/// A claim is sent as often as needed. A backend recognises by its owner a claim that it has
/// granted already.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// The name that the lease is for.
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
    /// Whether its process is told of the end of a load that is in the way. Only the claim of an
    /// entry may do without.
    pub listens: bool,
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
        let takes_handover = mode.is_ordered() && lease >= HANDOVER_LIFE;
        Self {
            name,
            owner: Owner::fresh(),
            mode,
            lease,
            fence_life,
            waits: true,
            listens: true,
            takes_handover,
        }
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

    /// Returns how long its queue entry lasts unless its process [keeps](super::Leases::keep) it: 2
    /// s.
    pub fn queue_entry_life(&self) -> Duration {
        QUEUE_ENTRY_LIFE
    }

    /// Returns how long a released lease is kept for the claim when it is its turn.
    ///
    /// It is 50 ms for an [exclusive](Mode::Exclusive) claim, and otherwise as long as its queue
    /// entry lasts. A claim that is held to its order must not lose its place by a busy moment.
    pub fn turn_life(&self) -> Duration {
        if self.mode.is_ordered() { QUEUE_ENTRY_LIFE } else { TURN_LIFE }
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
    failures: u32,
}

impl Grant {
    /// Creates a grant with its fence, as a backend hands it out.
    pub fn new(fence: u64) -> Self {
        Self { fence, failures: 0 }
    }

    /// Returns the same grant after this many failed loads.
    pub fn after_failures(self, failures: u32) -> Self {
        Self { failures, ..self }
    }

    /// Returns how many loads of the name have failed in a row before this grant, as far as that is
    /// [remembered](crate::backend::BackOff::remembered).
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns a number that is greater than that of every earlier grant of the name; zero where
    /// the mode [has none](Mode::is_fenced).
    pub fn fence(&self) -> u64 {
        self.fence
    }
}

/// The lease in the way of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// The fence of the holder. It is zero where the mode has none, or where the lease is free and
    /// another claim is before this one in the queue.
    pub fence: u64,
    /// After how long the lease ends if it is not renewed. For a claim that waits it is shorter if
    /// it is to look again before, because no push may tell it of a release.
    pub remaining: Duration,
    /// The number of holders; for permits, how many of them are out.
    pub holders: u32,
}
