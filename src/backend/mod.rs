//! The ground: what is asked of a backend, and the backends.
//!
//! Three traits say what is asked. [`Leases`] is the right to act on a name for a limited time,
//! [`Store`] adds entries, and [`Latches`] adds latches. [`MemoryBackend`] keeps them in this
//! process, `RedisBackend` keeps them in a Redis or Valkey server, for a fleet. One conformance
//! suite runs against all backends.
//!
//! # Allowed failures
//!
//! A backend may fail at any time, and may not know whether an operation happened
//! ([`BackendErrorKind::Unknown`]). It may lose, double, delay and reorder pushes. It may forget
//! entries.
//!
//! While it keeps its data and its clock, a backend must never
//!
//! - grant one exclusive lease to two holders,
//! - hand out a fence that is not greater than the last one that it remembers,
//! - accept a commit whose fence is not the last one of its name,
//! - write half of an operation.
//!
//! Every operation ends within a bounded time, with an answer or without. A backend puts its own
//! time-out on what it waits for.
//!
//! Every operation may be sent twice. The second one does nothing that the first one did not do,
//! with two exceptions: [`Store::put`] and [`Store::invalidate`] are one more write of the same,
//! and [`Leases::clear`] and [`Latches::clear_latch`] end what has come to stand there in between.

mod answer;
mod back_off;
mod change;
pub(crate) mod channels;
mod claim;
mod entry;
mod erased;
mod kept;
mod latches;
mod memory;
mod owner;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod renewal;
mod several;
mod windows;

use std::{future::Future, time::Duration};

use crate::{
    error::{BackendError, BackendErrorKind},
    key::Name,
};

#[cfg(feature = "redis")]
pub use self::redis::{
    Credentials, RedisBackend, RedisBackendBuilder, Replicas, SentinelMaster, failover,
};
pub use self::{
    back_off::BackOff,
    change::{Announcement, Change, Failure, Handover},
    channels::{Changes, Channels},
    claim::{Claim, Grant, Mode, Occupied},
    entry::{Entry, EntryKind, Undecodable},
    kept::Kept,
    latches::{Countdown, Latches},
    memory::MemoryBackend,
    owner::Owner,
    renewal::Renewal,
    several::{AcquiredAll, acquire_in_order},
    windows::Windows,
};

