//! Several servers as one backend, which holds what a majority of them holds.
//!
//! All servers are asked at once, and each has the same short time to answer. The engine above
//! counts a lease from before the first request. So the lease ends there before it ends at any
//! server that granted or renewed it then. Those are a majority, and another holder needs one of
//! them. At a server that missed a renewal, the lease ends sooner.
//!
//! The fence of a hold is the greatest that a server has granted. It is written to a majority
//! before the hold counts. A later majority has one of these servers, which grants a greater fence.
//! A pass within the process is such a write as well, of the next fence.
//!
//! A try without a majority is undone at each server: at once where the server granted it, and
//! until one lease has passed where the outcome is unknown. A late undo must not end a later grant,
//! so each try has a fresh owner at each server.

mod contention;

use std::{
    collections::HashMap,
    error::Error as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures_util::{TryFutureExt, future::join_all};
use tokio::time::{Instant, sleep};

use self::contention::Contention;
use crate::{
    backend::{
        Changes, Claim, Claimed, Grant, Holding, Leases, Mode, Occupied, Owner, Renewal,
        SemaphoreKind, in_time,
    },
    error::{BackendError, BackendErrorKind, Chain, Error, ErrorKind},
    key::Name,
    lease::{Acquisition, Janitor, Release, trusted},
    sync::lock,
};

/// The default limit for the answer of one server.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_millis(50);
/// How many answers an operation waits for at most, one after the other.
const ANSWERS: u32 = 4;
/// How often claims that have split the servers between them ask before they sleep.
const TRIES: u32 = 3;

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
    /// What is held, by the caller's owner.
    held: Arc<Mutex<HashMap<Owner, Hold>>>,
    contention: Arc<Contention>,
}

#[derive(Clone, Default)]
struct Hold {
    fence: u64,
    /// Its share at each server, in their order. `None` where it has none: the server has granted
    /// nothing, or has denied it at a renewal.
    shares: Vec<Option<Share>>,
}

/// A lease at one server, under an owner of its own and with the fence there.
#[derive(Clone, Copy, PartialEq)]
struct Share {
    owner: Owner,
    fence: u64,
}

impl Majority {
    /// Creates a backend over one server or more, each of which has this time for an answer. It
    /// sends nothing yet.
    pub fn new<B: Leases>(
        servers: impl IntoIterator<Item = B>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let servers: Arc<[_]> =
            servers.into_iter().map(|server| Janitor::new(Arc::new(server))).collect();
        if servers.is_empty() || limit.is_zero() {
            return Err(Error::new(ErrorKind::InvalidConfig, "give a server and a limit above 0"));
        }
        Ok(Self { servers, limit, held: Arc::default(), contention: Arc::default() })
    }

