//! One try at all servers, and what becomes of it.

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::{Majority, known::ServerHolder};
use crate::{
    backend::{Claim, DynLeases, Owner},
    error::BackendError,
    lease::{Acquisition, Said, trusted},
};

/// The acquisition at each server in one try, and the answer of each.
pub(super) struct Try<T> {
    pub(super) acquisitions: Vec<Acquisition>,
    pub(super) answers: Vec<Result<T, BackendError>>,
    /// The try took so little time that some of the lease is left.
    in_time: bool,
}

impl<T> Try<T> {
    /// Returns whether at least this number of servers has granted the claim.
    pub(super) fn is_granted_by(&self, needed: usize) -> bool {
        self.acquisitions.iter().filter(|one| one.is_granted()).count() >= needed && self.in_time
    }
}

impl Majority {
    /// Returns an acquisition for each server.
    pub(super) fn acquisitions(&self, claim: &Claim) -> Vec<Acquisition> {
        let servers = self.servers.iter();
        servers.map(|server| Acquisition::new(server.clone(), claim.clone())).collect()
    }

    /// Asks all servers at once.
    pub(super) async fn ask_all<'a, T, F>(
        &'a self,
        acquisitions: Vec<Acquisition>,
        ask: impl Fn(usize, &'a dyn DynLeases, Claim) -> F,
    ) -> Try<T>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'a,
        for<'t> Said: From<&'t T>,
    {
        let lease = acquisitions.first().map_or(Duration::ZERO, |one| one.claim().lease);
        let sent = Instant::now();
        let ask = &ask;
        let asked = self.servers.iter().zip(acquisitions).enumerate();
        let asked = asked.map(|(at, (server, mut acquisition))| async move {
            let (backend, claim) = (server.backend().as_ref(), acquisition.claim().clone());
            let ask = |_, _| self.in_time(lease, ask(at, backend, claim));
            let answer = acquisition.ask(Duration::MAX, ask).await;
            let answer = answer.map(|(answer, _)| answer);
            // A server without a lease to pass was not asked.
            if !matches!(answer.as_ref().map(Said::from), Ok(Said::Nothing)) {
                self.order.answered(at, &answer);
            }
            (acquisition, answer)
        });
        let (acquisitions, answers) = join_all(asked).await.into_iter().unzip();
        let in_time = sent.elapsed() < trusted(lease);
        Try { acquisitions, answers, in_time }
    }

    /// Keeps what a majority has granted, and gives the rest back.
    ///
    /// Returns whether there was a majority, and the answers.
    pub(super) async fn settle<T>(
        &self,
        tried: Try<T>,
        ours: Owner,
    ) -> (bool, Vec<Result<T, BackendError>>) {
        let won = tried.is_granted_by(self.needed());
        match won {
            true => self.keep_granted(tried.acquisitions, ours),
            false => self.give_back(tried.acquisitions).await,
        }
        (won, tried.answers)
    }

    /// Keeps what was granted. Acquisitions without an answer undo themselves.
    pub(super) fn keep_granted(&self, acquisitions: Vec<Acquisition>, ours: Owner) {
        // A grant without an answer is undone under its owner, so it must not count under it.
        let holders = acquisitions.iter().map(|one| match one.is_granted() {
            true => ServerHolder::granted(one.claim().owner),
            false => ServerHolder::none(),
        });
        self.held.insert(ours, holders.collect());
        let granted = acquisitions.into_iter().filter(Acquisition::is_granted);
        granted.for_each(Acquisition::keep);
    }

    /// Gives back what was granted. A release that takes longer than the limit goes on in the
    /// background. Acquisitions without an answer undo themselves.
    pub(super) async fn give_back(&self, acquisitions: Vec<Acquisition>) {
        let granted = acquisitions.into_iter().filter(Acquisition::is_granted);
        let given_back = granted.map(|one| {
            let limit = self.limit(one.claim().lease);
            timeout(limit, one.give_back())
        });
        join_all(given_back).await;
    }
}
