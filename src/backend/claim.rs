//! Claims for leases, their owners, and the answers to claims.

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    key::{Family, Name},
    random,
};

/// How a lease is held, and beside which other holders.
///
/// A claim is granted if it fits beside the holders of its [semaphore](SemaphoreKind) and no other
/// claim is before it in the queue. A claim that [waits](Claim::waits) enters the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder at a time. The callers of one process that wait share one queue entry. The
    /// entry is lost if the process of the claim has no subscription when the claim is granted.
    Exclusive,
    /// By one holder at a time, first come, first served: each caller has a queue entry of its own.
    Fair,
    /// Beside other readers.
    Read,
    /// By one writer, and no reader beside it.
    Write,
    /// Beside other holders, as long as no more than `limit` permits are out.
    Permit {
        /// The number of permits. Each claim states the number, so that no stored number must be
        /// changed.
        limit: u32,
        /// How many permits are claimed, all or none.
        count: u32,
    },
}

/// The part of a semaphore that a claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    /// The whole semaphore.
    Sole,
    /// This many shared units, of which at most `limit` may be out.
    Units { count: u32, limit: u32 },
}

impl Need {
    /// Returns the number of shared units. A sole hold has no units.
    pub(crate) fn units(self) -> u32 {
        match self {
            Self::Sole => 0,
            Self::Units { count, .. } => count,
        }
    }
}

/// The number of readers that may hold a lock together.
const READERS: u32 = 1 << 31;

impl Mode {
    pub(crate) fn need(self) -> Need {
        match self {
            Self::Exclusive | Self::Fair | Self::Write => Need::Sole,
            Self::Read => Need::Units { count: 1, limit: READERS },
            Self::Permit { limit, count } => Need::Units { count, limit },
        }
    }

    /// Returns whether each grant has a fence of its own. In any other mode, several holders may
    /// hold together, and the fence is zero.
    pub fn is_fenced(self) -> bool {
        self.need() == Need::Sole
    }
}

/// Which of the three semaphores of a name a claim is for. Each semaphore has one queue, and one
/// sole holder or counted holders that share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SemaphoreKind {
    /// A mutex, fair or not, reentrant or not. Also the load of an entry.
    Mutex,
    /// A read-write lock.
    ReadWrite,
    /// A semaphore, and the permits of its name.
    Permits,
}

impl SemaphoreKind {
    pub(crate) const ALL: [Self; 3] = [Self::Mutex, Self::ReadWrite, Self::Permits];
}

impl fmt::Display for SemaphoreKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Mutex => "mutex",
            Self::ReadWrite => "read-write",
            Self::Permits => "permits",
        })
    }
}

impl From<Mode> for SemaphoreKind {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive | Mode::Fair => Self::Mutex,
            Mode::Read | Mode::Write => Self::ReadWrite,
            Mode::Permit { .. } => Self::Permits,
        }
    }
}

/// How long a lease that was handed over lasts at most, unless it is renewed. A new holder that
/// stands still or is cut off delays the other waiters for this time.
pub const HANDOVER_LIFE: Duration = Duration::from_secs(2);

/// How long a queue entry lasts unless its process [keeps](super::Leases::keep) it. A process that
/// died or stands still delays the claims behind its entry for this time.
pub const QUEUE_ENTRY_LIFE: Duration = Duration::from_secs(2);

/// How long the fences of a lock grow even if the clock of the server is set back.
pub(crate) const LOCK_FENCE_LIFE: Duration = Duration::from_secs(86_400);

/// A request to [`Leases`](crate::backend::Leases) for the right to act on a name for a limited
/// time. A claim may be sent again, because a backend recognises a granted claim by its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The name of the lease.
    pub name: Name,
    /// The id of the holder.
    pub owner: Owner,
    /// How the lease is held.
    pub mode: Mode,
    /// How long the lease lasts unless it is renewed.
    pub lease: Duration,
    /// How long the backend remembers the last fence of the name after the grant, and after each
    /// renewal. After a handover, the fence life of the former holder counts.
    pub fence_life: Duration,
    /// Whether the claim enters the queue, if it is not granted at once.
    pub waits: bool,
    /// Whether the end of a load that is in the way is pushed to the process of the claim. Only
    /// claims of entries use this.
    pub listens: bool,
    /// The label of the holder's process, for [operators](super::Leases::inspect).
    pub label: Option<Arc<str>>,
}

impl Claim {
    /// Creates a claim of a fresh [`Owner`] that waits.
    pub fn new(name: Name, mode: Mode, lease: Duration, fence_life: Duration) -> Self {
        Self::with_owner(Owner::fresh(), name, mode, lease, fence_life)
    }

    /// Creates a claim of an owner that waits.
    pub(crate) fn with_owner(
        owner: Owner,
        name: Name,
        mode: Mode,
        lease: Duration,
        fence_life: Duration,
    ) -> Self {
        Self { name, owner, mode, lease, fence_life, waits: true, listens: true, label: None }
    }

