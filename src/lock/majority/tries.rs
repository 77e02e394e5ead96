//! One try at all servers, and what becomes of it.

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::Majority;
use crate::{
    backend::{Claim, DynLeases, Owner},
    error::BackendError,
    lease::{Acquisition, Said, trusted},
};

/// The acquisition at each server in one try, and the answer of each.
pub(super) struct Try<T> {
    acquisitions: Vec<Acquisition>,
    pub(super) answers: Vec<Result<T, BackendError>>,
    /// The try took so little time that some of the lease is left.
    in_time: bool,
}

impl Majority {
    /// Asks all servers at once, under one owner.
    pub(super) async fn ask_all<'a, T, F>(
        &'a self,
        claim: &'a Claim,
        ask: impl Fn(usize, &'a dyn DynLeases, &'a Claim) -> F,
    ) -> Try<T>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'a,
        for<'t> Said: From<&'t T>,
    {
        let sent = Instant::now();
        let ask = &ask;
        let asked = self.servers.iter().enumerate().map(|(at, server)| async move {
            let mut acquisition = Acquisition::new(server.clone(), claim.clone());
            let backend = server.backend().as_ref();
            let answer = acquisition.ask(self.limit, |_, _| ask(at, backend, claim)).await;
            (acquisition, answer.map(|(answer, _)| answer))
        });
        let (acquisitions, answers) = join_all(asked).await.into_iter().unzip();
        let in_time = sent.elapsed() < trusted(claim.lease);
        Try { acquisitions, answers, in_time }
    }

    /// Keeps what a majority has granted under `theirs`, and gives the rest back.
    ///
    /// Returns whether there was a majority, and the answers.
    pub(super) async fn settle<T>(
        &self,
        tried: Try<T>,
        ours: Owner,
        theirs: Owner,
    ) -> (bool, Vec<Result<T, BackendError>>) {
        // A grant without an answer is undone under its owner, so it must not count under it.
        let holders = tried.acquisitions.iter().map(|one| match one.is_granted() {
            true => theirs,
            false => Owner::fresh(),
        });
        let holders: Vec<_> = holders.collect();
        let (granted, others): (Vec<_>, Vec<_>) =
            tried.acquisitions.into_iter().partition(Acquisition::is_granted);
        // Acquisitions without an answer undo themselves.
        drop(others);
        let won = granted.len() >= self.needed() && tried.in_time;
        if won {
            granted.into_iter().for_each(Acquisition::keep);
            self.held.insert(ours, holders);
        } else {
            // A release that takes longer than the limit goes on in the background.
            let ended = granted.into_iter().map(|one| timeout(self.limit, one.give_back()));
            join_all(ended).await;
        }
        (won, tried.answers)
    }
}
