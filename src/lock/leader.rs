//! One leader in the whole fleet.

use std::{ops::Deref, sync::Arc};

use tracing::warn;

use super::{
    Locks,
    front::{Lock, Renews, through_outages},
};
use crate::{
    backend::Mode,
    error::Error,
    key::Key,
    lease::{Lease, run_until},
};

/// A candidate for work that one process of the fleet does at a time: see [`Locks::leader`].
///
/// # Examples
///
/// ```
/// # async fn told_to_end() {}
/// # async fn send_invoices(_fence: u64) { std::future::pending().await }
/// # async fn run(locks: bellwether::Locks) -> Result<(), bellwether::Error> {
/// use std::time::Duration;
///
/// let candidate = locks.leader("invoices").lease(Duration::from_secs(5));
/// tokio::select! {
///     // The store of the invoices refuses a fence smaller than the greatest it has seen.
///     led = candidate.run(|term| async move { send_invoices(term.fence()).await }) => led?,
///     () = told_to_end() => {}
/// }
/// // Waits until the lease is handed over.
/// locks.shutdown(Duration::from_secs(5)).await;
/// # Ok(()) }
/// ```
pub type Candidate = Lock<Elected>;

/// The kind of a [`Candidate`].
#[derive(Clone, Debug)]
pub struct Elected(Mode);

impl Renews for Elected {}

impl<Servers> Locks<Servers> {
    /// Returns a candidate for work that one process does at a time, for as long as it can.
    ///
    /// It is the [mutex](Self::mutex) of that name with a loop around it, and over one backend the
    /// [fair](super::Mutex::fair) one.
    pub fn leader(&self, name: impl Into<Key>) -> Candidate {
        let mode = if self.space.has_queues() { Mode::Fair } else { Mode::Exclusive };
        Lock::new(&self.space, name.into(), Elected(mode)).standing_by()
    }
}

impl Candidate {
    /// Waits until this candidate leads, runs the work, and returns its output.
    ///
    /// - **Waiting** has no limit. If the backend does not answer, the candidate tries again after
    ///   a pause, and says so in the log once a minute.
    /// - **A loss of the lease** drops the work as [`Lease::run`] does. The candidate then waits in
    ///   the queue again, and calls `work` anew for its next term.
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
    /// If the future is dropped, so is the work, and the lease is handed over in the background.
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
                let held = through_outages("a candidate", || self.acquire_in(self.kind.0)).await?;
                candidacy.leads(true);
                let led = run_until(held.lost(), work(Term { lease: held.lease.clone() }));
                match run_until(janitor.stop.cancelled(), led).await {
                    Some(Some(output)) => {
                        // The work is done, however the release ends. The log tells of an error.
                        let _ = held.release().await;
                        return Ok(output);
                    }
                    Some(None) => warn!(name = %self.key, "the leader lost its lease"),
                    None => return Err(Error::shut_down()),
                }
            }
        };
        // Tracked: else a shutdown could return before the lease is handed over.
        janitor.tasks.track_future(lead).await
    }
}

/// The time in which a [`Candidate`] leads. It can be cloned and given to tasks. It is
/// [lost](Lease::lost) when the work has returned or was dropped, at the latest.
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