    /// Checks that the round trip to a majority fits well into the limit.
    pub(super) async fn ready(&self, name: &Name) -> Result<(), Error> {
        let measured = self.servers.iter().map(async |server| {
            let ask = || server.backend.inspect(name, SemaphoreKind::Mutex);
            // The first request waits for the connection.
            ask().await?;
            let asked = Instant::now();
            ask().await.map(|_| asked.elapsed())
        });
        let answers = join_all(measured).await;
        let mut times: Vec<_> = answers.iter().flatten().collect();
        times.sort();
        let Some(round_trip) = times.get(self.needed() - 1) else {
            return Err(self.undecided(&answers).into());
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

    /// Returns whether a majority says yes, or so many servers say no that none can. Returns an
    /// error if too few have answered and know.
    fn decide<T>(
        &self,
        answers: &[Result<T, BackendError>],
        is_yes: impl Fn(&T) -> Option<bool>,
    ) -> Result<bool, BackendError> {
        let said: Vec<_> = answers.iter().flatten().filter_map(is_yes).collect();
        let yes = said.iter().filter(|yes| **yes).count();
        let no = said.len() - yes;
        if yes >= self.needed() {
            Ok(true)
        } else if self.servers.len() - no < self.needed() {
            Ok(false)
        } else {
            Err(self.undecided(answers))
        }
    }

    /// The error of an operation that the servers that answered did not decide.
    fn undecided<T>(&self, answers: &[Result<T, BackendError>]) -> BackendError {
        let errors: Vec<_> = answers.iter().filter_map(|answer| answer.as_ref().err()).collect();
        let foreign: Vec<_> =
            errors.iter().filter(|error| error.kind() == BackendErrorKind::Foreign).collect();
        if self.servers.len() - foreign.len() < self.needed()
            && let Some(error) = foreign.first()
        {
            return (**error).clone();
        }
        let (all, failed, limit) = (self.servers.len(), errors.len(), self.limit);
        let why = errors.first().map_or(String::new(), |why| {
            format!("; the first with: {}", Chain(why.source().unwrap_or(why)))
        });
        let message =
            format!("no majority within {limit:?}: {failed} of {all} servers failed{why}");
        BackendError::new(BackendErrorKind::Unavailable, message)
    }

    fn hold(&self, claim: &Claim) -> Option<Hold> {
        lock(&self.held).get(&claim.owner).cloned()
    }

    /// Answers a claim that is sent again and has the lease already: it lasts its full time from
    /// now.
    async fn again(&self, claim: &Claim) -> Result<Option<Grant>, BackendError> {
        let Some(hold) = self.hold(claim) else { return Ok(None) };
        let renewed = Leases::renew(self, std::slice::from_ref(claim)).await?;
        Ok((renewed == [Renewal::Held]).then(|| Grant::new(hold.fence)))
    }

    /// Asks all servers once. Returns the answer of the majority, and whether any has granted the
    /// claim.
    async fn ask(&self, claim: &Claim, begun: Instant) -> Result<(Claimed, bool), BackendError> {
        let asked = self.servers.iter().map(async |server| {
            let mut acquisition = Acquisition::new(server, of_share(server, claim, None));
            let answer = acquisition.ask(self.limit, |server, claim| server.acquire(claim)).await;
            (acquisition, answer)
        });
        let (tried, answers): (Vec<_>, Vec<_>) = join_all(asked).await.into_iter().unzip();
        let shares: Vec<_> = tried.iter().zip(&answers).map(granted_share).collect();
        let fence = shares.iter().flatten().map(|share| share.fence).max().unwrap_or_default();
        let mut hold = Hold { fence, shares };
        let held: Vec<_> = answers.iter().flatten().filter_map(in_its_way).collect();
        // Those without an answer undo themselves.
        let granted: Vec<_> = tried.into_iter().filter(Acquisition::is_granted).collect();
        let is_any_granted = !granted.is_empty();
        if granted.len() < self.needed() || !held.is_empty() {
            self.contention.met(&claim.name, &self.servers);
        }
        let answer = match granted.len() < self.needed() {
            true => Ok(self.in_the_way(granted.len(), held).map(Claimed::Occupied)),
            false => {
                let is_written = self.write_fence(claim, &mut hold, begun).await;
                is_written.map(|it| it.then(|| Claimed::Granted(Grant::new(hold.fence))))
            }
        };
        let answer = answer.and_then(|answer| answer.ok_or_else(|| self.undecided(&answers)));
        if let Ok(Claimed::Granted(_)) = answer {
            granted.into_iter().for_each(Acquisition::keep);
            lock(&self.held).insert(claim.owner, hold);
        } else {
            // A release that takes longer than the limit goes on in the background.
            join_all(granted.into_iter().map(|one| in_time(self.limit, one.give_back()))).await;
        }
        answer.map(|answer| (answer, is_any_granted))
    }

    /// Returns the lease in the way, of those at the servers that are not free. It ends when so
    /// many have ended that a majority is free.
    fn in_the_way(&self, free: usize, mut held: Vec<Occupied>) -> Option<Occupied> {
        let more = self.needed().checked_sub(free + 1)?;
        held.sort_by_key(|occupied| occupied.remaining);
        held.get(more).copied()
    }

    /// Writes the fence of a hold to a majority, which renews its shares. Returns whether a
    /// majority has it still. A share that has missed the fence is undone: a later majority may
    /// have no other of these servers, and would grant a smaller fence.
    ///
    /// The lease counts from `begun`.
    async fn write_fence(
        &self,
        claim: &Claim,
        hold: &mut Hold,
        begun: Instant,
    ) -> Result<bool, BackendError> {
        let fence = hold.fence;
        let written = self.servers.iter().zip(&hold.shares).map(async |(server, share)| {
            let Some(share) = share.filter(|share| share.fence != fence) else {
                return Ok(share.is_some());
            };
            let share = of_share(server, claim, Some(share));
            in_time(self.limit, server.backend.set_fence(&share, fence)).await
        });
        let answers = join_all(written).await;
        let is_written = self.decide(&answers, |written| Some(*written))?;
        if is_written && begun.elapsed() >= trusted(claim.lease) {
            return Err(self.undecided(&answers));
        }
        for ((server, share), written) in self.servers.iter().zip(&mut hold.shares).zip(answers) {
            if let (Some(share), Ok(true)) = (share.as_mut(), &written) {
                share.fence = fence;
            } else if let Some(missed) = share.take() {
                Release::new(server, of_share(server, claim, Some(missed))).undo();
            }
        }
        Ok(is_written)
    }

    /// Asks a server for a share that it denies to a renewed hold for the second time: it was away,
    /// or has restarted. At the first time, a [clear](Leases::clear) may be on its way.
    async fn take_share(self, claim: Claim, at: usize, denied: Option<Share>) {
        let Some(server) = self.servers.get(at) else { return };
        let fence = {
            let mut held = lock(&self.held);
            let Some(Hold { fence, shares }) = held.get_mut(&claim.owner) else { return };
            let Some(share) = shares.get_mut(at).filter(|share| **share == denied) else { return };
            *share = None;
            if denied.is_some() {
                return;
            }
            *fence
        };
        let mut acquisition = Acquisition::new(server, of_share(server, &claim, None));
        let asked = acquisition.ask(self.limit, |server, claim| server.acquire(claim)).await;
        if !matches!(asked, Ok(Claimed::Granted(_))) {
            return;
        }
        let write = server.backend.set_fence(&acquisition.release.claim, fence);
        let written = in_time(self.limit, write).await;
        let mut held = lock(&self.held);
        let share = held.get_mut(&claim.owner).and_then(|hold| hold.shares.get_mut(at));
        // If the hold was released meanwhile, the acquisition is dropped and undone.
        if let (Ok(true), Some(share @ None)) = (written, share) {
            *share = Some(Share { owner: acquisition.release.claim.owner, fence });
            acquisition.keep();
        }
    }
}

#[async_trait]
impl Leases for Majority {
    /// Asks all servers, and a few times more if other claims have asked at the same moment.
    async fn acquire(&self, claim: &Claim) -> Result<Claimed, BackendError> {
        only_exclusive(claim.mode)?;
        let begun = Instant::now();
        if let Some(grant) = self.again(claim).await? {
            return Ok(Claimed::Granted(grant));
        }
        let mut tries = 0;
        loop {
            if let Some(pause) = self.contention.pause(&claim.name) {
                sleep(pause).await;
            }
            tries += 1;
            let (answer, is_any_granted) = self.ask(claim, begun).await?;
            if let Claimed::Granted(_) = answer {
                return Ok(answer);
            }
            // A server that does not answer may have taken all the time.
            if !is_any_granted || tries == TRIES || begun.elapsed() >= self.limit {
                return Ok(answer);
            }
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        let holds: Vec<_> =
            claims.iter().map(|claim| self.hold(claim).unwrap_or_default()).collect();
        let share_of = |hold: &Hold, at: usize| hold.shares.get(at).copied().flatten();
        let asked = self.servers.iter().enumerate().map(async |(at, server)| {
            let each = claims.iter().zip(&holds);
            let shares: Vec<_> =
                each.map(|(claim, hold)| of_share(server, claim, share_of(hold, at))).collect();
            in_time(self.limit, server.backend.renew(&shares)).await
        });
        let answers = join_all(asked).await;
        let (mut renewals, mut undecided) = (Vec::with_capacity(claims.len()), None);
        for (which, (claim, hold)) in claims.iter().zip(&holds).enumerate() {
            let is_held = |said: &Vec<Renewal>| match said.get(which)? {
                Renewal::Held => Some(true),
                Renewal::NotHeld => Some(false),
                Renewal::Unknown => None,
            };
            let decided = self.decide(&answers, is_held);
            if let Ok(true) = decided {
                for (at, (server, said)) in self.servers.iter().zip(&answers).enumerate() {
                    if said.as_ref().is_ok_and(|said| is_held(said) == Some(false)) {
                        let take = self.clone().take_share(claim.clone(), at, share_of(hold, at));
                        server.tasks.spawn(take);
                    }
                }
            }
            renewals.push(decided.as_ref().map_or(Renewal::Unknown, |held| Renewal::from(*held)));
            undecided = undecided.or(decided.err());
        }
        match undecided {
            Some(error) if renewals.iter().all(|each| *each == Renewal::Unknown) => Err(error),
            _ => Ok(renewals),
        }
    }

    /// Releases each share by itself. A release that takes longer than the limit goes on in the
    /// background.
    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        let Some(hold) = lock(&self.held).remove(&claim.owner) else { return Ok(false) };
        let shares = self.servers.iter().zip(hold.shares);
        let ended = shares.map(async |(server, share)| match share {
            Some(_) => {
                in_time(self.limit, Release::new(server, of_share(server, claim, share)).end())
                    .await
            }
            None => Ok(false),
        });
        self.decide(&join_all(ended).await, |was_held| Some(*was_held))
    }

    /// Gives the hold to the other claim, with the next fence. The owners at the servers stay.
    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        only_exclusive(from.mode)?;
        only_exclusive(to.mode)?;
        let begun = Instant::now();
        if let Some(grant) = self.again(to).await? {
            return Ok(Some(grant));
        }
        let Some(hold) = self.hold(from) else { return Ok(None) };
        let mut next = Hold { fence: hold.fence + 1, ..hold };
        if !self.write_fence(to, &mut next, begun).await? {
            // A minority may still have it.
            return self.release(from).await.map(|_| None);
        }
        let mut held = lock(&self.held);
        let Some(before) = held.remove(&from.owner) else { return Ok(None) };
        let grant = Grant::new(next.fence);
        for ((server, before), now) in self.servers.iter().zip(before.shares).zip(&next.shares) {
            // It missed the fence, or was taken meanwhile.
            if now.is_none() && before.is_some() {
                Release::new(server, of_share(server, to, before)).undo();
            }
        }
        held.insert(to.owner, next);
        Ok(Some(grant))
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        let asked = self.servers.iter().map(|server| {
            let holding = in_time(self.limit, server.backend.inspect(name, kind));
            holding.map_ok(|holding| holding.in_mode(Mode::Exclusive))
        });
        let answers = join_all(asked).await;
        if !self.decide(&answers, |holder| Some(holder.is_some()))? {
            return Ok(Holding::default());
        }
        let free = answers.iter().filter(|answer| matches!(answer, Ok(None))).count();
        let held = answers.into_iter().flatten().flatten().collect();
        Ok(self.in_the_way(free, held).map_or_else(Holding::default, |occupied| Holding {
            holders: 1,
            fence: occupied.fence,
            expires_in: occupied.remaining,
            ..Holding::default()
        }))
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        only_exclusive(mode)?;
        let servers = self.servers.iter();
        let cleared = servers.map(|server| in_time(self.limit, server.backend.clear(name, mode)));
        let answers = join_all(cleared).await;
        self.decide(&answers, |_| Some(true))?;
        Ok(answers.into_iter().flatten().any(|was_there| was_there))
    }

    /// A task listens to all servers from the first refusal on.
    fn listen(&self, name: &Name, _claim: Option<&Claim>) -> Changes {
        self.contention.listen(name)
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let changes = self.contention.listen(name);
        // The task wakes the listener when a majority can be heard.
        self.contention.met(name, &self.servers);
        Ok(changes)
    }

    fn time_limit(&self) -> Option<Duration> {
        Some(self.limit.saturating_mul(ANSWERS))
    }

    async fn settle(&self, limit: Duration) {
        join_all(self.servers.iter().map(|server| server.shutdown(limit))).await;
    }
}

/// Returns the claim of a share at one server: under the owner that has it, or a fresh one.
fn of_share(server: &Janitor, claim: &Claim, share: Option<Share>) -> Claim {
    let owner = share.map_or_else(|| server.backend.new_owner(), |share| share.owner);
    Claim { owner, waits: false, ..claim.clone() }
}

fn granted_share((one, answer): (&Acquisition, &Result<Claimed, BackendError>)) -> Option<Share> {
    let Ok(Claimed::Granted(grant)) = answer else { return None };
    Some(Share { owner: one.release.claim.owner, fence: grant.fence() })
}

fn in_its_way(answer: &Claimed) -> Option<Occupied> {
    let Claimed::Occupied(occupied) = answer else { return None };
    Some(*occupied)
}

fn only_exclusive(mode: Mode) -> Result<(), BackendError> {
    match mode {
        Mode::Exclusive => Ok(()),
        _ => Err(BackendError::refused(format!(
            "a majority has exclusive leases only, not {mode:?}"
        ))),
    }
}
