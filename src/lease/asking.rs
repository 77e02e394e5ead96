//! How many acquisitions ask a shard at once, while the others queue.

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

/// After how long a caller asks without a permit: a server that hangs may keep all of them. A burst
/// of 20,000 callers takes less.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The permits to ask each shard.
///
/// A caller that gets a permit at once asks by itself. It may stop to poll, and so keeps its permit
/// from others. So the callers that get none ask in tasks of their own, which have permits of their
/// own.
#[derive(Default)]
pub(super) struct Asking(Shards<OnceLock<AskingPermits>>);

struct AskingPermits {
    of_callers: Semaphore,
    of_tasks: Semaphore,
}

impl Asking {
    /// Asks a shard once for a lease. A permit is waited for no longer than `left`.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the acquisition is undone.
    pub(super) async fn ask(
        &self,
        shard: usize,
        acquisition: &mut Box<Acquisition>,
        limit: Duration,
        left: Duration,
    ) -> Result<Claimed, BackendError> {
        let permits = self.0.of(shard);
        let of_callers = &permits.get_or_init(AskingPermits::new).of_callers;
        if let Ok(_permit) = of_callers.try_acquire() {
            return acquisition.acquire(limit).await;
        }
        // The task owns the acquisition: if the caller leaves, the undo comes after its request.
        let next = Box::new(acquisition.under_new_owner());
        let moved = mem::replace(acquisition, next);
        let asking = ask_in_task(permits, moved, limit, left).instrument(Span::current());
        match AbortOnDropHandle::new(tokio::spawn(asking)).await {
            Ok((asked, answer)) => {
                *acquisition = asked;
                answer
            }
            // The runtime of the task has ended.
            Err(ended) => Err(BackendError::new(BackendErrorKind::Unknown, ended)),
        }
    }
}

impl AskingPermits {
    fn new() -> Self {
        Self { of_callers: Semaphore::new(PERMITS), of_tasks: Semaphore::new(PERMITS) }
    }
}

async fn ask_in_task(
    permits: Arc<OnceLock<AskingPermits>>,
    mut acquisition: Box<Acquisition>,
    limit: Duration,
    left: Duration,
) -> (Box<Acquisition>, Result<Claimed, BackendError>) {
    let of_tasks = &permits.get_or_init(AskingPermits::new).of_tasks;
    let _permit = timeout(LONGEST_WAIT.min(left), of_tasks.acquire()).await;
    let answer = acquisition.acquire(limit).await;
    (acquisition, answer)
}
