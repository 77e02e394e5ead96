//! Where leases and entries live.
//!
//! Three traits say what is asked of a backend: [`Leases`], the right to act on a name for a limited time,
//! [`Store`], entries on top of that, and [`Latches`]. [`MemoryBackend`] keeps them in this process;
//! `RedisBackend` keeps them in a Redis or Valkey server, for a fleet. One conformance suite
//! runs against both.
//!
//! # Which lies are allowed
//!
//! A backend may fail at any time, and may not know whether what it was asked happened
//! ([`BackendErrorKind::Unknown`]). It may lose, double, delay and
//! reorder pushes. It may forget entries. It may never grant one exclusive lease to two holders while it
//! keeps its data and its clock, hand out a fence that is not greater than the last one it remembers, let
//! a commit pass whose fence is not the last one of its name, or write half of an operation.
//!
//! Every operation ends within a bounded time, with an answer or without; a backend puts its own time-out
//! on what it waits for.
//!
//! Every operation may be sent twice: the second does nothing that the first did not do, except for
//! [`Store::put`] and [`Store::invalidate`], where it is one more write of the same, and for [`Leases::clear`] and
//! [`Latches::clear_latch`], where it ends what came to stand there in between.

mod answer;
mod change;
pub(crate) mod channels;
mod claim;
mod entry;
mod erased;
mod latches;
mod memory;
mod owner;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod renewal;
mod several;

use std::{future::Future, time::Duration};

use crate::{
    error::{BackendError, BackendErrorKind},
    key::Name,
};

#[cfg(feature = "redis")]
pub use self::redis::{RedisBackend, RedisBackendBuilder, Replicas, SentinelMaster, failover};
pub use self::{
    change::{Change, Failure, Handover},
    channels::{Changes, Channels},
    claim::{Claim, Grant, Mode, Occupied},
    entry::{Entry, EntryKind, Undecodable},
    latches::{Countdown, Latches},
    memory::MemoryBackend,
    owner::Owner,
    renewal::Renewal,
    several::{AcquiredAll, acquire_in_order},
};

pub(crate) use self::{
    answer::{ANSWER_LIMIT, answered_by, in_time},
    claim::{HANDOVER_LIFE, TURN_LIFE},
    erased::{DynLatches, DynLeases, DynStore},
};

/// The right to act on a name for a limited time.
///
/// # Errors
///
/// Every method returns a [`BackendError`] that says whether the operation may have happened.
///
/// # Cancel safety
///
/// Every future may be dropped at any point; whether its operation happened is unknown then, and is for
/// the caller to undo.
pub trait Leases: Send + Sync + 'static {
    /// Grants the lease if it is free for a claim of its mode, and grants it again, with the same fence, to
    /// the token that has it.
    ///
    /// Where the mode [queues](Mode::queues), a claim that [waits](Claim::waits) keeps its place by being
    /// sent again within its [time](Claim::queue_entry_life).
    fn acquire(&self, claim: &Claim)
    -> impl Future<Output = Result<Acquired, BackendError>> + Send;

    /// Grants the leases of several exclusive claims of different names, all or none, and grants them again to
    /// the tokens that have them. Any other mode is [refused](crate::error::BackendErrorKind::Refused).
    ///
    /// Unless a backend can do better, they are acquired [one after another](acquire_in_order), and nothing is
    /// held by the time that it says who is in the way.
    fn acquire_all(
        &self,
        claims: &[Claim],
    ) -> impl Future<Output = Result<AcquiredAll, BackendError>> + Send {
        acquire_in_order(self, claims)
    }

    /// Makes each lease last its full time from now, if its token still has it.
    ///
    /// Returns one answer for each claim, in their order. A lease that is only kept for a claim
    /// whose [turn](Mode::Exclusive) it is is [not held](Renewal::NotHeld).
    fn renew(
        &self,
        claims: &[Claim],
    ) -> impl Future<Output = Result<Vec<Renewal>, BackendError>> + Send;

    /// Ends the lease if the claim's token has it, and its place in the queue, and wakes whose turn it is.
    /// Says whether it had the lease.
    ///
    /// Whoever is first in the queue and [takes it](Claim::takes_handover) may be granted the lease with this, if it is
    /// likely that he hears of it ([`Change::Granted`]); his place ends with that.
    fn release(&self, claim: &Claim) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Passes a lease from its holder to another claim of the same name in one step, with a new fence; none,
    /// if the holder no longer has it.
    ///
    /// From one exclusive or fair claim to another; from a writer to a reader; and from a reader to a writer,
    /// if there is no other reader. Anything else is
    /// [refused](crate::error::BackendErrorKind::Refused).
    fn pass(
        &self,
        from: &Claim,
        to: &Claim,
    ) -> impl Future<Output = Result<Option<Grant>, BackendError>> + Send;

    /// Who holds the lease of a name in a mode, if anyone does.
    ///
    /// [`BackendErrorKind::Foreign`] if what stands there is not a
    /// lease.
    fn holder(
        &self,
        name: &Name,
        mode: Mode,
    ) -> impl Future<Output = Result<Option<Occupied>, BackendError>> + Send;

    /// Ends what is held of a name in a mode, and its queue, whoever holds it and whatever stands there, and
    /// wakes who waits. Says whether something was there.
    ///
    /// Readers and the writer are ended together.
    fn clear(
        &self,
        name: &Name,
        mode: Mode,
    ) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Subscribes to what happens to a name; returns when the server has confirmed the subscription.
    fn changes(&self, name: &Name) -> impl Future<Output = Result<Changes, BackendError>> + Send;

    /// Another subscription to what happens to a name, if this process has a confirmed one of its kind already:
    /// who has it before he asks need not ask again after he subscribed. None, unless a backend knows.
    fn changes_along(&self, _name: &Name) -> Option<Changes> {
        None
    }

    /// How long an operation takes at most, where the backend sees to that itself: then nobody else sets a
    /// timer for it.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// Which part of the backend keeps a name, where there are several that fail apart, as the nodes of a
    /// cluster do: a few numbers, each of which stands for the same part for good. What is of different parts is
    /// not asked together, and a failure of one says nothing of another.
    fn shard(&self, _name: &Name) -> usize {
        0
    }

    /// Another front to the same data, for a runtime that is about to end: what it connects must not be what
    /// others use. None, where that makes no difference.
    fn apart(&self) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }
}