pub(crate) use self::{
    answer::{ANSWER_LIMIT, answered, answered_by, in_time},
    claim::{HANDOVER_LIFE, QueueKind, TURN_LIFE},
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
/// Every future may be dropped at any point. Whether its operation happened is unknown then, and
/// the caller undoes it.
pub trait Leases: Send + Sync + 'static {
    /// Grants the lease if it is free for a claim of its mode. Grants it again, with the same
    /// fence, to the owner that has it.
    ///
    /// A claim that [waits](Claim::waits) and is not granted enters the queue. Its entry lasts
    /// while its process [keeps](Self::keep) it.
    fn acquire(&self, claim: &Claim)
    -> impl Future<Output = Result<Acquired, BackendError>> + Send;

    /// Grants the leases of several exclusive claims of different names, all or none. Grants them
    /// again to the owners that have them. Any other mode is
    /// [refused](crate::error::BackendErrorKind::Refused).
    ///
    /// The default acquires them [one after another](acquire_in_order). By the time of an answer
    /// that a holder is in the way, nothing is held.
    fn acquire_all(
        &self,
        claims: &[Claim],
    ) -> impl Future<Output = Result<AcquiredAll, BackendError>> + Send {
        acquire_in_order(self, claims)
    }

    /// Makes each lease last its full time from now, if its owner still has it.
    ///
    /// Returns one answer for each claim, in their order. A lease that is only kept for the claim
    /// whose [turn](Mode::Exclusive) it is counts as [not held](Renewal::NotHeld).
    fn renew(
        &self,
        claims: &[Claim],
    ) -> impl Future<Output = Result<Vec<Renewal>, BackendError>> + Send;

    /// Keeps the queue entries of one process for another [life](Claim::queue_entry_life) from now:
    /// all that it has in the queue of these claims, which are of one name, one queue and one
    /// process. If nothing is in the way, hands the lease over as a [release](Self::release) does.
    ///
    /// The answer is about the given claims only, so a caller need not name all of its claims.
    ///
    /// The default is for a backend without queues: it keeps nothing, and the waiters ask again.
    fn keep(&self, claims: &[Claim]) -> impl Future<Output = Result<Kept, BackendError>> + Send {
        let stands = vec![false; claims.len()];
        async {
            Ok(Kept { remaining: Duration::ZERO, has_lapsed: true, handed_over: false, stands })
        }
    }

    /// Ends the lease if the claim has it, and its queue entry. Returns whether the claim had the
    /// lease.
    ///
    /// The release hands what is free then to the claims at the head of the queue that are likely
    /// to hear of it: one holder alone, all readers, or permits while they fit. A claim that [takes
    /// it](Claim::takes_handover) is granted the lease ([`Change::Granted`]); for another one the
    /// lease is kept, and the claim is told that it is its [turn](Claim::turn_life). The queue
    /// entry ends with that. The other waiters are not told.
    fn release(&self, claim: &Claim) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Passes a lease from its holder to another claim of the same name in one step, with a new
    /// fence. Returns `None` if the holder no longer has it.
    ///
    /// A lease passes from one exclusive or fair claim to another, from a writer to a reader, and
    /// from a reader to a writer if there is no other reader. Anything else is
    /// [refused](crate::error::BackendErrorKind::Refused).
    fn pass(
        &self,
        from: &Claim,
        to: &Claim,
    ) -> impl Future<Output = Result<Option<Grant>, BackendError>> + Send;

    /// Returns the holder of the lease of a name in a mode, if there is one.
    ///
    /// The error is [`BackendErrorKind::Foreign`] if the name holds something that is not a lease.
    fn holder(
        &self,
        name: &Name,
        mode: Mode,
    ) -> impl Future<Output = Result<Option<Occupied>, BackendError>> + Send;

    /// Makes the label of this process known in the namespace of a name, for at least 23 hours.
    ///
    /// The default does nothing.
    fn introduce(
        &self,
        _name: &Name,
        _label: &str,
    ) -> impl Future<Output = Result<(), BackendError>> + Send {
        async { Ok(()) }
    }

    /// Returns the label of the process that holds the lease of a name in a mode, if that has one
    /// holder whose process was [introduced](Self::introduce).
    ///
    /// The default returns `None`.
    fn holder_label(
        &self,
        _name: &Name,
        _mode: Mode,
    ) -> impl Future<Output = Result<Option<String>, BackendError>> + Send {
        async { Ok(None) }
    }

    /// Ends what is held of a name in a mode, and its queue, whatever stands there, and wakes the
    /// waiters. Returns whether something was there.
    ///
    /// Readers and the writer are ended together.
    fn clear(
        &self,
        name: &Name,
        mode: Mode,
    ) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Subscribes to all changes of a name. Returns when the server has confirmed the subscription.
    fn changes(&self, name: &Name) -> impl Future<Output = Result<Changes, BackendError>> + Send;

    /// Subscribes to the changes of which a claim must know while it waits: those for all, and
    /// those for its owner. Returns when the server has confirmed the subscription.
    ///
    /// The default subscribes to all changes of the name, with the owner as the
    /// [address](Changes::address).
    fn changes_for(
        &self,
        claim: &Claim,
    ) -> impl Future<Output = Result<Changes, BackendError>> + Send {
        async move {
            let mut changes = self.changes(&claim.name).await?;
            changes.address(claim.owner);
            Ok(changes)
        }
    }

    /// Returns how many pushes a waiter for the claim may have missed until now, since it does not
    /// listen yet. The backend may get ready to subscribe, without a wait.
    ///
    /// The default returns 0.
    fn missed_pushes(&self, _claim: &Claim) -> u64 {
        0
    }

    /// Returns the subscription of [`changes_for`](Self::changes_for), if that needs no request to
    /// the server, and no push was missed since [`missed_pushes`](Self::missed_pushes) returned
    /// `missed`. A waiter that asked before its request need not ask again.
    ///
    /// The default returns `None`.
    fn changes_since(&self, _claim: &Claim, _missed: u64) -> Option<Changes> {
        None
    }

    /// Returns how long an operation takes at most, if the backend bounds its operations itself.
    /// The caller then sets no timer for it.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// Returns whether other processes may use the same data. Defaults to `true`.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns the number of the shard that keeps a name. Shards fail apart, as the nodes of a
    /// cluster do.
    ///
    /// There are few numbers, and each stands for the same shard for good. Names of different
    /// shards are not asked for together, and a failure of one shard says nothing of another.
    fn shard(&self, _name: &Name) -> usize {
        0
    }

    /// Returns another front to the same data, with connections of its own, for a runtime that is
    /// about to end. Returns `None` where that makes no difference.
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
/// As those of [`Leases`]. [`get`](Self::get) returns [`BackendErrorKind::Foreign`] if the name
/// holds something that is not an entry. A commit or a put replaces it.
///
/// # Cancel safety
///
/// As that of [`Leases`].
pub trait Store: Leases {
    /// Returns the entry, if there is one. If it has [windows](Windows) in which it is stale, it
    /// comes with its [age](Entry::age).
    fn get(&self, name: &Name) -> impl Future<Output = Result<Option<Entry>, BackendError>> + Send;

    /// Returns the entry with its [age](Entry::age), if there is one.
    ///
    /// The default is [`get`](Self::get).
    fn get_aged(
        &self,
        name: &Name,
    ) -> impl Future<Output = Result<Option<Entry>, BackendError>> + Send {
        self.get(name)
    }

    /// Returns the entry that was [announced](Change::Announced), or another one that stands now.
    ///
    /// The default is [`get`](Self::get).
    fn fetch(
        &self,
        name: &Name,
        _announced: &Announcement,
    ) -> impl Future<Output = Result<Option<Entry>, BackendError>> + Send {
        self.get(name)
    }

    /// Acquires the lease, unless an entry stands with a greater fence than `seen`, or the name
    /// [backs off](Self::fail). The grant tells [how many loads](Grant::failures) have failed.
    fn claim(
        &self,
        claim: &Claim,
        seen: u64,
    ) -> impl Future<Output = Result<Claimed, BackendError>> + Send;

    /// Writes an entry, ends the lease and pushes the entry to the waiters, all at once, if and
    /// only if the fence of the grant is still the last one of the name. The entry gets that fence,
    /// and the time of the backend.
    ///
    /// The backend drops the entry after `ttl`. The windows of the entry are for its readers.
    ///
    /// Without a `ttl`, the entry is handed to the waiters and not written. The same happens if the
    /// server is too full to write. In each case the failures before it are forgotten.
    fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> impl Future<Output = Result<Committed, BackendError>> + Send;

    /// Commits that the entry with the fence `seen` is still right, without writing its payload:
    /// it gets the fence of the grant, the time of the backend, and the costs and the windows of
    /// `entry`. It is kept to the end of these windows. The waiters get it as after a
    /// [commit](Self::commit).
    ///
    /// The answer is [`Gone`](Committed::Gone) if the entry is not there any more, and for an entry
    /// that cannot be renewed. The caller then commits the whole entry.
    ///
    /// The default always answers that.
    fn commit_unchanged(
        &self,
        _claim: &Claim,
        _grant: &Grant,
        _seen: u64,
        _entry: &Entry,
    ) -> impl Future<Output = Result<Committed, BackendError>> + Send {
        async { Ok(Committed::Gone) }
    }

    /// Ends the lease and pushes a failure to the present waiters. Returns whether the claim had
    /// the lease; if not, nothing changes.
    ///
    /// With a back-off, the name backs off for its time: a claim is told of that and of the
    /// failure. The failure is [remembered](BackOff::remembered) a while longer. A commit, a put, a
    /// touch, an expiry or an invalidation ends both.
    fn fail(
        &self,
        claim: &Claim,
        failure: &Failure,
        back_off: Option<BackOff>,
    ) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Writes an entry without a load. A load that is under way is not stored. Returns the new
    /// fence.
    ///
    /// Without room for it, the entry is refused, and nothing changes.
    fn put(
        &self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> impl Future<Output = Result<u64, BackendError>> + Send;

    /// Sets the windows of the entry, from now on, without writing its payload. A load that is
    /// under way is not stored. Returns the new fence of the entry. Returns `None` and changes
    /// nothing if there is no entry, or if it [expired](Self::expire).
    fn touch(
        &self,
        name: &Name,
        windows: Windows,
        fence_life: Duration,
    ) -> impl Future<Output = Result<Option<u64>, BackendError>> + Send;

    /// Ends the fresh and the stale window of the entry. It is kept for failures to the end of its
    /// error window, counted from now, but not longer than it would have been. Without an error
    /// window it is removed. A load that is under way is not stored. Returns the fence that was
    /// burnt.
    fn expire(
        &self,
        name: &Name,
        fence_life: Duration,
    ) -> impl Future<Output = Result<u64, BackendError>> + Send;

    /// Ends the lease of a load that is under way, which is then not stored, and the record of
    /// failed loads. The entry stays.
    /// Returns the fence that was burnt.
    fn supersede(
        &self,
        name: &Name,
        fence_life: Duration,
    ) -> impl Future<Output = Result<u64, BackendError>> + Send;

    /// Removes the entry. A load that is under way is not stored. Returns the fence that was burnt.
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
    /// Another holder is in the way.
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
    /// Another process loads.
    Held(Occupied),
    /// The name backs off after this failure.
    BacksOff(BackOff, Failure),
}

/// The answer to [`Store::commit`].
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Committed {
    /// The entry was written, or was written already by this grant.
    Stored,
    /// The entry was pushed to the waiters and not written: it had no `ttl`, or there was no room.
    Pushed,
    /// A newer entry stands.
    Newer(Entry),
    /// The fence was burnt by an invalidation, or the lease was lost and another load is under way.
    Refused,
    /// The entry that was to be [renewed](Store::commit_unchanged) is not there. Nothing has
    /// changed, and the lease goes on.
    Gone,
}

/// The refusal of a pass between two modes.
fn no_pass(from: &Claim, to: &Claim) -> BackendError {
    let why = format!("{:?} does not pass to {:?}", from.mode, to.mode);
    BackendError::new(BackendErrorKind::Refused, why)
}
