//! The backends: [`MemoryBackend`] in this process, and `RedisBackend` in a Redis or Valkey server,
//! for a fleet.
//!
//! They implement two traits. `Leases` is the right to act on a name for a limited time, and
//! `Store` adds entries and latches. One conformance suite runs against all backends. The traits
//! are hidden here, because any version may change them.
//!
//! # Allowed failures
//!
//! A backend may fail at any time, and may not know whether an operation happened
//! ([`BackendErrorKind::Unknown`]). It may lose, double, delay and reorder pushes. It may forget
//! entries.
//!
//! While it keeps its data and its clock, a backend must never
//!
//! - grant one exclusive lease to two holders, a write lease beside a reader, or more permits than
//!   there are,
//! - hand out a fence that is not greater than the last one that it remembers,
//! - accept a commit whose fence is not the last one of its name,
//! - write half of an operation.
//!
//! Every operation ends within a bounded time, with an answer or without. A backend puts its own
//! time-out on what it waits for.
//!
//! Every operation may be sent twice. The second one does nothing that the first one did not do,
//! with two exceptions. `Store::edit` is one more write of the same. `Leases::clear` and
//! `Store::clear_latch` end what has come to stand there in between.

mod change;
pub(crate) mod channels;
mod claim;
mod entry;
mod holders;
mod inspect;
mod mark;
mod memory;
pub(crate) mod questions;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod store;
mod tags;
mod tap;

use std::{sync::Weak, time::Duration};

use async_trait::async_trait;
use futures_util::FutureExt;
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};

#[cfg(doc)]
use crate::error::BackendErrorKind;
use crate::{
    error::BackendError,
    key::{Name, Namespace},
    time::Pauses,
};

#[cfg(feature = "redis")]
pub use self::redis::{RedisBackend, RedisBackendBuilder, failover};
pub use self::{claim::SemaphoreKind, inspect::Holding, memory::MemoryBackend};

#[doc(hidden)]
pub use self::{
    change::{Announcement, BackOff, Change, Failure, HandedHold, Handover},
    channels::{Changes, Channels},
    claim::{
        Claim, Grant, HANDOVER_LIFE, Kept, Mode, Occupied, Owner, ProcessId, QUEUE_ENTRY_LIFE,
        Renewal,
    },
    entry::{Entry, EntryKind, Windows},
    holders::Holders,
    inspect::{Connections, FoundLocks, SearchFrom},
    mark::{Mark, Marked, Tick, TickStep},
    store::{Claimed, Committed, Countdown, Edit, EntryAnswers, Store},
    tags::{TagEnd, TagEnds, Tagged, Undecodable},
    tap::Tap,
};

pub(crate) use self::{
    claim::Need,
    tags::{TAG_LIFE, TAGGED_LIFE},
    tap::{STRIPES, stripe_of},
};

/// How many leases one request renews. A script of so many takes some hundred microseconds.
pub(crate) const RENEWAL_BATCH: usize = 100;

