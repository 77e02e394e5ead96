//! Several servers as one backend, which holds what a majority of them holds.
//!
//! All servers are asked at once, and each has the same short time to answer. The engine above
//! counts a lease from before the first request. So the lease ends there before it ends at any
//! server that granted or renewed it then. Those are a majority, and another holder needs one of
//! them. At a server that missed a renewal, the lease ends sooner.
//!
//! The fence of a grant is the greatest that a server of it has granted. It is written back to a
//! majority before the grant counts. A later majority has one of these servers, which grants a
//! greater fence.
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
//! maps the owner of the caller to the owners at the servers.

mod contention;
mod known;
mod tries;
mod wakes;

use std::{collections::HashMap, error::Error as _, fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{
    FutureExt,
    future::{BoxFuture, join_all, ready},
};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};

use self::{contention::Contention, known::KnownLeases, wakes::Wakes};
use crate::{
    backend::{
        Acquired, Changes, Claim, Grant, Holding, Leases, Mode, Occupied, Owner, Renewal,
        SemaphoreKind, answered, in_time,
    },
    error::{BackendError, BackendErrorKind, Chain, Error, ErrorKind},
    key::Name,
    lease::{Acquisition, Janitor},
};

/// The default limit for the answer of one server.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_millis(50);
/// How many answers an operation waits for at most, one after the other.
const ANSWERS: u32 = 4;
/// How often claims that have split the servers between them ask again before they sleep.
const TRIES: u32 = 3;
/// The bound of the first pause between these tries, which doubles.
const PAUSE: Duration = Duration::from_millis(2);

/// Exclusive leases that a majority of independent servers holds, as one backend. Clones share the
/// servers and what is held at them.
///
/// Only [exclusive](Mode::Exclusive) claims are granted: a majority cannot count readers or
/// permits. So every other mode is [refused](BackendErrorKind::Refused). There is no queue.
#[derive(Clone)]
pub struct Majority {
    /// The servers, each with the releases and undos there.
    servers: Arc<[Arc<Janitor>]>,
    /// The time that each server has for an answer.
    limit: Duration,
    held: Arc<KnownLeases>,
    contention: Arc<Contention>,
    wakes: Wakes,
}

impl Majority {
    /// Creates a backend over these servers, each of which has this time for an answer. It sends
    /// nothing yet.
    ///
    /// # Errors
    ///
    /// Returns [`InvalidConfig`](ErrorKind::InvalidConfig) if there is no server.
    pub fn new<B: Leases>(
        servers: impl IntoIterator<Item = B>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let servers: Arc<[_]> =
            servers.into_iter().map(|server| Janitor::new(Arc::new(server))).collect();
        if servers.is_empty() {
            return Err(Error::new(ErrorKind::InvalidConfig, "a majority needs at least 1 server"));
        }
        let (held, contention, wakes) = Default::default();
        Ok(Self { servers, limit, held, contention, wakes })
    }

    /// Waits until the undos at the servers have ended or the limit passes.
    pub(super) async fn shutdown(&self, limit: Duration) {
        join_all(self.servers.iter().map(|server| server.shutdown(limit))).await;
    }

    /// Checks that the round trip to a majority fits well into the limit.
    pub(super) async fn ready(&self, name: &Name) -> Result<(), Error> {
        let measured = self.servers.iter().map(async |server| {
            let backend = server.backend().as_ref();
            let ask = || answered(backend, backend.inspect(name, SemaphoreKind::Mutex));
            // The first request waits for the connection.
            ask().await?;
            let asked = Instant::now();
            ask().await.map(|_| asked.elapsed())
        });
        let (mut times, mut errors) = (Vec::new(), Vec::new());
        for measured in join_all(measured).await {
            match measured {
                Ok(time) => times.push(time),
                Err(error) => errors.push(error),
            }
        }
        times.sort();
        let Some(round_trip) = times.get(self.needed() - 1) else {
            return Err(self.undecided(errors).into());
        };
        let (least, limit) = (round_trip.saturating_mul(ANSWERS), self.limit);
        if least <= limit {
            return Ok(());
        }
        let why = format!(
            "the round trip to a majority takes {round_trip:.1?}, and the answer limit is \
             {limit:?}; set at least {least:.1?} by `Redlock::with_answer_limit`"
        );
        Err(Error::new(ErrorKind::InvalidConfig, why))
    }

    fn needed(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    /// Asks all servers at once.
    async fn each<'a, T, F>(
        &'a self,
        ask: impl Fn(&'a dyn Leases) -> F,
    ) -> Vec<Result<T, BackendError>>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let asked = self.servers.iter().map(|server| ask(server.backend().as_ref()));
        join_all(asked.map(|answer| in_time(self.limit, answer))).await
    }

