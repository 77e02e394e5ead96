//! One try at all servers, and what becomes of it.

use futures_util::future::join_all;
use tokio::time::Instant;

use super::{Majority, Share};
use crate::{
    backend::{Claim, DynLeases, Owner},
    error::BackendError,
    lease::drift,
};

/// The shares that one try has taken, and the answer of each server.
pub(super) struct Try<T> {
    shares: Vec<Share>,
    pub(super) answers: Vec<Result<T, BackendError>>,
    /// The try took so little time that some of the lease is left.
    in_time: bool,
}

impl Majority {
    /// Asks all servers at once for a share, under one owner.
    pub(super) async fn shares<'a, T, F>(
        &'a self,
        claim: &Claim,
        ask: impl Fn(usize, &'a dyn DynLeases, Claim) -> F,
        taken: impl Fn(&T) -> bool,
    ) -> Try<T>
    where
        F: Future<Output = Result<T, BackendError>> + Send + 'a,
    {
        let sent = Instant::now();
        let (ask, taken) = (&ask, &taken);
        let asked = self.servers.iter().enumerate().map(|(at, server)| async move {
            let mut share = Share::new(server.clone(), claim.clone());
            let backend = server.backend().as_ref();
            let answer =
                share.ask(self.limit, |claim| ask(at, backend, claim.clone()), taken).await;
            (share, answer)
        });
        let (shares, answers) = join_all(asked).await.into_iter().unzip();
        let in_time = sent.elapsed() + drift(claim.lease) < claim.lease;
        Try { shares, answers, in_time }
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
        // A share without an answer is undone under its owner, so it must not count under it.
        let holders = tried.shares.iter().map(|share| match share.is_taken() {
            true => theirs,
            false => Owner::fresh(),
        });
        let holders: Vec<_> = holders.collect();
        let (taken, others): (Vec<_>, Vec<_>) = tried.shares.into_iter().partition(Share::is_taken);
        // Shares without an answer undo themselves.
        drop(others);
        let won = taken.len() >= self.needed() && tried.in_time;
        if won {
            taken.into_iter().for_each(Share::keep);
            self.held.insert(ours, holders);
        } else {
            join_all(taken.into_iter().map(|share| share.give_back(self.limit))).await;
        }
        (won, tried.answers)
    }
}