/// The right to act on a name for a limited time.
///
/// Every error says whether the operation may have happened. Every future may be dropped at any
/// point. Whether its operation happened is unknown then, and the caller undoes it.
#[doc(hidden)]
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Returns the process of the owners at this backend. Its queue entries are kept together.
    fn process(&self) -> ProcessId {
        ProcessId::of_this()
    }

    /// Returns an owner for a claim, which no other acquisition has.
    fn new_owner(&self) -> Owner {
        Owner::of(self.process())
    }

    /// Grants the lease if it is free for a claim of its mode. Grants it again, with the same
    /// fence, to the owner that has it.
    ///
    /// A claim that [waits](Claim::waits) and is not granted enters the queue, while its process
    /// [keeps](Self::keep) its entry.
    async fn acquire(&self, claim: &Claim) -> Result<Claimed, BackendError>;

    /// Makes each lease last its full time from now, if its owner still has it. Returns one answer
    /// for each claim, in their order.
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError>;

    /// Keeps all queue entries of a process for another `life` from now, in the one queue of these
    /// claims. Grants what is free as a [release](Self::release) does. The answer is about the
    /// given claims only.
    ///
    /// The default is for a backend without queues: it keeps nothing, and the waiters ask again.
    async fn keep(&self, claims: &[Claim], _life: Duration) -> Result<Kept, BackendError> {
        let stands = vec![false; claims.len()];
        Ok(Kept { has_lapsed: true, stands, ..Kept::default() })
    }

    /// Ends the lease if the claim has it, and its queue entry. Returns whether the claim had the
    /// lease.
    ///
    /// The release grants what is free then to the claims at the head of the queue, in their order
    /// and while they fit, and pushes that to their processes ([`Change::Granted`]). Such a lease
    /// lasts for 2 s at most, unless it is renewed. A claim whose process does not
    /// hear of it keeps its place, but for an [exclusive](Mode::Exclusive) one, which loses it.
    async fn release(&self, claim: &Claim) -> Result<bool, BackendError>;

    /// Passes a lease from its holder to another claim of the same name in one step, with a new
    /// fence. Returns `None` if the holder no longer has it.
    ///
    /// A lease passes from one exclusive or fair claim to another, from a writer to a reader, and
    /// from the only reader to a writer; with another reader, the answer is `None`.
    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError>;

    /// Makes a lease last its full time from now, and gives it this fence. The last fence of the
    /// name becomes this one, unless it is greater. Returns whether the claim has the lease.
    ///
    /// Only the locks of a [`Redlock`](crate::Redlock) need it. The default refuses.
    async fn set_fence(&self, _claim: &Claim, _fence: u64) -> Result<bool, BackendError> {
        Err(BackendError::refused("the backend cannot be one of the servers of a `Redlock`"))
    }

    /// Sets the [mark](Mark) of a name to a tick, if the claim has the mutex of the name and the
    /// tick [is possible](Tick::is_possible). Removes it, whoever has the mutex, if that is the
    /// [step](TickStep::Forget). Returns the mark before, in any case.
    ///
    /// Fronts without it, such as the locks, work over any backend. The default refuses.
    async fn mark(&self, _claim: &Claim, _tick: Tick) -> Result<Marked, BackendError> {
        Err(BackendError::refused("the backend keeps no marks"))
    }

    /// Returns who holds a lock, or loads an entry, and how many wait. A load has the kind
    /// [`Mutex`](SemaphoreKind::Mutex).
    ///
    /// The error is [`BackendErrorKind::Foreign`] if the name holds something that is not a lease.
    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError>;

    /// Does one step of a search for the locks of a namespace that are held or waited for. The
    /// default refuses.
    async fn lock_names(
        &self,
        _namespace: &Namespace,
        _from: &SearchFrom,
    ) -> Result<FoundLocks, BackendError> {
        Err(BackendError::refused("the backend does not search for locks"))
    }

    /// Publishes what this process does, for those who [ask](crate::Cache::answer_top). The default
    /// does nothing.
    async fn answer(&self, _name: &Name, _text: &str) -> Result<(), BackendError> {
        Ok(())
    }

    /// Ends what is held in the semaphore of a mode, and its queue, whatever stands there, and
    /// wakes the waiters. Pushes that to the holders as well ([`Change::Ended`]). Returns whether
    /// something was there.
    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError>;

    /// Pushes to the process of a holder that its lease was ended from outside. The default does
    /// nothing: the holder learns of it at its next renewal.
    async fn tell_ended(&self, _name: &Name, _owner: Owner) -> Result<(), BackendError> {
        Ok(())
    }

    /// Has these holders told what is pushed for owners of this process that do not wait. The
    /// default is for a backend that pushes nothing of the kind.
    fn watch(&self, _holders: Weak<dyn Holders>) {}

    /// Registers a waiter for the changes of a name, before it asks: those for all, and those for
    /// the owner of its claim. Without a claim, it gets all changes. Nothing is sent to the server
    /// until the waiter [subscribes](Changes::subscribe).
    fn listen(&self, name: &Name, claim: Option<&Claim>) -> Changes;

    /// Subscribes to all changes of a name. Returns when the server has confirmed the subscription.
    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let mut changes = self.listen(name, None);
        in_time(ANSWER_LIMIT, changes.confirmed().map(Ok)).await?;
        Ok(changes)
    }

    /// Returns how long an operation takes at most, if the backend bounds its operations itself. No
    /// caller sets a timer then.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// Waits until what the backend undoes by itself is undone, or the limit passes.
    async fn settle(&self, _limit: Duration) {}

    /// Returns whether other processes may use the same data. Defaults to `true`.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns what is known of the connections. The default is for a backend without any.
    fn connections(&self) -> Connections {
        Connections::default()
    }

    /// Returns the number of the shard that keeps a name. Shards fail apart, as the nodes of a
    /// cluster do, and are not asked together. There are few numbers, each for one shard for good.
    fn shard(&self, _name: &Name) -> usize {
        0
    }

    /// Returns a watch that changes with each new connection. The server may not know the leases
    /// that are held, as after a failover, so they are renewed at once. The default has ended: it
    /// is for a backend without connections.
    fn new_connections(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }
}

/// The limit where a backend has none of its own.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Waits for the answer to an operation; the outcome is unknown if the limit passes first.
pub(crate) async fn in_time<T>(
    limit: Duration,
    operation: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    timeout(limit, operation).await.unwrap_or_else(|elapsed| Err(BackendError::timed_out(elapsed)))
}

/// Like [`in_time`], without a timer where the backend keeps the limit by itself.
pub(crate) async fn answered_by<T>(
    backend: &dyn Leases,
    limit: Duration,
    operation: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match backend.time_limit() {
        Some(own) if own <= limit => operation.await,
        _ => in_time(limit, operation).await,
    }
}

/// The further tries of an operation that may be sent twice. After an unknown outcome, perhaps only
/// the answer was lost.
pub(crate) struct FurtherTries {
    left: u32,
    pauses: Pauses,
}

impl FurtherTries {
    pub(crate) fn new(count: u32) -> Self {
        Self { left: count, pauses: Pauses::default() }
    }

    /// Pauses before the next try, if the last try `needs` one and a try is left. Returns whether
    /// to try again.
    pub(crate) async fn next(&mut self, needs: bool) -> bool {
        if !needs || self.left == 0 {
            return false;
        }
        self.left -= 1;
        sleep(self.pauses.next()).await;
        true
    }
}
