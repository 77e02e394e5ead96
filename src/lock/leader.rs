//! One leader in the whole fleet.

use std::{ops::Deref, sync::Arc};

use tracing::warn;

use super::front::{Lock, Renews, through_outages};
use crate::{
    backend::Mode,
    error::Error,
    lease::{Lease, run_until},
};

/// A candidate for work that one process of the fleet does at a time. Created by
/// [`Locks::leader`](crate::Locks::leader).
pub type Candidate = Lock<Elected>;

/// The kind of a [`Candidate`].
#[derive(Clone, Debug)]
pub struct Elected(pub(super) Mode);

impl Renews for Elected {}

impl Candidate {
    /// Waits until this candidate leads, runs the work, and returns its output.
    ///
    /// - **Waiting** has no limit. If the backend does not answer, the candidate tries again after
    ///   a pause, and says so in the log once a minute.
    /// - **A loss of the lease** drops the future of the work where it waits. The candidate then
    ///   waits in the queue again, and calls `work` anew for its next term. Code that does not wait
    ///   runs on until it does, so a write that must not come late needs the
    ///   [fence](Term::fence).
    /// - **A shutdown** of the locks drops the work in the same way, and waits for the handover.
    /// - **The end of the work**, be its output a success or an error, ends the term and this call.
    ///   The lease is handed over to the next candidate. To stand again, call this again.
    ///
    /// No two processes lead at a time: see [what a lock promises](super#what-a-lock-promises).
    ///
    /// # Errors
    ///
    /// The `ShutDown`, `InvalidKey` and `InvalidConfig` of [all
    /// locks](super#errors-and-cancel-safety).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, so is the work, and the lease is handed over in the background.
    pub async fn run<Work, Done>(&self, work: Work) -> Result<Done::Output, Error>
    where
        Work: FnMut(Term) -> Done,
        Done: Future,
    {
        // Tracked: else a shutdown could return before the lease is handed over.
        self.space.engine.janitor().track(self.lead(work)).await
    }

    async fn lead<Work, Done>(&self, mut work: Work) -> Result<Done::Output, Error>
    where
        Work: FnMut(Term) -> Done,
        Done: Future,
    {
        loop {
            let held = through_outages("a candidate", || self.acquire_in(self.kind.0)).await?;
            let led = run_until(held.lost(), work(Term { lease: held.record().clone() }));
            match run_until(self.space.engine.janitor().stopped(), led).await {
                Some(Some(output)) => {
                    // The work is done, however the release ends. The log tells of an error.
                    let _ = held.release().await;
                    return Ok(output);
                }
                Some(None) => warn!(name = %self.key, "the leader lost its lease"),
                None => return Err(Error::shut_down()),
            }
        }
    }
}

/// The time in which a [`Candidate`] leads.
///
/// It can be cloned and given to tasks. It is [lost](Lease::lost) when the work has returned or was
/// dropped, at the latest. From then on, another process may lead.
///
/// # Examples
///
/// ```
/// # use bellwether::{Error, Locks};
/// # async fn next_order() -> u32 { 3 }
/// # async fn bill(_order: u32, _fence: u64) {}
/// async fn bill_all(locks: &Locks) -> Result<(), Error> {
///     locks
///         .leader("billing")
///         .run(async |term| {
///             // A task with the term stops by itself, also if the lease is lost.
///             loop {
///                 tokio::select! {
///                     order = next_order() => bill(order, term.fence()).await,
///                     () = term.lost() => break,
///                 }
///             }
///         })
///         .await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Term {
    lease: Arc<Lease>,
}

impl Term {
    /// Returns the [fencing token](super::MutexGuard::fence), which grows with each term.
    pub fn fence(&self) -> u64 {
        self.lease.fence()
    }
}

impl Deref for Term {
    type Target = Lease;

    fn deref(&self) -> &Lease {
        &self.lease
    }
}
