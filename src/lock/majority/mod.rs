//! Several servers as one backend, which holds what a majority of the servers holds.
//!
//! An operation sends its request to all servers at once, and each server has the same short time
//! to answer. The engine above counts a lease from before the first request. So the engine's lease
//! ends before the lease ends at any server that granted or renewed it. These servers are a
//! majority, and another holder needs one of them. At a server that missed a renewal, the lease
//! ends sooner.
//!
//! The fence of a hold is the greatest fence that a server has granted. It is written to a majority
//! before the hold counts. A later majority has one of these servers, which grants a greater fence.
//! A pass within the process writes the next fence in the same way.
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
use futures_util::future::join_all;
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
/// How often a claim is tried before its caller sleeps, if several claims have split the servers.
const TRIES: u32 = 3;

/// Exclusive leases that a majority of independent servers holds, as one backend. Clones share the
/// servers and the holds.
///
/// Only [exclusive](Mode::Exclusive) claims are granted: a majority cannot count readers or
/// permits. So every other mode is [refused](BackendErrorKind::Refused). There is no queue.
#[derive(Clone)]
pub struct Majority {
    /// The servers, each with the releases and undos there.
    servers: Arc<[Arc<Janitor>]>,
    /// The time that each server has for an answer.
    limit: Duration,
    /// The holds, by the caller's owner.
    holds: Arc<Mutex<HashMap<Owner, Hold>>>,
    contention: Arc<Contention>,
}

#[derive(Clone, Default)]
struct Hold {
    fence: u64,
    /// The share at each server, in the order of the servers. `None` for a server that has granted
    /// nothing, or has denied the share at a renewal.
    shares: Vec<Option<Share>>,
}

impl Hold {
    fn share(&self, server: usize) -> Option<Share> {
        *self.shares.get(server)?
    }
}

/// A lease at one server, under an owner of its own and with the fence of that server.
#[derive(Clone, Copy, PartialEq)]
struct Share {
    owner: Owner,
    fence: u64,
}

/// What came of one round of requests to all servers.
struct ClaimRound {
    answer: Claimed,
    /// A server has granted the claim, also if no majority has.
    is_any_granted: bool,
}

impl Majority {
    /// Creates a backend over one server or more. Each server has this time for an answer. The call
    /// sends nothing.
    pub fn new<B: Leases>(
        servers: impl IntoIterator<Item = B>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let janitors = servers.into_iter().map(|server| Janitor::new(Arc::new(server)));
        let servers: Arc<[_]> = janitors.collect();
        if servers.is_empty() || limit.is_zero() {
            return Err(Error::new(ErrorKind::InvalidConfig, "give a server and a limit above 0"));
        }
        Ok(Self { servers, limit, holds: Arc::default(), contention: Arc::default() })
    }

    /// Checks that the round trip to a majority fits well into the limit.
    pub(super) async fn ready(&self, name: &Name) -> Result<(), Error> {
        let round_trips = self.servers.iter().map(async |server| {
            // The first request waits for the connection.
            server.backend.inspect(name, SemaphoreKind::Mutex).await?;
            let sent = Instant::now();
            server.backend.inspect(name, SemaphoreKind::Mutex).await?;
            Ok(sent.elapsed())
        });
        let answers = join_all(round_trips).await;
        let mut times: Vec<_> = answers.iter().flatten().collect();
        times.sort();
        let Some(round_trip) = times.get(self.needed() - 1) else {
            return Err(self.undecided(&answers).into());
        };
        let least = round_trip.saturating_mul(ANSWERS);
        let limit = self.limit;
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

    /// Returns `true` if a majority says yes, and `false` if so many servers say no that no
    /// majority can say yes. Returns an error if too few servers have answered, or know. `vote`
    /// returns what an answer says, or `None` if the server does not know.
    fn decide<T>(
        &self,
        answers: &[Result<T, BackendError>],
        vote: impl Fn(&T) -> Option<bool>,
    ) -> Result<bool, BackendError> {
        let mut yes = 0;
        let mut no = 0;
        for answer in answers.iter().flatten() {
            match vote(answer) {
                Some(true) => yes += 1,
                Some(false) => no += 1,
                None => {}
            }
        }
        if yes >= self.needed() {
            Ok(true)
        } else if self.servers.len() - no < self.needed() {
            Ok(false)
        } else {
            Err(self.undecided(answers))
        }
    }

    /// Returns the error of an operation that the answers did not decide.
    fn undecided<T>(&self, answers: &[Result<T, BackendError>]) -> BackendError {
        let mut errors = Vec::new();
        let mut foreign = Vec::new();
        for error in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            errors.push(error);
            if error.kind() == BackendErrorKind::Foreign {
                foreign.push(error);
            }
        }
        if self.servers.len() - foreign.len() < self.needed()
            && let Some(error) = foreign.first()
        {
            return (*error).clone();
        }
        let mut message = format!(
            "no majority within {:?}: {} of {} servers failed",
            self.limit,
            errors.len(),
            self.servers.len(),
        );
        if let Some(first) = errors.first() {
            message += &format!("; the first with: {}", Chain(first.source().unwrap_or(first)));
        }
        BackendError::new(BackendErrorKind::Unavailable, message)
    }

