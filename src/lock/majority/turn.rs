//! The acquisition of a claim: at once, or in its turn.

use std::time::Duration;

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::{Instant, sleep, timeout};

use super::{
    Majority, afresh, occupied,
    order::{ClaimPlace, Queued},
};
use crate::{
    backend::{Acquired, Claim, DynLeases, Grant, Kept, Occupied},
    error::{BackendError, BackendErrorKind, ErrorKind},
    lease::Acquisition,
};

/// How often a claim that has the queue server asks the others again.
const TRIES: u32 = 6;
/// One try may take all the time, because a server does not answer.
const LEAST_TRIES: u32 = 2;
/// The bound of the first pause between these tries, which doubles.
const PAUSE: Duration = Duration::from_millis(1);

/// The acquisition at the queue server.
struct QueueServerEntry {
    at: usize,
    acquisition: Acquisition,
    /// The claim waits for its turn, and is not to look yet.
    gives_way: bool,
}

type Refusal = Result<Occupied, BackendError>;

impl Majority {
    /// Asks all servers, and takes an entry in no queue.
    pub(super) async fn acquire_at_once(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        let tried = self.ask_all(self.acquisitions(&afresh(claim)), acquire).await;
        if let Some(occupied) = kept_for_another(&tried.answers, self.order.queue_server()) {
            self.give_back(tried.acquisitions).await;
            return Ok(Acquired::Occupied(occupied));
        }
        match self.settle(tried, claim.owner).await {
            (true, _) => Ok(Acquired::Granted(Grant::new(0))),
            (false, answers) => self.refused(answers).map(Acquired::Occupied),
        }
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
                Ok(Acquired::Occupied(occupied)) => held.push(occupied.remaining),
                Err(error) => errors.push(error),
            }
        }
        held.sort();
        // So many more servers must become free. They do when their leases end, at the latest.
        match self.needed().checked_sub(free + 1).map(|more| held.get(more)) {
            Some(Some(remaining)) => Ok(occupied(*remaining)),
            _ => Err(self.undecided(errors)),
        }
    }

    /// Acquires the lease, or takes an entry in the queue.
    pub(super) async fn acquire_in_turn(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        let fresh = || self.entry(self.order.queue_server(), claim);
        let (mut entry, asks_first, times_left) = match self.order.take(claim) {
            Some(ClaimPlace::Unknown) => return self.acquire_at_once(claim).await,
            Some(ClaimPlace::Queued(queued)) => {
                // A try lasts for the whole limit while a server hangs. Most claims that ask again
                // are told of their turn, and then the question would only delay them.
                let entry = self.usable(queued).await?;
                let asks_first = self.order.has_silent() && entry.gives_way;
                (entry, asks_first, 0)
            }
            Some(ClaimPlace::Left { times }) => {
                (fresh(), self.order.is_contended(&claim.name), times)
            }
            None => (fresh(), self.order.is_contended(&claim.name), 0),
        };
        // A claim that asks all servers takes away shares of the claim whose turn it is.
        if asks_first && let Some(remaining) = self.ask_first(&mut entry).await? {
            return Ok(self.queued(entry, occupied(remaining)));
        }
        self.ask_in_turn(entry, claim, times_left).await
    }

    /// Asks all servers, and again a few times while the claim has the queue server alone.
    async fn ask_in_turn(
        &self,
        mut entry: QueueServerEntry,
        claim: &Claim,
        times_left: u32,
    ) -> Result<Acquired, BackendError> {
        let (begun, mut tries) = (Instant::now(), 0);
        loop {
            let refusal = match self.ask_from(&mut entry).await {
                Ok(()) => return Ok(Acquired::Granted(Grant::new(0))),
                Err(refusal) => refusal,
            };
            tries += 1;
            let has_time = tries < LEAST_TRIES || begun.elapsed() < self.limit(claim.lease);
            let goes_on = refusal.is_ok() && tries < TRIES && has_time;
            let next = self.order.queue_server();
            match refusal {
                Ok(occupied) if entry.acquisition.may_be_queued() => {
                    return Ok(self.queued(entry, occupied));
                }
                // Claims that are in the way may have asked out of their turn.
                Ok(_) if goes_on && entry.acquisition.is_granted() => {
                    sleep((PAUSE * (1 << tries)).mul_f64(fastrand::f64())).await;
                }
                Ok(_) if goes_on && entry.acquisition.is_idle() && next != entry.at => {
                    entry = self.entry(next, claim);
                }
                refusal => {
                    self.leave(entry).await?;
                    let met = refusal?;
                    let look = self.order.leave(claim, times_left + 1);
                    return Ok(Acquired::Occupied(occupied(look.min(met.remaining))));
                }
            }
        }
    }

    fn entry(&self, at: usize, claim: &Claim) -> QueueServerEntry {
        let at = at.min(self.servers.len() - 1);
        let claim = Claim { takes_handover: false, fence_life: claim.lease, ..claim.clone() };
        let acquisition = Acquisition::new(self.servers[at].clone(), claim);
        QueueServerEntry { at, acquisition, gives_way: false }
    }

    /// Takes an entry up again, at another server if its own cannot serve it any more.
    async fn usable(
        &self,
        Queued { at, acquisition, look_at }: Queued,
    ) -> Result<QueueServerEntry, BackendError> {
        let next = self.order.queue_server();
        let claim = acquisition.claim().clone();
        let gives_way = Instant::now() < look_at;
        let entry = QueueServerEntry { at, acquisition, gives_way };
        if next == at || self.order.serves(at) {
            return Ok(entry);
        }
        self.leave(entry).await?;
        self.order.take(&claim);
        Ok(self.entry(next, &claim))
    }

    /// Asks the queue server alone. Returns how long the lease in the way lasts, if there is one.
    async fn ask_first(
        &self,
        entry: &mut QueueServerEntry,
    ) -> Result<Option<Duration>, BackendError> {
        let lease = entry.acquisition.claim().lease;
        let asked = entry
            .acquisition
            .ask(Duration::MAX, |server, claim| self.in_time(lease, server.acquire(claim)));
        let answer = asked.await;
        self.order.answered(entry.at, &answer);
        match answer {
            Ok((Acquired::Occupied(occupied), _)) => Ok(Some(occupied.remaining)),
            Err(error) if error.may_have_happened() => Err(error),
            _ => Ok(None),
        }
    }

    /// Asks all servers, and keeps what a majority grants. Otherwise keeps the entry alone.
    async fn ask_from(&self, entry: &mut QueueServerEntry) -> Result<(), Refusal> {
        let claim = entry.acquisition.claim().clone();
        let mut acquisitions = self.acquisitions(&afresh(&claim));
        if let Some(there) = acquisitions.get_mut(entry.at) {
            std::mem::swap(there, &mut entry.acquisition);
        }
        let mut tried = self.ask_all(acquisitions, acquire).await;
        let has_majority = tried.is_granted_by(self.needed());
        let look = match tried.answers.get(entry.at) {
            Some(Ok(Acquired::Occupied(there))) if !there.remaining.is_zero() => there.remaining,
            _ => Duration::MAX,
        };
        let mut kept = kept_for_another(&tried.answers, entry.at);
        if has_majority && let Some(Ok(Acquired::Occupied(other))) = tried.answers.get(entry.at) {
            // The other claim may have its turn, and miss what this one was granted.
            self.order.met(&claim.name, self.round_of_turns());
            kept = kept.or_else(|| entry.gives_way.then(|| occupied(other.remaining)));
        }
        if has_majority && kept.is_none() {
            self.keep_granted(tried.acquisitions, claim.owner);
            drop(self.order.remove(claim.owner));
            return Ok(());
        }
        if let Some(there) = tried.acquisitions.get_mut(entry.at) {
            std::mem::swap(there, &mut entry.acquisition);
        }
        self.give_back(tried.acquisitions).await;
        let refusal = kept.map_or_else(|| self.refused(tried.answers), Ok);
        // The queue server knows if no push may tell of a release.
        Err(refusal.map(|way| Occupied { remaining: way.remaining.min(look), ..way }))
    }

    /// Leaves the claim in the queue.
    fn queued(&self, entry: QueueServerEntry, occupied: Occupied) -> Acquired {
        let claim = entry.acquisition.claim();
        let look = self.round_of_turns();
        self.order.met(&claim.name, look);
        self.order.put(entry.at, entry.acquisition, look.min(occupied.remaining));
        Acquired::Occupied(occupied)
    }

    /// Gives the entry back, and what the queue server has granted.
    ///
    /// Fails if the queue server may have something of the claim still, which is undone.
    async fn leave(&self, entry: QueueServerEntry) -> Result<(), BackendError> {
        let claim = entry.acquisition.claim();
        let (owner, limit) = (claim.owner, self.limit(claim.lease));
        let is_idle = entry.acquisition.is_idle();
        let has_entry = entry.acquisition.is_granted() || entry.acquisition.may_be_queued();
        let has_left = has_entry
            && match timeout(limit, entry.acquisition.give_back()).await {
                Ok(Err(error)) => error.kind() == ErrorKind::Lost,
                left => left.is_ok(),
            };
        if !is_idle && !has_left {
            let why = "the server of the queue did not answer";
            return Err(BackendError::new(BackendErrorKind::Unknown, why));
        }
        drop(self.order.remove(owner));
        Ok(())
    }

    /// Keeps the queue entries, each at its server. A claim that has none, or that is to look, is
    /// told so.
    pub(super) async fn keep_entries(&self, claims: &[Claim]) -> Kept {
        let places: Vec<_> = claims.iter().map(|claim| self.order.place(claim)).collect();
        let mut stands = vec![false; claims.len()];
        let mut remaining: Option<Duration> = None;
        for (at, server) in self.servers.iter().enumerate() {
            let there = places.iter().zip(claims).zip(&mut stands);
            let there = there.filter_map(|((place, claim), stands)| {
                let (_, look_at) = place.filter(|(queue_server, _)| *queue_server == at)?;
                Some((claim.clone(), (look_at, stands)))
            });
            let (claims, there): (Vec<_>, Vec<_>) = there.unzip();
            if claims.is_empty() {
                continue;
            }
            let lease = claims.first().map_or(Duration::ZERO, |claim| claim.lease);
            let kept = self.in_time(lease, server.backend().keep(&claims)).await;
            self.order.answered(at, &kept);
            let Ok(kept) = kept else { continue };
            for ((look_at, stands), is_there) in there.into_iter().zip(kept.stands) {
                let left = look_at.saturating_duration_since(Instant::now());
                *stands = is_there && !kept.has_lapsed && !left.is_zero();
                // A zero says nothing of the other claims and servers.
                let times = [left, kept.remaining].into_iter().filter(|time| !time.is_zero());
                remaining = remaining.into_iter().chain(times).min();
            }
        }
        Kept {
            remaining: remaining.unwrap_or_default(),
            has_lapsed: false,
            handed_over: false,
            stands,
        }
    }
}

fn acquire(
    _at: usize,
    server: &dyn DynLeases,
    claim: Claim,
) -> BoxFuture<'_, Result<Acquired, BackendError>> {
    async move { server.acquire(&claim).await }.boxed()
}

/// Returns for how long a queue server keeps the lease for the claim whose turn it is. Any other
/// claim gives way then, although a majority may be free.
///
/// Another process may have its entries at an earlier server. If the queue server has not answered,
/// it may have them at the next one that has.
fn kept_for_another(
    answers: &[Result<Acquired, BackendError>],
    queue_server: usize,
) -> Option<Occupied> {
    let answers_from = |at: &usize| answers.get(*at).is_some_and(Result::is_ok);
    let last = (queue_server..answers.len()).find(answers_from).unwrap_or(queue_server);
    answers.iter().take(last + 1).find_map(|answer| match answer {
        Ok(Acquired::Occupied(kept)) if kept.fence == 0 => Some(occupied(kept.remaining)),
        _ => None,
    })
}
