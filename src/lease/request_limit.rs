//! How many acquisitions send a request to a shard at once, while other acquisitions queue.

use std::{
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    runtime::Handle,
    sync::Semaphore,
    time::{Instant, timeout_at},
};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span};

use super::{Acquisition, local_queue::Slot};
use crate::{
    backend::Claimed,
    error::{BackendError, BackendErrorKind},
    shards::Shards,
};

/// The acquisitions that may be under way at one shard: enough to keep a connection busy, and few
/// enough for an answer in time.
const PERMITS: usize = 128;

/// After how long a request is sent without a permit, because a server that hangs may keep all
/// permits. A burst of 20,000 callers takes less.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The permits to send a request to each shard.
///
/// A caller that gets a permit at once polls its own request. Such a caller may stop polling, and
/// then keeps the permit from other callers. So a caller that gets no permit spawns a task for its
/// request, and the tasks share other permits.
#[derive(Default)]
pub(super) struct RequestLimit(Shards<OnceLock<RequestPermits>>);

struct RequestPermits {
    of_callers: Semaphore,
    of_tasks: Semaphore,
}

impl RequestLimit {
    /// Sends one request for a lease to a shard. Waits for a permit until `deadline` at most.
    /// `slot` is the slot of the caller in the local queue, if the mode has a local queue.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the acquisition is undone, and its slot goes to the next caller.
    /// If a task has them, both happen once the runtime of the task runs.
    pub(super) async fn acquire(
        &self,
        shard: usize,
        acquisition: &mut Box<Acquisition>,
        slot: &mut Option<Slot>,
        limit: Duration,
        deadline: Instant,
    ) -> Result<Claimed, BackendError> {
        let permits = self.0.of(shard);
        let of_callers = &permits.get_or_init(RequestPermits::new).of_callers;
        if let Ok(_permit) = of_callers.try_acquire() {
            return acquisition.acquire(limit).await;
        }
        // The task owns the acquisition. So if the caller leaves, the undo comes after the request.
        let next = Box::new(acquisition.under_new_owner(Handle::current()));
        let moved = Moved { acquisition: mem::replace(acquisition, next), slot: slot.take() };
        let request = moved.acquire(permits, limit, deadline).instrument(Span::current());
        match AbortOnDropHandle::new(tokio::spawn(request)).await {
            Ok((returned, answer)) => {
                *acquisition = returned.acquisition;
                *slot = returned.slot;
                answer
            }
            // The runtime of the task has ended.
            Err(ended) => Err(BackendError::new(BackendErrorKind::Unknown, ended)),
        }
    }
}

impl RequestPermits {
    fn new() -> Self {
        Self { of_callers: Semaphore::new(PERMITS), of_tasks: Semaphore::new(PERMITS) }
    }
}

/// What a caller moves into the task of its request.
struct Moved {
    acquisition: Box<Acquisition>,
    slot: Option<Slot>,
}

impl Moved {
    /// Waits for a permit, and sends the request.
    async fn acquire(
        mut self,
        permits: Arc<OnceLock<RequestPermits>>,
        limit: Duration,
        deadline: Instant,
    ) -> (Self, Result<Claimed, BackendError>) {
        let of_tasks = &permits.get_or_init(RequestPermits::new).of_tasks;
        let end = deadline.min(Instant::now() + LONGEST_WAIT);
        if let Some(slot) = &self.slot {
            slot.note_permit_wait(end);
        }
        let _permit = timeout_at(end, of_tasks.acquire()).await;
        if let Some(slot) = &self.slot {
            slot.note_request();
        }
        let answer = self.acquisition.acquire(limit).await;
        (self, answer)
    }
}