    fn hold(&self, claim: &Claim) -> Option<Hold> {
        lock(&self.holds).get(&claim.owner).cloned()
    }

    /// Renews the lease of a claim that is sent again and has the lease already. Returns `None` if
    /// the claim has no lease.
    async fn renew_if_granted(&self, claim: &Claim) -> Result<Option<Grant>, BackendError> {
        let Some(hold) = self.hold(claim) else { return Ok(None) };
        let renewals = Leases::renew(self, std::slice::from_ref(claim)).await?;
        let is_held = renewals == [Renewal::Held];
        if is_held { Ok(Some(Grant::new(hold.fence))) } else { Ok(None) }
    }

    /// Sends the claim to all servers once.
    async fn claim_everywhere(
        &self,
        claim: &Claim,
        since: Instant,
    ) -> Result<ClaimRound, BackendError> {
        let requests = self.servers.iter().map(async |server| {
            let mut acquisition = Acquisition::new(server, of_share(server, claim, None));
            let answer = acquisition.send(self.limit, |server, claim| server.acquire(claim)).await;
            (acquisition, answer)
        });
        let mut granted = Vec::new();
        let mut occupied = Vec::new();
        let mut hold = Hold::default();
        let mut answers = Vec::with_capacity(self.servers.len());
        for (acquisition, answer) in join_all(requests).await {
            let share = match &answer {
                Ok(Claimed::Granted(grant)) => {
                    Some(Share { owner: acquisition.claim().owner, fence: grant.fence() })
                }
                Ok(Claimed::Occupied(other)) => {
                    occupied.push(*other);
                    None
                }
                _ => None,
            };
            hold.fence = hold.fence.max(share.map_or(0, |share| share.fence));
            hold.shares.push(share);
            answers.push(answer);
            // An acquisition without an answer undoes itself.
            if acquisition.is_granted() {
                granted.push(acquisition);
            }
        }
        let is_any_granted = !granted.is_empty();
        let has_majority = granted.len() >= self.needed();
        if !has_majority || !occupied.is_empty() {
            self.contention.met(&claim.name, &self.servers);
        }
        let answer = if has_majority {
            match self.write_fence(claim, &mut hold, since).await {
                Ok(true) => Ok(Claimed::Granted(Grant::new(hold.fence))),
                Ok(false) => Err(self.undecided(&answers)),
                Err(error) => Err(error),
            }
        } else {
            match self.in_the_way(granted.len(), occupied) {
                Some(other) => Ok(Claimed::Occupied(other)),
                None => Err(self.undecided(&answers)),
            }
        };
        if let Ok(Claimed::Granted(_)) = answer {
            for acquisition in granted {
                acquisition.keep();
            }
            lock(&self.holds).insert(claim.owner, hold);
        } else {
            // A release that takes longer than the limit goes on in the background.
            let releases = granted.into_iter().map(Acquisition::give_back);
            join_all(releases.map(|release| in_time(self.limit, release))).await;
        }
        Ok(ClaimRound { answer: answer?, is_any_granted })
    }

    /// Returns the lease after whose end a majority of the servers is free. `free` servers are free
    /// now, and these leases are in the way at others.
    fn in_the_way(&self, free: usize, mut occupied: Vec<Occupied>) -> Option<Occupied> {
        let more = self.needed().checked_sub(free + 1)?;
        occupied.sort_by_key(|other| other.remaining);
        occupied.get(more).copied()
    }

