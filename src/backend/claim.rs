use std::time::Duration;

use super::Owner;
use crate::key::Name;

/// How a lease is held, and beside whom.
///
/// Exclusive and fair claims of one name are for the same lease, and so are read and write claims; these two
/// and the permits of one name never meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder at a time. A claim that is not granted takes a place in a queue, if it
    /// [waits](Claim::waits); in its order a release [hands the lease over](Claim::takes_handover) to those who wait, or
    /// calls them: for whoever is called the lease is kept for [`CALL_LIFE`]. Then whoever asks is granted it.
    Exclusive,
    /// By one holder at a time, first come, first served: a claim that is not granted takes a place in the
    /// queue, if it [waits](Claim::waits), and is granted when it is at the head.
    Fair,
    /// Beside other readers. Readers and writers wait in one queue: a reader is not granted while a writer
    /// is before it.
    Read,
    /// By one writer, and no reader beside it.
    Write,
    /// Beside others, as long as no more than `limit` permits are out; `count` of them at once.
    Permit {
        /// How many permits there are. Each claim says so anew, so that nothing is left to be changed.
        limit: u32,
        /// How many of them are claimed, all or none.
        count: u32,
    },
}

impl Mode {
    /// Whether claims wait in a queue at the backend.
    pub fn queues(self) -> bool {
        !matches!(self, Self::Permit { .. })
    }

    /// Whether claims are granted in the order of their queue, and not only called in it.
    pub(crate) fn is_ordered(self) -> bool {
        matches!(self, Self::Fair | Self::Read | Self::Write)
    }

    /// Whether a hold of this mode may pass to one of the other.
    pub fn passes_to(self, to: Self) -> bool {
        let alone = |mode| matches!(mode, Self::Exclusive | Self::Fair);
        match (self, to) {
            (Self::Read, Self::Write) | (Self::Write, Self::Read) => true,
            (from, to) => alone(from) && alone(to),
        }
    }

    /// Whether a release may hand a lease of this duration to a waiter, without harm to the others.
    pub(crate) fn takes_handover(self, lease: Duration) -> bool {
        self.is_fenced() && lease >= HANDOVER_LIFE
    }

    /// Whether each grant carries a fence of its own. Where several hold together, it is zero.
    pub fn is_fenced(self) -> bool {
        matches!(self, Self::Exclusive | Self::Fair | Self::Write)
    }
}

/// How long a lease is kept for the one who was called: some round trips and a busy moment. If he died, the
/// others find out when they next ask to keep their places.
pub const CALL_LIFE: Duration = Duration::from_millis(50);

/// How long a lease that was [handed over](Claim::takes_handover) lasts unless it is renewed: whoever it was handed to
/// has not asked for it just now, and if he stands still or is cut off, he holds up the others for so long. (One who
/// is gone with his connection is passed over at once; while somebody is subscribed to a pattern of channels, Redis
/// can not tell that.)
pub const HANDOVER_LIFE: Duration = Duration::from_secs(2);

/// How long a place in a queue is kept at most unless its claim is sent again. Where the queue decides who is granted,
/// one that died holds up those behind it for so long; however many died, their times run together.
pub const PLACE_LIFE: Duration = Duration::from_secs(5);

/// What is asked of [`Leases`](crate::backend::Leases): the right to act on a name for a limited time.
///
/// A claim is sent as often as needed: it carries its token, so that a backend recognises the second
/// sending of a claim that it has granted already.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// What the lease is for.
    pub name: Name,
    /// Who will hold it.
    pub owner: Owner,
    /// How it will be held.
    pub mode: Mode,
    /// How long the lease lasts unless it is renewed.
    pub lease: Duration,
    /// How long the last fence of the name is remembered after it was granted or renewed; after it was handed over, it is
    /// the time of who did that.
    pub fence_life: Duration,
    /// Whether it takes a place in the queue, where the mode has one and it is not granted at once.
    pub waits: bool,
    /// Whether a release may grant it the lease while it waits, and push that
    /// ([`Change::Granted`](crate::backend::Change::Granted)): for [`HANDOVER_LIFE`] at most, and no longer than its
    /// place would have been kept. Otherwise it is told that it is its turn, and asks.
    ///
    /// Not for who may have no use for it by then, nor if its own lease is shorter than that.
    pub takes_handover: bool,
}

impl Claim {
    /// How long its place in a queue is kept unless it is sent again: [`PLACE_LIFE`] or its lease, whichever is
    /// shorter; or so long that it need not be sent for that alone where nobody is held to the order.
    pub fn place_life(&self) -> Duration {
        match self.mode {
            Mode::Exclusive => Duration::from_secs(12),
            _ => PLACE_LIFE.min(self.lease),
        }
    }

    /// A claim by a fresh [`Owner`], that waits; what is granted in an order may be handed over to it.
    pub fn new(name: Name, mode: Mode, lease: Duration, fence_life: Duration) -> Self {
        let takes_handover = mode.is_ordered() && mode.takes_handover(lease);
        let owner = Owner::fresh();
        Self { name, owner, mode, lease, fence_life, waits: true, takes_handover }
    }
}

/// Proof that a claim was granted. It is not `Clone`: one grant, one commit.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    fence: u64,
}

impl Grant {
    /// A grant with its fence, as a backend hands it out.
    pub fn new(fence: u64) -> Self {
        Self { fence }
    }

    /// A number that is greater than that of every earlier grant of this name; zero, where the mode
    /// [has none](Mode::is_fenced).
    pub fn fence(&self) -> u64 {
        self.fence
    }
}

/// Who stands in the way of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// The fence of the one who holds the lease; zero, where the mode has none, or where nobody holds it and
    /// someone is before the claim in the queue.
    pub fence: u64,
    /// After how long the lease ends if it is not renewed.
    pub remaining: Duration,
    /// How many hold it; for permits, how many of them are out.
    pub holders: u32,
}