    /// Returns whether the release of the claim wakes all waiters. The waiters for an entry or a
    /// majority have no queue.
    pub(super) fn wakes_all(&self) -> bool {
        let is_mutex = SemaphoreKind::from(self.mode) == SemaphoreKind::Mutex;
        is_mutex && matches!(self.name.family, Family::Cache | Family::Redlock)
    }
}

/// Proof that a claim was granted. A commit needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    pub(super) fence: u64,
    pub(crate) failures: u32,
    /// The name has no entry. The commit replaces no entry, so no [local
    /// tier](crate::cache::Builder::local) is notified of it.
    pub(crate) has_no_entry: bool,
}

impl Grant {
    /// Creates a grant with its fence.
    pub fn new(fence: u64) -> Self {
        Self { fence, failures: 0, has_no_entry: false }
    }

    /// Returns how many loads of the name have failed in a row before this grant, as far as
    /// [remembered](crate::backend::BackOff::remembered).
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Returns a number that is greater than in every earlier grant of the name. Zero if the mode
    /// [has no fence](Mode::is_fenced).
    pub fn fence(&self) -> u64 {
        self.fence
    }
}

/// The lease in the way of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// The fence of the holder. Zero if the mode has no fence, or if the lease is free and another
    /// claim is before this claim in the queue.
    pub fence: u64,
    /// After how long the first lease in the way ends unless it is renewed. A waiting claim gets a
    /// shorter time if no push can announce a release to it.
    pub remaining: Duration,
    /// The number of holders. For permits, the number of permits that are out.
    pub holders: u32,
}

/// The answer to [`Leases::renew`](super::Leases::renew) for one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    /// The claim has the lease, which lasts its full time from now.
    Held,
    /// The claim does not have the lease.
    NotHeld,
    /// The outcome for this claim is unknown, although it is known for other claims of the same
    /// call: too few servers of a majority answered, or the node of a cluster did not.
    Unknown,
}

impl From<bool> for Renewal {
    /// Converts the answer of a server that always knows the outcome.
    fn from(is_held: bool) -> Self {
        if is_held { Self::Held } else { Self::NotHeld }
    }
}

/// The answer to [`Leases::keep`](super::Leases::keep).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// After how long the lease in the way ends unless it is renewed. If the lease is free and the
    /// first waiter cannot receive the push, after how long the entry of that waiter ends.
    /// Otherwise zero.
    pub remaining: Duration,
    /// The process had not kept its entries in time, so its entries may be gone.
    pub has_lapsed: bool,
    /// The lease was free, and was handed over to a waiter that receives the push.
    pub handed_over: bool,
    /// Whether each claim has an entry, in the order of the claims.
    pub stands: Vec<bool>,
}

/// The id of a holder: 64 random bits of its [process](ProcessId), then 62 random bits of the
/// acquisition.
///
/// Each acquisition has a fresh owner, which is no longer used after a release without an answer.
/// So a late release cannot end a later grant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(Uuid);

impl Owner {
    /// Creates an owner that no other acquisition has.
    pub fn fresh() -> Self {
        Self::from_process(ProcessId::of_this())
    }

    /// Creates an owner of a process that no other acquisition has.
    pub(crate) fn from_process(process: ProcessId) -> Self {
        let (_, low) = random::id().as_u64_pair();
        Self(Uuid::from_u64_pair(process.0, low))
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        self.0.as_simple().encode_lower(&mut digits);
        digits
    }

    /// Returns the process that the owner belongs to.
    pub(crate) fn process(self) -> ProcessId {
        ProcessId(self.0.as_u64_pair().0)
    }
}

/// The id of a process in the queues of a backend. Each backend that is not a clone has an id of
/// its own. So when a runtime ends with its backend, the queue entries of that backend end, because
/// no other backend of the same operating system process keeps them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(u64);

impl ProcessId {
    /// Creates an id that no other process has. Each half of a version 4 UUID has fixed bits. The
    /// XOR of the halves has only random bits.
    pub(crate) fn fresh() -> Self {
        let (high, low) = random::id().as_u64_pair();
        Self(high ^ low)
    }

    /// Returns the id of this operating system process.
    pub(crate) fn of_this() -> Self {
        // Each schedule of a simulation has a thread of its own.
        #[cfg(bellwether_sim)]
        {
            thread_local! {
                static PROCESS: ProcessId = ProcessId::fresh();
            }
            PROCESS.with(|process| *process)
        }
        #[cfg(not(bellwether_sim))]
        {
            use std::sync::LazyLock;
            static PROCESS: LazyLock<ProcessId> = LazyLock::new(ProcessId::fresh);
            *PROCESS
        }
    }
}

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessId({self})")
    }
}

impl FromStr for Owner {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::try_parse(text).map(Self)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_simple().fmt(f)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}