    /// Writes the fence of a hold to a majority, which renews its shares. Returns whether a
    /// majority still has the hold. A share that has missed the fence is undone: otherwise a later
    /// majority might share only this server with the present majority, and would be granted a
    /// smaller fence.
    ///
    /// The lease counts from `since`.
    async fn write_fence(
        &self,
        claim: &Claim,
        hold: &mut Hold,
        since: Instant,
    ) -> Result<bool, BackendError> {
        let fence = hold.fence;
        let writes =
            self.servers.iter().zip(&hold.shares).map(async |(server, share)| match share {
                None => Ok(false),
                Some(share) if share.fence == fence => Ok(true),
                Some(share) => {
                    let claim = of_share(server, claim, Some(*share));
                    in_time(self.limit, server.backend.set_fence(&claim, fence)).await
                }
            });
        let answers = join_all(writes).await;
        let is_written = self.decide(&answers, |is_written| Some(*is_written))?;
        if is_written && since.elapsed() >= trusted(claim.lease) {
            return Err(self.undecided(&answers));
        }
        for ((server, share), answer) in self.servers.iter().zip(&mut hold.shares).zip(answers) {
            if let (Some(share), Ok(true)) = (share.as_mut(), &answer) {
                share.fence = fence;
            } else if let Some(missed) = share.take() {
                Release::new(server, of_share(server, claim, Some(missed))).undo();
            }
        }
        Ok(is_written)
    }

    /// Begins to acquire the shares of a renewed hold at the servers that have denied them. `which`
    /// is the position of the hold in the answers.
    fn take_denied_shares(
        &self,
        claim: &Claim,
        hold: &Hold,
        answers: &[Result<Vec<Renewal>, BackendError>],
        which: usize,
    ) {
        for (at, (server, answer)) in self.servers.iter().zip(answers).enumerate() {
            if answer.as_ref().is_ok_and(|each| is_held(each, which) == Some(false)) {
                let take = self.clone().take_share(claim.clone(), at, hold.share(at));
                server.tasks.spawn(take);
            }
        }
    }

    /// Acquires a share at a server that has denied it to a renewed hold for the second time: the
    /// server was away, or has restarted. At the first denial, a [clear](Leases::clear) may be on
    /// its way.
    async fn take_share(self, claim: Claim, at: usize, denied: Option<Share>) {
        let Some(server) = self.servers.get(at) else { return };
        let fence = {
            let mut holds = lock(&self.holds);
            let Some(Hold { fence, shares }) = holds.get_mut(&claim.owner) else { return };
            let Some(share) = shares.get_mut(at).filter(|share| **share == denied) else { return };
            *share = None;
            if denied.is_some() {
                return;
            }
            *fence
        };
        let mut acquisition = Acquisition::new(server, of_share(server, &claim, None));
        let answer = acquisition.send(self.limit, |server, claim| server.acquire(claim)).await;
        let Ok(Claimed::Granted(_)) = answer else { return };
        let write = server.backend.set_fence(acquisition.claim(), fence);
        let Ok(true) = in_time(self.limit, write).await else { return };
        let mut holds = lock(&self.holds);
        let share = holds.get_mut(&claim.owner).and_then(|hold| hold.shares.get_mut(at));
        // If the hold was released meanwhile, the acquisition is dropped and undone.
        if let Some(share @ None) = share {
            *share = Some(Share { owner: acquisition.claim().owner, fence });
            acquisition.keep();
        }
    }
}

