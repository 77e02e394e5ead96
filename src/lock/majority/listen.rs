//! The subscriptions of the waiters, to all servers.

use std::time::Duration;

use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::time::timeout;

use super::Majority;
use crate::{
    backend::{Changes, Claim, DynLeases},
    error::BackendError,
};

impl Majority {
    /// Listens to at least a majority of servers.
    pub(super) async fn listen<'a>(
        &'a self,
        ask: impl Fn(&'a dyn DynLeases) -> BoxFuture<'a, Result<Changes, BackendError>>,
    ) -> Result<Changes, BackendError> {
        let ask = &ask;
        // A server that does not answer would delay the subscription for longer than a turn lasts.
        let answer = |at: &usize| !self.order.is_silent(*at);
        let mut listened: Vec<_> = (0..self.servers.len()).filter(answer).collect();
        if listened.len() < self.needed() {
            listened = (0..self.servers.len()).collect();
        }
        let asked = self.servers.iter().enumerate().filter(|(at, _)| listened.contains(at));
        let asked = asked.map(|(at, server)| async move {
            let answer = ask(server.backend().as_ref()).await;
            self.order.subscribed(at, &answer);
            answer
        });
        let mut asked: FuturesUnordered<_> = asked.collect();
        let (mut each, mut errors) = (Vec::new(), Vec::new());
        while each.len() < self.needed() {
            match asked.next().await {
                Some(Ok(changes)) => each.push(changes),
                Some(Err(error)) => errors.push(error),
                None => return Err(self.undecided(errors)),
            }
        }
        // The other servers get a short time only.
        let rest = async {
            while let Some(answer) = asked.next().await {
                each.extend(answer.ok());
            }
        };
        let _ = timeout(self.limit(Duration::MAX), rest).await;
        Ok(Changes::join(each, self.needed()))
    }

    /// Returns how many pushes a waiter may have missed until now, at all servers.
    pub(super) fn missed(&self, claim: &Claim) -> u64 {
        let missed = self.servers.iter().map(|server| server.backend().missed_pushes(claim));
        missed.fold(0, u64::wrapping_add)
    }

    /// Returns the subscription of a claim, if the queue server and a majority have confirmed it,
    /// and no push was missed since [`missed`](Self::missed) returned this number.
    pub(super) fn listen_since(&self, claim: &Claim, missed: u64) -> Option<Changes> {
        let since = self.servers.iter().map(|server| {
            let backend = server.backend();
            backend.changes_since(claim, backend.missed_pushes(claim))
        });
        let since: Vec<_> = since.collect();
        since.get(self.order.queue_server())?.as_ref()?;
        let each: Vec<_> = since.into_iter().flatten().collect();
        let is_enough = each.len() >= self.needed() && self.missed(claim) == missed;
        is_enough.then(|| Changes::join(each, self.needed()))
    }
}
