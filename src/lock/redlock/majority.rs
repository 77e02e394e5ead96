//! Several servers as one backend, which holds what a majority of them holds.
//!
//! All are asked at once, and each has the same short time to answer. The engine above it counts the lease
//! from before the first was asked, so it ends here before it ends on any that granted or renewed it then:
//! a majority, without one of which nobody else has one. (On a server that missed a renewal it ends sooner.)
//!
//! A renewal that a majority confirms also takes the lease at those that answer for the second time that they have it
//! not: they were away when it was acquired, or have started anew since. Otherwise it would be lost when servers are
//! restarted one after another, though a majority is there all the time. (Those that say so for the first time may be
//! the first of all, which somebody is about to [clear](DynLeases::clear).)
//!
//! A try that has no majority is undone on each server by itself, at once where it is known to have been granted, and
//! again until one lease has passed where it is not ([`Share`]). So each try asks under a token of its own: an undo that
//! comes late must not end what a later try was granted. Which tokens stand for that of the engine, is [`Known`].

use std::{collections::HashMap, sync::Arc, time::Duration};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
    stream::FuturesUnordered,
};
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

use super::{
    known::Known,
    share::{Share, in_time},
};
use crate::{
    backend::{Acquired, Changes, Claim, DynLeases, Grant, Mode, Occupied, Owner},
    error::{BackendError, BackendErrorKind, ErrorKind},
    key::Name,
    lease::{Engine, drift},
};

pub(super) struct Majority {
    /// Each with an engine of its own, for what is undone there.
    servers: Vec<Arc<Engine>>,
    /// How long each may take to answer.
    limit: Duration,
    held: Arc<Known>,
}

type Answer<'a, T> = BoxFuture<'a, Result<T, BackendError>>;

impl Majority {
    pub(super) fn new(servers: Vec<Arc<Engine>>, limit: Duration) -> Self {
        Self { servers, limit, held: Arc::default() }
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
        let asked =
            self.servers.iter().map(|server| in_time(self.limit, ask(server.backend().as_ref())));
        join_all(asked).await
    }

