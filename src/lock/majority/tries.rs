//! One try at all servers, and what becomes of it.

use std::time::Duration;

use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all, ready},
};
use tokio::time::{Instant, timeout};

use super::{Majority, afresh, known::ServerHolder, pass_with_fence};
use crate::{
    backend::{Acquired, Claim, Grant, Leases, Occupied, Owner, in_time},
    error::BackendError,
    lease::{Acquisition, Said, trusted},
};

/// The acquisition at each server in one try, and the answer of each.
pub(super) struct Try<T> {
    pub(super) acquisitions: Vec<Acquisition>,
    pub(super) answers: Vec<Result<T, BackendError>>,
    /// Some of the lease is left.
    in_time: bool,
}

impl<T> Try<T>
where
    for<'t> Said: From<&'t T>,
{
    /// Returns whether at least this number of servers has granted the claim.
    pub(super) fn is_granted_by(&self, needed: usize) -> bool {
        let said = self.answers.iter().flatten().map(Said::from);
        said.filter(|said| matches!(said, Said::Granted)).count() >= needed && self.in_time
    }
}

/// Why a try has no majority: whether a server has granted it, and the lease in the way.
pub(super) type Refusal = (bool, Result<Occupied, BackendError>);

impl Majority {
    /// Asks all servers, and writes the fence back. Returns the fence if a majority has granted
    /// both.
    pub(super) async fn ask_for_majority(
        &self,
        claim: &Claim,
        begun: Instant,
    ) -> Result<u64, Refusal> {
        let tried = self.ask_all(self.acquisitions(&afresh(claim)), begun, acquire).await;
        if !tried.is_granted_by(self.needed()) {
            let is_split = tried.acquisitions.iter().any(Acquisition::is_granted);
            self.give_back(tried.acquisitions).await;
            return Err((is_split, self.refused(tried.answers)));
        }
        let granted = |answer: &Result<Acquired, _>| match answer {
            Ok(Acquired::Granted(grant)) => Some(grant.fence()),
            _ => None,
        };
        let fences: Vec<_> = tried.answers.iter().map(granted).collect();
        let fence = fences.iter().flatten().copied().max().unwrap_or_default();
        let write_back = |at: usize, server, claim: Claim| match fences.get(at).copied().flatten() {
            Some(theirs) if theirs == fence => ready(Ok(Some(Grant::new(fence)))).boxed(),
            theirs => pass_with_fence(server, theirs.map(|_| claim.clone()), claim, fence),
        };
        let tried = self.ask_all(tried.acquisitions, begun, write_back).await;
        if !tried.is_granted_by(self.needed()) {
            self.give_back(tried.acquisitions).await;
            let errors = tried.answers.into_iter().filter_map(Result::err);
            return Err((false, Err(self.undecided(errors))));
        }
        self.keep_granted(tried.acquisitions, claim.owner, fence);
        Ok(fence)
    }

    /// Returns an acquisition for each server.
    pub(super) fn acquisitions(&self, claim: &Claim) -> Vec<Acquisition> {
        let servers = self.servers.iter();
        servers.map(|server| Acquisition::new(server.clone(), claim.clone())).collect()
    }

    /// Asks all servers at once, for a lease that counts from `begun`.
    pub(super) async fn ask_all<'a, T, F>(
        &'a self,
        acquisitions: Vec<Acquisition>,
        begun: Instant,
        ask: impl Fn(usize, &'a dyn Leases, Claim) -> F,
    ) -> Try<T>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'a,
        for<'t> Said: From<&'t T>,
    {
        let lease = acquisitions.first().map(|one| one.claim().lease).unwrap_or_default();
        let ask = &ask;
        let asked = self.servers.iter().zip(acquisitions).enumerate();
        let asked = asked.map(|(at, (server, mut acquisition))| async move {
            let (backend, claim) = (server.backend().as_ref(), acquisition.claim().clone());
            let ask = |_, _| in_time(self.limit, ask(at, backend, claim));
            let answer = acquisition.ask(Duration::MAX, ask).await;
            (acquisition, answer.map(|(answer, _)| answer))
        });
        let (acquisitions, answers) = join_all(asked).await.into_iter().unzip();
        Try { acquisitions, answers, in_time: begun.elapsed() < trusted(lease) }
    }

    /// Keeps what was granted. Acquisitions without an answer undo themselves.
    pub(super) fn keep_granted(&self, acquisitions: Vec<Acquisition>, ours: Owner, fence: u64) {
        // A grant without an answer is undone under its owner, so it must not count under it.
        let holders = acquisitions.iter().map(|one| match one.is_granted() {
            true => ServerHolder::granted(one.claim().owner),
            false => ServerHolder::none(),
        });
        self.held.insert(ours, fence, holders.collect());
        let granted = acquisitions.into_iter().filter(Acquisition::is_granted);
        granted.for_each(Acquisition::keep);
    }

    /// Gives back what was granted. A release that takes longer than the limit goes on in the
    /// background. Acquisitions without an answer undo themselves.
    pub(super) async fn give_back(&self, acquisitions: Vec<Acquisition>) {
        let granted = acquisitions.into_iter().filter(Acquisition::is_granted);
        join_all(granted.map(|one| timeout(self.limit, one.give_back()))).await;
    }
}

fn acquire(
    _at: usize,
    server: &dyn Leases,
    claim: Claim,
) -> BoxFuture<'_, Result<Acquired, BackendError>> {
    async move { server.acquire(&claim).await }.boxed()
}
