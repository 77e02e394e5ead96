//! One leader in the whole fleet.

use std::{ops::Deref, sync::Arc};

use tracing::warn;

use super::{
    builder::{Lock, through_outages},
    space::LockSpace,
    traits::{Renewed, sealed::Sealed},
};
use crate::{
    backend::Mode,
    error::Error,
    key::Key,
    lease::{Lease, run_until},
};

/// A candidate for work that one process of the fleet does at a time: see
/// [`Locks::leader`](super::Locks::leader).
///
/// # Examples
///
/// ```
/// # async fn shutdown_signal() {}
/// # async fn send_invoices(_fence: u64) { std::future::pending().await }
/// # async fn run(locks: bellwether::Locks) -> Result<(), bellwether::Error> {
/// use std::time::Duration;
///
/// let candidate = locks.leader("invoices").lease(Duration::from_secs(5));
/// tokio::select! {
///     // The store of the invoices refuses a fence smaller than the greatest it has seen.
///     led = candidate.run(|term| async move { send_invoices(term.fence()).await }) => led?,
///     () = shutdown_signal() => {}
/// }
/// // Waits until the lease is handed over.
/// locks.shutdown(Duration::from_secs(5)).await;
/// # Ok(()) }
/// ```
pub type Candidate = Lock<Elected>;

/// The kind of a [`Candidate`].
#[derive(Clone, Debug)]
pub struct Elected(Mode);

impl Candidate {
    pub(super) fn new(space: &LockSpace, name: Key) -> Self {
        let mode = if space.has_queues() { Mode::Fair } else { Mode::Exclusive };
        Lock::with_kind(space, name, Elected(mode)).standing_by()
    }

    /// Waits until this candidate leads, runs the work, and returns its output.
    ///
    /// - **Waiting** has no limit. If the backend does not answer, the candidate tries again after
    ///   a pause, and writes that to the log once a minute.
    /// - **A loss of the lease** drops the work as [`Lease::run`] does. The candidate then waits in
    ///   the queue again, and calls `work` again for its next term.
    /// - **A shutdown** of the locks drops the work in the same way, and waits for the handover.
    /// - **The end of the work** ends the term and this call, and hands the lease over.
    ///
    /// No two processes lead at a time: see [what a lock promises](super#what-a-lock-promises).
    ///
    /// # Errors
    ///
    /// `ShutDown`, `InvalidKey`, `InvalidConfig`: as [all locks](super#errors-and-cancel-safety).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the work is dropped, and a task hands the lease over.
    pub async fn run<Work, Done>(&self, mut work: Work) -> Result<Done::Output, Error>
    where
        Work: FnMut(Term) -> Done,
        Done: Future,
    {
        let janitor = &self.space.engine.janitor;
        let mut candidacy = self.space.engine.renewals.meter.candidate(&self.key.text);
        let lead = async {
            loop {
                candidacy.leads(false);
                let acquire = || self.acquire_in(self.kind.0);
                let acquired = through_outages("a candidate", acquire);
                let Some(acquired) = run_until(janitor.stop.cancelled(), acquired).await else {
                    return Err(Error::shut_down());
                };
                let guard = acquired?;
                candidacy.leads(true);
                let term = Term { lease: guard.lease.clone() };
                tokio::select! {
                    biased;
                    () = janitor.stop.cancelled() => return Err(Error::shut_down()),
                    () = guard.lost() => warn!(name = %self.key, "the leader lost its lease"),
                    output = work(term) => {
                        // The work is done, however the release ends. The log has its error.
                        let _ = guard.release().await;
                        return Ok(output);
                    }
                }
            }
        };
        // Tracked: else a shutdown could return before the lease is handed over.
        janitor.tasks.track_future(lead).await
    }
}

impl Sealed for Elected {}

impl Renewed for Elected {}

/// The time in which a [`Candidate`] leads. A term can be cloned and given to tasks. A term is
/// [lost](Lease::lost) at the latest when the work has returned or was dropped.
#[derive(Clone, Debug)]
pub struct Term {
    lease: Arc<Lease>,
}

impl Term {
    /// Returns the [fencing token](super::MutexGuard::fence), which grows with each term.
    pub fn fence(&self) -> u64 {
        self.lease.granted.fence
    }
}

impl Deref for Term {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
