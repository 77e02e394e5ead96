//! The backends: [`MemoryBackend`] in this process, and `RedisBackend` in a Redis or Valkey server,
//! for a fleet.
//!
//! Each backend implements two traits. `Leases` grants the right to act on a name for a limited
//! time, and `Store` adds entries and latches. One conformance suite runs against all backends. The
//! traits are hidden here, because any version may change them.
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
//! - grant a fence that is not greater than the last fence that it remembers,
//! - accept a commit whose fence is not the last fence of its name,
//! - write half of an operation.
//!
//! Every operation ends within a bounded time, with an answer or without. A backend bounds each of
//! its waits by a time-out.
//!
//! Every operation may be sent twice. The second request does nothing that the first request did
//! not do, with two exceptions. `Store::edit` writes the same once more. `Leases::clear` and
//! `Store::clear_latch` also end what was acquired or set in between.

mod change;
pub(crate) mod channels;
mod claim;
mod entry;
mod holders;
mod holding;
mod local_tier;
mod mark;
mod memory;
#[cfg(feature = "redis")]
pub(crate) mod redis;
mod store;
mod tags;
pub(crate) mod top_questions;

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
pub use self::{claim::SemaphoreKind, holding::Holding, memory::MemoryBackend};

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
    holding::{Connections, FoundLocks, SearchFrom},
    local_tier::Tap,
    mark::{Mark, Marked, Tick, TickStep},
    store::{Claimed, Committed, Countdown, Edit, EntryAnswers, Store},
    tags::{TagEnd, TagEnds, Tagged, Undecodable},
};

pub(crate) use self::{
    claim::{LOCK_FENCE_LIFE, Need},
    local_tier::{STRIPES, stripe_of},
    tags::{TAG_LIFE, TAGGED_LIFE},
};

/// How many leases one request renews. A script with this many leases takes some hundred
/// microseconds.
pub(crate) const RENEWAL_BATCH: usize = 100;

