//! Several servers as one backend, which holds what a majority of them holds.
//!
//! All servers are asked at once, and each has the same short time to answer (`limit`). The engine
//! above counts a lease from before the first request. So the lease ends there before it ends at
//! any server that granted or renewed it then. Those are a majority, and another holder needs one
//! of them. At a server that missed a renewal, the lease ends sooner.
//!
//! A renewal that a majority confirms also takes the lease at each server that denies it for the
//! second time in a row. That server was away during the acquisition, or has restarted since.
//! Without this, servers that restart one after another would end a lease although a majority was
//! there all the time. A server that denies it once may be the first that a [clear](Leases::clear)
//! has reached, so one denial changes nothing.
//!
//! A try without a majority is undone at each server by itself, and at once where the server
//! granted it. Where the outcome is unknown, the undo is repeated until one lease has passed. Each
//! try has a fresh owner, since a late undo must not end the grant of a later try. [`KnownLeases`]
//! maps the owner of the caller to the owners at the servers. [`Order`] says which claim has its
//! turn.

mod known;
mod limit;
mod listen;
mod order;
mod tries;
mod turn;

use std::{collections::HashMap, error::Error as _, fmt, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all, ready},
};
use tokio::{runtime::Handle, time::timeout};

pub(super) use self::limit::SERVER_LIMIT;

use self::{
    known::KnownLeases,
    order::{ClaimPlace, Order},
};
use crate::{
    backend::{
        Acquired, Changes, Claim, DynLeases, Grant, Kept, Leases, Mode, Occupied, Owner, Renewal,
    },
    error::{BackendError, BackendErrorKind, Chain, Error, ErrorKind},
    key::Name,
    lease::{Acquisition, Janitor},
};

/// Exclusive leases that a majority of independent servers holds, as one backend.
///
/// [`Redlock`](crate::Redlock) is the front for it, and documents what a majority promises. Clones
/// share the servers and what is held at them.
///
/// Only [exclusive](Mode::Exclusive) claims are granted: a majority cannot count readers or
/// permits. So every other mode is [refused](BackendErrorKind::Refused), and the fence of each
/// grant is zero. A claim that [waits](Claim::waits) enters the queue of one server: the first of
/// the list that answers and pushes. It is told of its turn, and never [handed the
/// lease](Claim::takes_handover).
#[derive(Clone)]
pub struct Majority {
    /// The servers, each with the releases and undos there.
    servers: Arc<[Arc<Janitor>]>,
    /// The time that each server has for an answer, unless the round trip is long.
    set_limit: Duration,
    held: Arc<KnownLeases>,
    order: Arc<Order>,
}

impl Majority {
    /// Creates a backend over these servers. It sends nothing yet.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidConfig`](ErrorKind::InvalidConfig) if there is no server.
    pub fn new<B: Leases>(servers: impl IntoIterator<Item = B>) -> Result<Self, Error> {
        let servers: Arc<[_]> = servers
            .into_iter()
            .map(|server| Janitor::new(Arc::new(server).erase_leases().0))
            .collect();
        if servers.is_empty() {
            return Err(Error::new(ErrorKind::InvalidConfig, "a majority needs at least 1 server"));
        }
        let order = Arc::new(Order::new(servers.len()));
        Ok(Self { servers, set_limit: SERVER_LIMIT, held: Arc::default(), order })
    }

    /// Sets the least time that one server has for an answer. Defaults to 50 ms.
    ///
    /// A server has four [round trips](Leases::round_trip) where those are longer, up to a quarter
    /// of the lease. The round trip is that of the server that completes a majority.
    pub fn answer_limit(mut self, limit: Duration) -> Self {
        self.set_limit = limit;
        self
    }

    /// Waits until the undos at the servers have ended or the limit passes.
    pub(super) async fn shutdown(&self, limit: Duration) {
        join_all(self.servers.iter().map(|server| server.shutdown(limit))).await;
    }

    fn needed(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    /// Asks all servers at once.
    async fn each<'a, T, F>(
        &'a self,
        ask: impl Fn(&'a dyn DynLeases) -> F,
    ) -> Vec<Result<T, BackendError>>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let asked = self.servers.iter().map(|server| ask(server.backend().as_ref()));
        join_all(asked.map(|answer| self.in_time(Duration::MAX, answer))).await
    }

    /// Answers a claim that is sent again and has the lease already: it lasts its full time from
    /// now.
    async fn again(&self, claim: &Claim) -> Result<Option<Grant>, BackendError> {
        if !self.held.has(claim) {
            return Ok(None);
        }
        let renewed = Leases::renew(self, std::slice::from_ref(claim)).await?;
        let is_held = renewed.first().is_some_and(|renewal| renewal.is_held());
        Ok(is_held.then(|| Grant::new(0)))
    }