    /// Asks all servers at once for a share, under one token.
    async fn shares<'a, T, F>(
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
        // What is left of the lease when the last one has answered.
        let in_time = sent.elapsed() + drift(claim.lease) < claim.lease;
        Try { shares, answers, in_time }
    }

    /// Keeps what a majority has granted under `theirs`; gives the rest back.
    async fn settle<T>(
        &self,
        tried: Try<T>,
        ours: Owner,
        theirs: Owner,
    ) -> (bool, Vec<Result<T, BackendError>>) {
        // What has no answer is undone under its token, so it must not be counted under that.
        let holders = tried.shares.iter().map(|share| match share.is_taken() {
            true => theirs,
            false => Owner::fresh(),
        });
        let holders: Vec<_> = holders.collect();
        let (taken, others): (Vec<_>, Vec<_>) = tried.shares.into_iter().partition(Share::is_taken);
        // Those without an answer are undone by themselves.
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

    /// The claim of a try: with a token of its own. Its fence means nothing, and is forgotten soon.
    fn anew(claim: &Claim) -> Claim {
        // A place in a queue at each server would be of no use: only a majority counts.
        Claim { owner: Owner::fresh(), fence_life: claim.lease, waits: false, ..claim.clone() }
    }

    /// Takes what a majority has at another server, too, in a task of its own: nobody waits for it.
    fn complete(&self, claim: &Claim, at: usize) {
        let Some(server) = self.servers.get(at).cloned() else { return };
        let (ours, theirs) = (claim.owner, Self::anew(claim));
        let (held, limit) = (self.held.clone(), self.limit);
        server.clone().tasks.spawn(async move {
            let mut share = Share::new(server.clone(), theirs.clone());
            let granted = |answer: &Acquired| matches!(answer, Acquired::Granted(_));
            let asked = share.ask(limit, |claim| server.backend().acquire(claim), granted);
            drop(asked.await);
            // Otherwise it is undone: what was given back meanwhile must not be taken.
            if share.is_taken() && held.replace(ours, at, theirs.owner) {
                share.keep();
            }
        });
    }

    /// What so many servers say that have it, and so many that do not; none, if that does not decide.
    fn decided(&self, yes: usize, no: usize) -> Option<bool> {
        if yes >= self.needed() {
            Some(true)
        } else if self.servers.len() - no < self.needed() {
            Some(false)
        } else {
            None
        }
    }

    /// Those that answered are no majority for anything. What they were asked for is undone on each.
    fn undecided(&self, errors: impl IntoIterator<Item = BackendError>) -> BackendError {
        let errors: Vec<_> = errors.into_iter().collect();
        let foreign = |error: &&BackendError| error.kind() == BackendErrorKind::Foreign;
        if self.servers.len() - errors.iter().filter(foreign).count() < self.needed()
            && let Some(error) = errors.iter().find(foreign)
        {
            return error.clone();
        }
        let why = errors.first().and_then(std::error::Error::source);
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let (all, silent) = (self.servers.len(), errors.len());
        let message = format!(
            "{silent} of {all} servers gave no answer in time{why}, and the others no majority"
        );
        BackendError::new(BackendErrorKind::Unavailable, message)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        let theirs = Self::anew(claim);
        let granted = |answer: &Acquired| matches!(answer, Acquired::Granted(_));
        let tried = self
            .shares(
                &theirs,
                |_, server, claim| async move { server.acquire(&claim).await },
                granted,
            )
            .await;
        let (won, answers) = self.settle(tried, claim.owner, theirs.owner).await;
        if won {
            return Ok(Acquired::Granted(Grant::new(0)));
        }
        let (mut free, mut held, mut errors) = (0, Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                Ok(Acquired::Granted(_)) => free += 1,
                Ok(Acquired::Held(occupied)) => held.push(occupied.remaining),
                Err(error) => errors.push(error),
            }
        }
        held.sort();
        // So many more must become free, and do so at the latest when the leases there end.
        match self.needed().checked_sub(free + 1).map(|more| held.get(more)) {
            Some(Some(remaining)) => Ok(Acquired::Held(occupied(*remaining))),
            _ => Err(self.undecided(errors)),
        }
    }

    async fn try_renew(&self, claims: &[Claim]) -> Result<Vec<Option<bool>>, BackendError> {
        let known = claims.iter().filter_map(|claim| Some((claim, self.held.of(claim)?)));
        let (held, theirs): (Vec<_>, Vec<_>) = known.unzip();
        if held.is_empty() {
            return Ok(vec![Some(false); claims.len()]);
        }
        let asked = self.servers.iter().enumerate().map(|(at, server)| {
            let there = theirs.iter().filter_map(|each| each.get(at).cloned());
            let there: Vec<_> = there.collect();
            in_time(self.limit, async move { server.backend().renew(&there).await })
        });
        let answers = join_all(asked).await;
        let mut decided = HashMap::new();
        for (which, claim) in held.into_iter().enumerate() {
            let said = answers.iter().map(|answer| *answer.as_ref().ok()?.get(which)?);
            let said: Vec<_> = said.collect();
            let count = |what| said.iter().filter(|said| **said == Some(what)).count();
            let known = self.decided(count(true), count(false));
            let missing = self.held.said(claim.owner, &said);
            if known == Some(true) {
                missing.into_iter().for_each(|at| self.complete(claim, at));
            }
            decided.insert(claim.owner, known);
        }
        // What is not known is not held.
        let renewed =
            claims.iter().map(|claim| decided.get(&claim.owner).map_or(Some(false), |it| *it));
        let renewed: Vec<_> = renewed.collect();
        match renewed.iter().all(Option::is_none) {
            true => Err(self.undecided(answers.into_iter().filter_map(Result::err))),
            false => Ok(renewed),
        }
    }

    /// What is not released in time is released in the background, on each server by itself.
    async fn try_release(&self, claim: &Claim) -> Result<bool, BackendError> {
        let Some(theirs) = self.held.remove(claim) else { return Ok(false) };
        // All of them begin before anything is waited for, and end whoever waits.
        let ended = self.servers.iter().zip(theirs);
        let ended = ended.map(|(server, theirs)| timeout(self.limit, server.end(theirs)));
        let (mut yes, mut no, mut errors) = (0, 0, Vec::new());
        for ended in join_all(ended).await {
            match ended {
                Ok(Ok(())) => yes += 1,
                Ok(Err(error)) if error.kind() == ErrorKind::Lost => no += 1,
                Ok(Err(error)) => errors.push(BackendError::new(BackendErrorKind::Unknown, error)),
                Err(elapsed) => {
                    errors.push(BackendError::new(BackendErrorKind::Unknown, elapsed));
                }
            }
        }
        self.decided(yes, no).ok_or_else(|| self.undecided(errors))
    }

    async fn try_pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        let Some(ours) = self.held.of(from) else { return Ok(None) };
        let theirs = Self::anew(to);
        let from_ours = &ours;
        let pass = |at, server, claim| pass(server, from_ours.get(at), claim);
        let tried = self.shares(&theirs, pass, Option::is_some).await;
        // Where it may not have passed, it may be held by the one who had it.
        let now = self.held.remove(from).unwrap_or_else(|| ours.clone());
        let there = self.servers.iter().zip(&ours).zip(now);
        for (((server, asked), now), answer) in there.zip(&tried.answers) {
            if answer.is_err() || now.owner != asked.owner {
                server.undo(now, false, &Handle::current());
            }
        }
        let (won, answers) = self.settle(tried, to.owner, theirs.owner).await;
        if won {
            return Ok(Some(Grant::new(0)));
        }
        let no = answers.iter().filter(|answer| matches!(answer, Ok(None))).count();
        match self.decided(0, no) {
            Some(_) => Ok(None),
            None => Err(self.undecided(answers.into_iter().filter_map(Result::err))),
        }
    }

    async fn try_holder(&self, name: &Name, mode: Mode) -> Result<Option<Occupied>, BackendError> {
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
            // When so many of these have ended that the rest is no majority.
            Some(true) => Ok(held.get(held.len() - self.needed()).map(|left| occupied(*left))),
            Some(false) => Ok(None),
            None => Err(self.undecided(errors)),
        }
    }

    async fn try_clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        let answers = self.each(|server| server.clear(name, mode)).await;
        let (cleared, errors): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        if cleared.len() < self.needed() {
            return Err(self.undecided(errors.into_iter().filter_map(Result::err)));
        }
        Ok(cleared.into_iter().flatten().any(|there| there))
    }

    async fn try_changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let mut asked: FuturesUnordered<_> =
            self.servers.iter().map(|server| server.backend().changes(name)).collect();
        let (mut each, mut errors) = (Vec::new(), Vec::new());
        while each.len() < self.needed() {
            match asked.next().await {
                Some(Ok(changes)) => each.push(changes),
                Some(Err(error)) => errors.push(error),
                None => return Err(self.undecided(errors)),
            }
        }
        // The others need not be waited for long.
        let rest = async {
            while let Some(answer) = asked.next().await {
                each.extend(answer.ok());
            }
        };
        let _ = timeout(self.limit, rest).await;
        Ok(Changes::join(each, self.needed()))
    }
}