/// The right to act on a name for a limited time.
///
/// Every error says whether the operation may have happened. Every future may be dropped at any
/// point. Then the caller does not know whether the operation happened, and undoes it.
#[doc(hidden)]
#[async_trait]
pub trait Leases: Send + Sync + 'static {
    /// Returns the process of the owners at this backend. One request keeps all queue entries of
    /// the process.
    fn process(&self) -> ProcessId {
        ProcessId::of_this()
    }

    /// Returns an owner for a claim, which no other acquisition has.
    fn new_owner(&self) -> Owner {
        Owner::from_process(self.process())
    }

    /// Grants the lease if it is free for a claim of this mode. To the owner that has the lease,
    /// grants it again with the same fence.
    ///
    /// A claim that [waits](Claim::waits) and is not granted enters the queue. The entry lasts
    /// while the process of the claim [keeps](Self::keep) it.
    async fn acquire(&self, claim: &Claim) -> Result<Claimed, BackendError>;

    /// Makes each lease last its full time from now, if its owner still has the lease. Returns one
    /// answer for each claim, in the order of the claims.
    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError>;

    /// Keeps all queue entries of a process for another `life` from now, in the common queue of
    /// these claims. Grants a free lease as a [release](Self::release) does. The answer is about
    /// the given claims only.
    ///
    /// The default is for a backend without queues: it keeps no entry, and the waiters send their
    /// claims again.
    async fn keep(&self, claims: &[Claim], _life: Duration) -> Result<Kept, BackendError> {
        let stands = vec![false; claims.len()];
        Ok(Kept { has_lapsed: true, stands, ..Kept::default() })
    }

    /// Ends the lease of the claim, if the claim has the lease, and the queue entry of the claim.
    /// Returns whether the claim had the lease.
    ///
    /// The release grants the free lease to the claims at the head of the queue, in their order and
    /// while they fit. It pushes each grant to the process of the claim ([`Change::Granted`]). Such
    /// a lease lasts for 2 s at most, unless it is renewed. If that process has no subscription, an
    /// [exclusive](Mode::Exclusive) claim loses its queue entry, and any other claim keeps it.
    async fn release(&self, claim: &Claim) -> Result<bool, BackendError>;

    /// Passes a lease from its holder to another claim of the same name in one step, with a new
    /// fence. Returns `None` if the holder no longer has the lease.
    ///
    /// A lease passes from an exclusive or fair claim to another such claim, from a writer to a
    /// reader, and from the only reader to a writer. Beside another reader, the answer is `None`.
    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError>;

    /// Makes a lease last its full time from now, and gives it this fence. The last fence of the
    /// name becomes this fence, unless the last fence is greater. Returns whether the claim has the
    /// lease.
    ///
    /// Only the locks of a [`Redlock`](crate::Redlock) need this method. The default refuses.
    async fn set_fence(&self, _claim: &Claim, _fence: u64) -> Result<bool, BackendError> {
        Err(BackendError::refused("the backend cannot be one of the servers of a `Redlock`"))
    }

    /// Sets the [mark](Mark) of a name to a tick, if the claim has the mutex of the name and the
    /// tick [is possible](Tick::is_possible). With the step [`Forget`](TickStep::Forget), removes
    /// the mark without the mutex. In all cases, returns the mark before the request.
    ///
    /// Only jobs need this method. The default refuses.
    async fn mark(&self, _claim: &Claim, _tick: Tick) -> Result<Marked, BackendError> {
        Err(BackendError::refused("the backend keeps no marks"))
    }

    /// Returns the holder of a lock or of a load, and the number of waiters. A load has the kind
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

    /// Publishes what this process does, as an [answer to `top`](crate::Cache::answer_top). The
    /// default does nothing.
    async fn answer(&self, _name: &Name, _text: &str) -> Result<(), BackendError> {
        Ok(())
    }

    /// Ends all leases in the semaphore of a mode and removes its queue, or the foreign data in its
    /// place. Wakes the waiters, and pushes the end to each holder ([`Change::Ended`]). Returns
    /// whether there was something to remove.
    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError>;

    /// Pushes to the process of a holder that another caller has ended the lease. The default does
    /// nothing: the holder notices the loss at its next renewal.
    async fn tell_ended(&self, _name: &Name, _owner: Owner) -> Result<(), BackendError> {
        Ok(())
    }

    /// Registers the holders of an engine for the pushes to owners that do not wait. The default is
    /// for a backend without such pushes.
    fn watch(&self, _holders: Weak<dyn Holders>) {}

    /// Registers a waiter for the changes of a name, before the waiter sends its request. The
    /// waiter receives the changes for all waiters, and the changes for the owner of its claim.
    /// Without a claim, the waiter receives all changes. The method sends nothing to the server
    /// until the waiter [subscribes](Changes::subscribe).
    fn listen(&self, name: &Name, claim: Option<&Claim>) -> Changes;

    /// Subscribes to all changes of a name. Returns when the server has confirmed the subscription.
    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let mut changes = self.listen(name, None);
        in_time(ANSWER_LIMIT, changes.confirmed().map(Ok)).await?;
        Ok(changes)
    }

    /// Returns how long an operation takes at most, if the backend bounds its operations. Then no
    /// caller sets a timer.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    /// Waits until the backend has undone what it undoes by itself, or until the limit passes.
    async fn settle(&self, _limit: Duration) {}

    /// Returns whether other processes may use the same data. Defaults to `true`.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns the round trip and the age of the connections. The default is for a backend without
    /// connections.
    fn connections(&self) -> Connections {
        Connections::default()
    }

    /// Returns the number of the shard that keeps a name. Shards are like the nodes of a cluster:
    /// each fails by itself, and a request goes to a single shard. The numbers are few, and each
    /// number always stands for the same shard.
    fn shard(&self, _name: &Name) -> usize {
        0
    }

    /// Returns a watch that changes with each new connection. The server may not know the held
    /// leases, as after a failover, so these leases are renewed at once. The default is a closed
    /// watch, for a backend without connections.
    fn new_connections(&self) -> watch::Receiver<()> {
        watch::channel(()).1
    }
}

/// The limit of an operation if its backend has no limit.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Waits for the answer to an operation. The outcome is unknown if the limit passes first.
pub(crate) async fn in_time<T>(
    limit: Duration,
    operation: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match timeout(limit, operation).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(BackendError::timed_out(elapsed)),
    }
}

/// Waits as [`in_time`] does, without a timer if the backend keeps the limit by itself.
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