    /// Takes a lease of a majority at one more server, in a task of its own.
    fn complete(&self, claim: &Claim, at: usize) {
        let Some(server) = self.servers.get(at).cloned() else { return };
        let (ours, theirs) = (claim.owner, afresh(claim));
        let (held, limit) = (self.held.clone(), self.limit(claim.lease));
        server.clone().spawn(async move {
            let mut acquisition = Acquisition::new(server, theirs.clone());
            drop(acquisition.ask(limit, |server, claim| server.acquire(claim)).await);
            // A lease that was released meanwhile must not be taken: dropped, it is undone.
            if acquisition.is_granted() && held.replace(ours, at, theirs.owner) {
                acquisition.keep();
            }
        });
    }

    /// Decides by the number of servers that say yes and no. Returns `None` if too few answered.
    fn decided(&self, yes: usize, no: usize) -> Option<bool> {
        if yes >= self.needed() {
            Some(true)
        } else if self.servers.len() - no < self.needed() {
            Some(false)
        } else {
            None
        }
    }

    /// The error of an operation that the servers that answered did not decide.
    fn undecided(&self, errors: impl IntoIterator<Item = BackendError>) -> BackendError {
        let errors: Vec<_> = errors.into_iter().collect();
        let foreign = |error: &&BackendError| error.kind() == BackendErrorKind::Foreign;
        if self.servers.len() - errors.iter().filter(foreign).count() < self.needed()
            && let Some(error) = errors.iter().find(foreign)
        {
            return error.clone();
        }
        let (all, failed) = (self.servers.len(), errors.len());
        let why = errors.first().map_or(String::new(), |why| {
            format!("; the first with: {}", Chain(why.source().unwrap_or(why)))
        });
        let message = format!("no majority: {failed} of {all} servers failed{why}");
        BackendError::new(BackendErrorKind::Unavailable, message)
    }

    /// The answer about one lease, from what each server says of it.
    fn renewal(&self, claim: &Claim, said: &[Renewal]) -> Renewal {
        let count = |what| said.iter().filter(|said| **said == what).count();
        let missing = self.held.said(claim.owner, said);
        match self.decided(count(Renewal::Held), count(Renewal::NotHeld)) {
            Some(true) => {
                missing.into_iter().for_each(|at| self.complete(claim, at));
                Renewal::Held
            }
            Some(false) => Renewal::NotHeld,
            None => Renewal::Unknown,
        }
    }
}