async fn pass(
    server: &dyn DynLeases,
    from: Option<&Claim>,
    to: Claim,
) -> Result<Option<Grant>, BackendError> {
    match from {
        Some(from) => server.pass(from, &to).await,
        None => Ok(None),
    }
}

/// A try at all servers: what was taken, and what each said.
struct Try<T> {
    shares: Vec<Share>,
    answers: Vec<Result<T, BackendError>>,
    /// Whether it took so little time that something is left of the lease.
    in_time: bool,
}

fn occupied(remaining: Duration) -> Occupied {
    Occupied { fence: 0, remaining, holders: 1 }
}

impl DynLeases for Majority {
    fn acquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Acquired> {
        self.try_acquire(claim).boxed()
    }

    fn renew<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, Vec<Option<bool>>> {
        self.try_renew(claims).boxed()
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, bool> {
        self.try_release(claim).boxed()
    }

    fn pass<'a>(&'a self, from: &'a Claim, to: &'a Claim) -> Answer<'a, Option<Grant>> {
        self.try_pass(from, to).boxed()
    }

    fn holder<'a>(&'a self, name: &'a Name, mode: Mode) -> Answer<'a, Option<Occupied>> {
        self.try_holder(name, mode).boxed()
    }

    fn clear<'a>(&'a self, name: &'a Name, mode: Mode) -> Answer<'a, bool> {
        self.try_clear(name, mode).boxed()
    }

    fn changes<'a>(&'a self, name: &'a Name) -> Answer<'a, Changes> {
        self.try_changes(name).boxed()
    }

    /// Some operations ask the servers twice, one after the other.
    fn time_limit(&self) -> Option<Duration> {
        None
    }

    fn apart(&self) -> Option<Arc<dyn DynLeases>> {
        let servers = self.servers.iter().map(|server| {
            let backend = server.backend();
            Engine::new(backend.apart().unwrap_or_else(|| backend.clone()))
        });
        let held = self.held.clone();
        Some(Arc::new(Self { servers: servers.collect(), limit: self.limit, held }))
    }
}
