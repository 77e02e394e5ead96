//! How many acquisitions send a request to a shard at once, while other acquisitions queue.

use std::{
    mem,
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{sync::Semaphore, time::timeout};
use tokio_util::task::AbortOnDropHandle;
use tracing::{Instrument, Span};

use super::Acquisition;
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
    /// Sends one request for a lease to a shard. Waits for a permit for no longer than `left`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the acquisition is undone.
    pub(super) async fn acquire(
        &self,
        shard: usize,
        acquisition: &mut Box<Acquisition>,
        limit: Duration,
        left: Duration,
    ) -> Result<Claimed, BackendError> {
        let permits = self.0.of(shard);
        let of_callers = &permits.get_or_init(RequestPermits::new).of_callers;
        if let Ok(_permit) = of_callers.try_acquire() {
            return acquisition.acquire(limit).await;
        }
        // The task owns the acquisition. So if the caller leaves, the undo comes after the request.
        let next = Box::new(acquisition.under_new_owner());
        let moved = mem::replace(acquisition, next);
        let request = acquire_in_task(permits, moved, limit, left).instrument(Span::current());
        match AbortOnDropHandle::new(tokio::spawn(request)).await {
            Ok((returned, answer)) => {
                *acquisition = returned;
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

async fn acquire_in_task(
    permits: Arc<OnceLock<RequestPermits>>,
    mut acquisition: Box<Acquisition>,
    limit: Duration,
    left: Duration,
) -> (Box<Acquisition>, Result<Claimed, BackendError>) {
    let of_tasks = &permits.get_or_init(RequestPermits::new).of_tasks;
    let _permit = timeout(LONGEST_WAIT.min(left), of_tasks.acquire()).await;
    let answer = acquisition.acquire(limit).await;
    (acquisition, answer)
}