/// Entries, and the lease under which each is rebuilt.
///
/// # Errors
///
/// As those of [`Leases`]. [`get`](Self::get) returns
/// [`BackendErrorKind::Foreign`] where what stands under the name
/// is not an entry; a commit or a put replaces it.
///
/// # Cancel safety
///
/// As that of [`Leases`].
pub trait Store: Leases {
    /// The entry, if there is one.
    fn get(&self, name: &Name) -> impl Future<Output = Result<Option<Entry>, BackendError>> + Send;

    /// Acquires the lease, unless an entry stands with a greater fence than `seen`.
    fn claim(
        &self,
        claim: &Claim,
        seen: u64,
    ) -> impl Future<Output = Result<Claimed, BackendError>> + Send;

    /// Writes an entry, ends the lease and pushes the entry to who waits, all at once; if and only if the
    /// grant's fence is still the last one of the name.
    ///
    /// Without a `ttl` the entry is handed to who waits and not written. If the server is too full to
    /// write, the same happens.
    fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> impl Future<Output = Result<Committed, BackendError>> + Send;

    /// Ends the lease and pushes a failure to who waits now. Says whether the claim's token had the lease.
    fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
    ) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Writes an entry without a load: whatever load is under way will not be stored. Returns the new fence.
    ///
    /// Where there is no room for it, it is refused, and nothing changes.
    fn put(
        &self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> impl Future<Output = Result<u64, BackendError>> + Send;

    /// Removes the entry: whatever load is under way will not be stored. Returns the fence that was burnt.
    fn invalidate(
        &self,
        name: &Name,
        fence_life: Duration,
    ) -> impl Future<Output = Result<u64, BackendError>> + Send;
}

/// The answer to [`Leases::acquire`].
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Acquired {
    /// The lease is held now.
    Granted(Grant),
    /// Someone else holds it.
    Held(Occupied),
}

/// The answer to [`Store::claim`].
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Claimed {
    /// The lease is held now; the load may begin.
    Granted(Grant),
    /// An entry that the caller had not seen makes the load needless.
    Newer(Entry),
    /// Someone else is loading.
    Held(Occupied),
}

/// The answer to [`Store::commit`].
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Committed {
    /// The entry was written, or was written already by this grant.
    Stored,
    /// The entry was handed to who waits, and not written: no `ttl`, or no room.
    HandedOver,
    /// A newer entry stands.
    Newer(Entry),
    /// The fence was burnt, or another's load is under way: invalidated, or the lease was lost.
    Refused,
}

/// A hold of this mode never passes to one of that.
fn no_pass(from: &Claim, to: &Claim) -> BackendError {
    let why = format!("{:?} does not pass to {:?}", from.mode, to.mode);
    BackendError::new(BackendErrorKind::Refused, why)
}