#[async_trait]
impl Leases for Majority {
    /// Sends the claim to all servers. Tries again a few times if several claims have split the
    /// servers at the same moment.
    async fn acquire(&self, claim: &Claim) -> Result<Claimed, BackendError> {
        only_exclusive(claim.mode)?;
        let since = Instant::now();
        if let Some(grant) = self.renew_if_granted(claim).await? {
            return Ok(Claimed::Granted(grant));
        }
        let mut tries = 0;
        loop {
            if let Some(pause) = self.contention.pause(&claim.name) {
                sleep(pause).await;
            }
            tries += 1;
            let ClaimRound { answer, is_any_granted } = self.claim_everywhere(claim, since).await?;
            if let Claimed::Granted(_) = answer {
                return Ok(answer);
            }
            // A server that does not answer may have taken all the time.
            if !is_any_granted || tries == TRIES || since.elapsed() >= self.limit {
                return Ok(answer);
            }
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<Renewal>, BackendError> {
        let holds: Vec<_> =
            claims.iter().map(|claim| self.hold(claim).unwrap_or_default()).collect();
        let requests = self.servers.iter().enumerate().map(async |(at, server)| {
            let mut shares = Vec::with_capacity(claims.len());
            for (claim, hold) in claims.iter().zip(&holds) {
                shares.push(of_share(server, claim, hold.share(at)));
            }
            in_time(self.limit, server.backend.renew(&shares)).await
        });
        let answers = join_all(requests).await;
        let mut renewals = Vec::with_capacity(claims.len());
        let mut undecided = None;
        for (which, (claim, hold)) in claims.iter().zip(&holds).enumerate() {
            match self.decide(&answers, |each| is_held(each, which)) {
                Ok(true) => {
                    self.take_denied_shares(claim, hold, &answers, which);
                    renewals.push(Renewal::Held);
                }
                Ok(false) => renewals.push(Renewal::NotHeld),
                Err(error) => {
                    renewals.push(Renewal::Unknown);
                    undecided.get_or_insert(error);
                }
            }
        }
        match undecided {
            Some(error) if renewals.iter().all(|each| *each == Renewal::Unknown) => Err(error),
            _ => Ok(renewals),
        }
    }

    /// Releases each share by itself. A release that takes longer than the limit goes on in the
    /// background.
    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        let Some(hold) = lock(&self.holds).remove(&claim.owner) else { return Ok(false) };
        let shares = self.servers.iter().zip(hold.shares);
        let releases = shares.map(async |(server, share)| {
            if share.is_none() {
                return Ok(false);
            }
            let release = Release::new(server, of_share(server, claim, share));
            in_time(self.limit, release.send()).await
        });
        let answers = join_all(releases).await;
        self.decide(&answers, |was_held| Some(*was_held))
    }

    /// Gives the hold to the other claim, with the next fence. The owners at the servers stay.
    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        only_exclusive(from.mode)?;
        only_exclusive(to.mode)?;
        let since = Instant::now();
        if let Some(grant) = self.renew_if_granted(to).await? {
            return Ok(Some(grant));
        }
        let Some(hold) = self.hold(from) else { return Ok(None) };
        let mut next = Hold { fence: hold.fence + 1, ..hold };
        if !self.write_fence(to, &mut next, since).await? {
            // A minority of the servers may still have the hold.
            self.release(from).await?;
            return Ok(None);
        }
        let mut holds = lock(&self.holds);
        let Some(before) = holds.remove(&from.owner) else { return Ok(None) };
        let grant = Grant::new(next.fence);
        for (at, server) in self.servers.iter().enumerate() {
            let share = before.share(at);
            // The share missed the fence, or was acquired meanwhile.
            if share.is_some() && next.share(at).is_none() {
                Release::new(server, of_share(server, to, share)).undo();
            }
        }
        holds.insert(to.owner, next);
        Ok(Some(grant))
    }

    async fn inspect(&self, name: &Name, kind: SemaphoreKind) -> Result<Holding, BackendError> {
        let requests = self.servers.iter().map(async |server| {
            let holding = in_time(self.limit, server.backend.inspect(name, kind)).await?;
            Ok(holding.sole_hold())
        });
        let answers = join_all(requests).await;
        if !self.decide(&answers, |holder| Some(holder.is_some()))? {
            return Ok(Holding::default());
        }
        let free = answers.iter().filter(|answer| matches!(answer, Ok(None))).count();
        let occupied = answers.into_iter().flatten().flatten().collect();
        let Some(Occupied { fence, remaining, .. }) = self.in_the_way(free, occupied) else {
            return Ok(Holding::default());
        };
        Ok(Holding { holders: 1, fence, expires_in: remaining, ..Holding::default() })
    }

    async fn clear(&self, name: &Name, mode: Mode) -> Result<bool, BackendError> {
        only_exclusive(mode)?;
        let servers = self.servers.iter();
        let clears = servers.map(|server| in_time(self.limit, server.backend.clear(name, mode)));
        let answers = join_all(clears).await;
        self.decide(&answers, |_| Some(true))?;
        Ok(answers.into_iter().flatten().any(|was_there| was_there))
    }

    /// Registers a waiter in this process. A task listens to all servers from the first refusal on.
    fn listen(&self, name: &Name, _claim: Option<&Claim>) -> Changes {
        self.contention.listen(name)
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let changes = self.contention.listen(name);
        // The task wakes the listener when it is subscribed at a majority.
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

/// Returns the claim of a share at one server, under the owner of the share. Without a share, the
/// claim has a fresh owner.
fn of_share(server: &Janitor, claim: &Claim, share: Option<Share>) -> Claim {
    let owner = share.map_or_else(|| server.backend.new_owner(), |share| share.owner);
    Claim { owner, waits: false, ..claim.clone() }
}

/// Returns whether a server says that the claim at this position is held, or `None` if the server
/// does not know.
fn is_held(each: &[Renewal], which: usize) -> Option<bool> {
    match each.get(which)? {
        Renewal::Held => Some(true),
        Renewal::NotHeld => Some(false),
        Renewal::Unknown => None,
    }
}

fn only_exclusive(mode: Mode) -> Result<(), BackendError> {
    match mode {
        Mode::Exclusive => Ok(()),
        _ => Err(BackendError::refused(format!(
            "a majority has exclusive leases only, not {mode:?}"
        ))),
    }
}