impl Leases for Majority {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        only_exclusive(claim.mode)?;
        if let Some(answer) = self.again(claim).await? {
            return Ok(Acquired::Granted(answer));
        }
        let acquired = match claim.waits {
            true => self.acquire_in_turn(claim).await,
            false => self.acquire_at_once(claim).await,
        };
        acquired.map_err(|error| self.failure(claim.lease, error))
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        let known = claims.iter().filter_map(|claim| Some((claim, self.held.of(claim)?)));
        let (held, theirs): (Vec<_>, Vec<_>) = known.unzip();
        if held.is_empty() {
            return Ok(vec![Renewal::NotHeld; claims.len()]);
        }
        let lease = held.iter().map(|claim| claim.lease).min().unwrap_or_default();
        let asked = self.servers.iter().enumerate().map(|(at, server)| {
            let there: Vec<_> = theirs.iter().filter_map(|each| each.get(at).cloned()).collect();
            self.in_time(lease, async move { server.backend().renew(&there).await })
        });
        let answers = join_all(asked).await;
        let mut decided = HashMap::new();
        for (which, claim) in held.into_iter().enumerate() {
            let said = answers
                .iter()
                .map(|answer| answer.as_ref().ok().and_then(|each| each.get(which)).copied());
            let said: Vec<_> = said.map(|said| said.unwrap_or(Renewal::Unknown)).collect();
            decided.insert(claim.owner, self.renewal(claim, &said));
        }
        let of = |claim: &Claim| decided.get(&claim.owner).copied().unwrap_or(Renewal::NotHeld);
        let renewed: Vec<_> = claims.iter().map(of).collect();
        match renewed.iter().all(|renewal| *renewal == Renewal::Unknown) {
            true => Err(self.undecided(answers.into_iter().filter_map(Result::err))),
            false => Ok(renewed),
        }
    }

    /// Releases the lease at each server by itself. A release that takes longer than the limit
    /// goes on in the background.
    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        let limit = self.limit(claim.lease);
        if let Some(ClaimPlace::Queued(queued)) = self.order.remove(claim.owner) {
            let _ = timeout(limit, queued.acquisition.give_back()).await;
        }
        let Some(theirs) = self.held.remove(claim) else { return Ok(false) };
        let granted: Vec<_> = self.servers.iter().zip(theirs).collect();
        let (mut yes, mut errors) = (0, Vec::new());
        let mut no = granted.iter().filter(|(_, theirs)| theirs.is_none()).count();
        let ended = granted
            .into_iter()
            .filter_map(|(server, theirs)| theirs.map(|theirs| timeout(limit, server.end(theirs))));
        for ended in join_all(ended).await {
            match ended {
                Ok(Ok(())) => yes += 1,
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => no += 1,
                Ok(Err(error)) => errors.push(BackendError::new(BackendErrorKind::Unknown, error)),
                Err(elapsed) => errors.push(BackendError::timed_out(elapsed)),
            }
        }
        self.decided(yes, no).ok_or_else(|| self.undecided(errors))
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        only_exclusive(from.mode)?;
        only_exclusive(to.mode)?;
        if let Some(answer) = self.again(to).await? {
            return Ok(Some(answer));
        }
        let Some(ours) = self.held.granted(from) else { return Ok(None) };
        let pass = |at: usize, server, to| pass(server, ours.get(at).cloned().flatten(), to);
        let tried = self.ask_all(self.acquisitions(&afresh(to)), pass).await;
        // A server that may not have passed the lease may still have it under the old owner.
        let now = self.held.remove(from).unwrap_or_else(|| ours.clone());
        let there = self.servers.iter().zip(&ours).zip(now);
        for (((server, asked), now), answer) in there.zip(&tried.answers) {
            if let Some(now) = now.filter(|now| answer.is_err() || asked.as_ref() != Some(now)) {
                server.undo(now, false, &Handle::current());
            }
        }
        let (won, answers) = self.settle(tried, to.owner).await;
        if won {
            drop(self.order.remove(to.owner));
            return Ok(Some(Grant::new(0)));
        }
        let no = answers.iter().filter(|answer| matches!(answer, Ok(None))).count();
        match self.decided(0, no) {
            Some(_) => Ok(None),
            None => Err(self.undecided(answers.into_iter().filter_map(Result::err))),
        }
    }

    async fn holder(&self, name: &Name, mode: Mode) -> Result<Option<Occupied>, BackendError> {
        only_exclusive(mode)?;
        let (mut held, mut free, mut errors) = (Vec::new(), 0, Vec::new());
        for answer in self.each(|server| server.holder(name, mode)).await {
            match answer {
                Ok(Some(occupied)) => held.push(occupied.remaining),
                Ok(None) => free += 1,
                Err(error) => errors.push(error),
            }
        }
        held.sort();
        match self.decided(held.len(), free) {
            // It ends when so many of these leases have ended that the rest is no majority.
            Some(true) => Ok(held.get(held.len() - self.needed()).map(|left| occupied(*left))),
            Some(false) => Ok(None),
            None => Err(self.undecided(errors)),
        }
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        only_exclusive(mode)?;
        let answers = self.each(|server| server.clear(name, mode)).await;
        let (cleared, errors): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        if cleared.len() < self.needed() {
            return Err(self.undecided(errors.into_iter().filter_map(Result::err)));
        }
        Ok(cleared.into_iter().flatten().any(|there| there))
    }

    async fn keep(&self, claims: &[Claim]) -> Result<Kept, BackendError> {
        Ok(self.keep_entries(claims).await)
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        self.listen(|server| server.changes(name)).await
    }

    /// Listens to all servers, for any of them may be the queue server.
    async fn changes_for(&self, claim: &Claim) -> Result<Changes, BackendError> {
        self.listen(|server| server.changes_for(claim)).await
    }

    fn missed_pushes(&self, claim: &Claim) -> u64 {
        self.missed(claim)
    }

    fn changes_since(&self, claim: &Claim, missed: u64) -> Option<Changes> {
        self.listen_since(claim, missed)
    }

    /// Some operations ask the servers several times, one after the other.
    fn time_limit(&self) -> Option<Duration> {
        Some(self.operation_limit())
    }
}

impl fmt::Debug for Majority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Majority")
            .field("servers", &self.servers.len())
            .field("answer_limit", &self.set_limit)
            .finish_non_exhaustive()
    }
}

/// The claim of one try: with a fresh owner, without a queue entry, and with a fence that the
/// server forgets with the lease.
fn afresh(claim: &Claim) -> Claim {
    Claim { owner: Owner::fresh(), fence_life: claim.lease, waits: false, ..claim.clone() }
}

fn only_exclusive(mode: Mode) -> Result<(), BackendError> {
    match mode {
        Mode::Exclusive => Ok(()),
        _ => {
            let why = format!("a majority of servers has exclusive leases only, not {mode:?}");
            Err(BackendError::new(BackendErrorKind::Refused, why))
        }
    }
}

/// Passes the lease of one server, if that has one.
fn pass(
    server: &dyn DynLeases,
    from: Option<Claim>,
    to: Claim,
) -> BoxFuture<'_, Result<Option<Grant>, BackendError>> {
    match from {
        Some(from) => async move { server.pass(&from, &to).await }.boxed(),
        None => ready(Ok(None)).boxed(),
    }
}

fn occupied(remaining: Duration) -> Occupied {
    Occupied { fence: 0, remaining, holders: 1 }
}