    /// Answers a claim that is sent again and has the lease already: it lasts its full time from
    /// now.
    async fn again(&self, claim: &Claim) -> Result<Option<Grant>, BackendError> {
        let Some(fence) = self.held.fence(claim) else { return Ok(None) };
        let renewed = Leases::renew(self, std::slice::from_ref(claim)).await?;
        let is_held = renewed.first().is_some_and(|renewal| renewal.is_held());
        Ok(is_held.then(|| Grant::new(fence)))
    }

    /// The lease in the way of a claim without a majority.
    fn refused(
        &self,
        answers: Vec<Result<Acquired, BackendError>>,
    ) -> Result<Occupied, BackendError> {
        let (mut free, mut held, mut errors) = (0, Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Ok(Acquired::Granted(_)) => free += 1,
                Ok(Acquired::Occupied(occupied)) => held.push(occupied),
                Err(error) => errors.push(error),
            }
        }
        // So many more servers must become free. They do when their leases end, at the latest.
        let more = self.needed().checked_sub(free + 1);
        more.and_then(|more| one_of(held, more)).ok_or_else(|| self.undecided(errors))
    }

    /// Takes a lease of a majority at one more server, in a task of its own.
    fn complete(&self, claim: &Claim, at: usize) {
        let (Some(server), Some(fence)) = (self.servers.get(at), self.held.fence(claim)) else {
            return;
        };
        let (server, held, limit) = (server.clone(), self.held.clone(), self.limit);
        let (ours, theirs) = (claim.owner, afresh(claim));
        server.clone().spawn(async move {
            let mut acquisition = Acquisition::new(server, theirs.clone());
            drop(acquisition.ask(limit, |server, claim| server.acquire(claim)).await);
            if !acquisition.is_granted() {
                return;
            }
            let written = acquisition
                .ask(limit, |server, claim| server.pass_with_fence(claim, claim, fence))
                .await;
            // A lease that was released meanwhile must not be taken: dropped, it is undone.
            if matches!(written, Ok((Some(_), _))) && held.replace(ours, at, theirs.owner) {
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
        let (all, failed, limit) = (self.servers.len(), errors.len(), self.limit);
        let why = errors.first().map_or(String::new(), |why| {
            format!("; the first with: {}", Chain(why.source().unwrap_or(why)))
        });
        let message =
            format!("no majority within {limit:?}: {failed} of {all} servers failed{why}");
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

#[async_trait]
impl Leases for Majority {
    /// Asks all servers, and a few times more if other claims have asked at the same moment.
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        only_exclusive(claim.mode)?;
        let begun = Instant::now();
        if let Some(grant) = self.again(claim).await? {
            return Ok(Acquired::Granted(grant));
        }
        if let Some(pause) = self.contention.pause(&claim.name) {
            sleep(pause).await;
        }
        let mut tries = 0;
        loop {
            let (is_split, refusal) = match self.ask_for_majority(claim, begun).await {
                Ok(fence) => return Ok(Acquired::Granted(Grant::new(fence))),
                Err(refused) => refused,
            };
            tries += 1;
            // A server that does not answer may have taken all the time.
            if !is_split || tries == TRIES || begun.elapsed() >= self.limit {
                if refusal.is_ok() {
                    self.contention.met(&claim.name);
                    self.wakes.hear(&self.servers, self.needed(), &claim.name);
                }
                return refusal.map(Acquired::Occupied);
            }
            sleep((PAUSE * (1 << tries)).mul_f64(fastrand::f64())).await;
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        let known = claims.iter().filter_map(|claim| Some((claim, self.held.of(claim)?)));
        let (held, theirs): (Vec<_>, Vec<_>) = known.unzip();
        if held.is_empty() {
            return Ok(vec![Renewal::NotHeld; claims.len()]);
        }
        let asked = self.servers.iter().enumerate().map(|(at, server)| {
            let there: Vec<_> = theirs.iter().filter_map(|each| each.get(at).cloned()).collect();
            in_time(self.limit, async move { server.backend().renew(&there).await })
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
        let Some((_, theirs)) = self.held.remove(claim) else { return Ok(false) };
        self.contention.released(&claim.name);
        let granted: Vec<_> = self.servers.iter().zip(theirs).collect();
        let (mut yes, mut errors) = (0, Vec::new());
        let mut no = granted.iter().filter(|(_, theirs)| theirs.is_none()).count();
        let ended = granted.into_iter().filter_map(|(server, theirs)| {
            theirs.map(|theirs| timeout(self.limit, server.end(theirs)))
        });
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

    /// Passes the lease at each server that has granted it, with the next fence.
    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        only_exclusive(from.mode)?;
        only_exclusive(to.mode)?;
        let begun = Instant::now();
        if let Some(grant) = self.again(to).await? {
            return Ok(Some(grant));
        }
        let Some((fence, ours)) = self.held.granted(from) else { return Ok(None) };
        let fence = fence + 1;
        let pass = |at: usize, server, to| {
            pass_with_fence(server, ours.get(at).cloned().flatten(), to, fence)
        };
        let tried = self.ask_all(self.acquisitions(&afresh(to)), begun, pass).await;
        // A server that may not have passed the lease may still have it under the old owner.
        let now = self.held.remove(from).map_or_else(|| ours.clone(), |(_, theirs)| theirs);
        let there = self.servers.iter().zip(&ours).zip(now);
        for (((server, asked), now), answer) in there.zip(&tried.answers) {
            if let Some(now) = now.filter(|now| answer.is_err() || asked.as_ref() != Some(now)) {
                server.undo(now, false, &Handle::current());
            }
        }
        if tried.is_granted_by(self.needed()) {
            self.keep_granted(tried.acquisitions, to.owner, fence);
            return Ok(Some(Grant::new(fence)));
        }
        self.give_back(tried.acquisitions).await;
        let no = tried.answers.iter().filter(|answer| matches!(answer, Ok(None))).count();
        match self.decided(0, no) {
            Some(_) => Ok(None),
            None => Err(self.undecided(tried.answers.into_iter().filter_map(Result::err))),
        }
    }

    async fn holder(&self, name: &Name, mode: Mode) -> Result<Option<Occupied>, BackendError> {
        only_exclusive(mode)?;
        Ok(Leases::inspect(self, name, mode.into()).await?.in_mode(mode))
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        let (mut held, mut free, mut errors) = (Vec::new(), 0, Vec::new());
        for answer in self.each(|server| server.inspect(name, kind)).await {
            match answer.map(|held| held.in_mode(Mode::Exclusive)) {
                Ok(Some(occupied)) => held.push(occupied),
                Ok(None) => free += 1,
                Err(error) => errors.push(error),
            }
        }
        match self.decided(held.len(), free) {
            // It ends when so many of these leases have ended that the rest is no majority.
            Some(true) => {
                let last = held.len() - self.needed();
                let occupied = one_of(held, last);
                Ok(occupied.map_or_else(
                    Holding::default,
                    |Occupied { fence, remaining, .. }| Holding {
                        holders: 1,
                        fence,
                        expires_in: remaining,
                        ..Holding::default()
                    },
                ))
            }
            Some(false) => Ok(Holding::default()),
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

    /// A task listens to all servers from the first refusal on.
    fn listen(&self, name: &Name, _claim: Option<&Claim>) -> Changes {
        self.wakes.listen(name)
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let mut changes = self.wakes.listen(name);
        self.wakes.hear(&self.servers, self.needed(), name);
        in_time(self.limit.saturating_mul(ANSWERS), changes.confirmed()).await?;
        Ok(changes)
    }

    fn time_limit(&self) -> Option<Duration> {
        Some(self.limit.saturating_mul(ANSWERS))
    }
}

impl fmt::Debug for Majority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Majority")
            .field("servers", &self.servers.len())
            .field("answer_limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The claim of one try: with a fresh owner, and without a queue entry.
fn afresh(claim: &Claim) -> Claim {
    Claim { owner: Owner::fresh(), waits: false, ..claim.clone() }
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
fn pass_with_fence(
    server: &dyn Leases,
    from: Option<Claim>,
    to: Claim,
    fence: u64,
) -> BoxFuture<'_, Result<Option<Grant>, BackendError>> {
    match from {
        Some(from) => async move { server.pass_with_fence(&from, &to, fence).await }.boxed(),
        None => ready(Ok(None)).boxed(),
    }
}

/// Returns the lease of these that ends `at` that place in their order. Its fence is that in the
/// middle, which is that of a holder at most of the servers.
fn one_of(mut held: Vec<Occupied>, at: usize) -> Option<Occupied> {
    held.sort_by_key(|occupied| occupied.fence);
    let fence = held.get(held.len() / 2)?.fence;
    held.sort_by_key(|occupied| occupied.remaining);
    Some(Occupied { fence, remaining: held.get(at)?.remaining, holders: 1 })
}
