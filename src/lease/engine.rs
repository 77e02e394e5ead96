use std::{sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Claim, Held, Mode, Owner, Pending, RetryStrategy, Turn, Upkeep, Waiting,
    finish::Finish,
    line::{Call, Entered, Lines, Seat, Waiter},
    owed::{Estate, Owed},
    watchdog::Watchdog,
};
use crate::{
    backend::{ANSWER_LIMIT, Acquired, Change, DynLeases, answered_by},
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
};

/// What acquires, keeps and gives back leases, for one `Cache` or one `Locks`.
pub(crate) struct Engine {
    backend: Arc<dyn DynLeases>,
    pub(super) watchdog: Watchdog,
    lines: Lines,
    /// Releases and undos that no caller owns.
    pub(super) tasks: TaskTracker,
    /// Set when nothing new may begin.
    pub(super) stop: CancellationToken,
    /// Releases whose runtime is gone.
    pub(super) estate: Estate,
}

impl Engine {
    pub(crate) fn new(backend: Arc<dyn DynLeases>) -> Arc<Self> {
        Arc::new(Self {
            watchdog: Watchdog::new(backend.clone()),
            backend,
            lines: Lines::default(),
            tasks: TaskTracker::new(),
            stop: CancellationToken::new(),
            estate: Estate::default(),
        })
    }

    pub(crate) fn backend(&self) -> &Arc<dyn DynLeases> {
        &self.backend
    }

    /// Stops the engine: no acquisition starts any more, and those that wait fail.
    pub(crate) fn stop(&self) {
        self.stop.cancel();
        self.tasks.close();
    }

    /// Stops the engine, and waits until the releases under way have ended or the limit passes.
    pub(crate) async fn shutdown(&self, limit: Duration) {
        self.stop();
        let _ = timeout(limit, self.tasks.wait()).await;
    }

    /// Completes when the engine was stopped.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Runs a task that the shutdown waits for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Acquires a lease: tries, waits for it, and tries again until the wait or the strategy ends.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, whatever it may have acquired is released by a task of the engine's.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        mut claim: Claim,
        upkeep: Upkeep,
        strategy: &dyn RetryStrategy,
        limit: Duration,
    ) -> Result<Held, Error> {
        let begun = Instant::now();
        let name = claim.name.clone();
        // What is not renewed lasts for its own time.
        claim.takes_handover =
            claim.waits && upkeep.refresh.is_some() && claim.mode.takes_handover(claim.lease);
        // Most need not wait.
        let mut waiting = None;
        let wait = |claim: &Claim| {
            let left = limit.saturating_sub(begun.elapsed());
            Waiting::new(self.clone(), claim, strategy, left)
        };
        let shut_down = || Error::new(ErrorKind::ShutDown, "the locks are shut down");
        let not_acquired = || {
            let name = name.prefix().trim_end_matches(':');
            let why = format!("{name} was not acquired before the wait ended");
            Error::new(ErrorKind::NotAcquired, why)
        };
        let mut pending = Pending::new(self.clone(), claim.clone());
        let mut seat = None;
        // Where all wait in one queue, most who come meet others of their process who wait.
        if claim.waits
            && claim.mode.is_ordered()
            && let Some(changes) = self.backend.changes_along(&claim.name)
        {
            waiting.get_or_insert_with(|| wait(&claim)).adopt(changes);
        }
        loop {
            if self.stop.is_cancelled() {
                return Err(shut_down());
            }
            if seat.is_none() {
                match self.lines.enter(&claim, upkeep, pending.is_waiting()) {
                    Entered::None => {}
                    Entered::First(first) => seat = Some(first),
                    Entered::Behind(called) => {
                        let waiting = waiting.get_or_insert_with(|| wait(&claim));
                        let call = tokio::select! {
                            call = Box::pin(waiting.in_line(called)) => call,
                            () = self.stop.cancelled() => return Err(shut_down()),
                        };
                        match call {
                            Some(Ok(Call::Take(held))) => return Ok(held),
                            Some(Ok(Call::Contend { seat: mut mine, passed })) => {
                                match passed {
                                    None => {}
                                    Some(BackendErrorKind::Unreplicated) => {
                                        claim = pending.contend_anew().clone();
                                        waiting.turn_to(&claim);
                                    }
                                    Some(_) => pending.doubtful = true,
                                }
                                if let Some(changes) = mine.kept() {
                                    // The turn of this process is over, and someone elsewhere was called.
                                    waiting.adopt(changes);
                                    Box::pin(sleep(GIVE_WAY)).await;
                                }
                                seat = Some(mine);
                            }
                            // Whoever was passing it on to him is gone, with his runtime. It may be his.
                            Some(Err(_)) => {
                                claim = pending.contend_anew().clone();
                                waiting.turn_to(&claim);
                                continue;
                            }
                            None => return Err(not_acquired()),
                        }
                    }
                }
            }
            let answer =
                pending.attempt(strategy.try_limit(), |claim| self.backend.acquire(claim)).await;
            // Why it would be over, if the wait ends now.
            let (remaining, why) = match answer {
                Ok((Acquired::Granted(grant), sent)) => {
                    let waiting = waiting.filter(|_| pending.is_waiting());
                    return Ok(pending.granted(&grant, upkeep, sent).at(seat, waiting));
                }
                Ok((Acquired::Held(occupied), _)) => {
                    pending.waits(&occupied);
                    (Some(occupied.remaining), not_acquired())
                }
                Err(error) if error.kind() == BackendErrorKind::Foreign => return Err(error.into()),
                Err(error) => {
                    let anew = match error.kind() {
                        BackendErrorKind::Unreplicated => true,
                        // A permit may leave with its id, and then nobody would see to what comes late.
                        BackendErrorKind::Unknown => {
                            matches!(claim.mode, Mode::Permit { .. }) && upkeep.refresh.is_none()
                        }
                        _ => false,
                    };
                    if anew {
                        claim = pending.contend_anew().clone();
                    }
                    (None, error.into())
                }
            };
            let waits = waiting.get_or_insert_with(|| wait(&claim));
            waits.turn_to(&claim);
            // In a box, so that an acquisition that need not wait stays small.
            let turn = tokio::select! {
                turn = Box::pin(waits.after(remaining)) => turn,
                () = self.stop.cancelled() => return Err(shut_down()),
            };
            match turn {
                Turn::TimeUp => return Err(why),
                Turn::Pushed(Change::Granted(handover)) => {
                    if let Some(until) = pending.handed(&handover) {
                        let held = pending.pushed(handover.fence, upkeep, until);
                        return Ok(held.at(seat, waiting));
                    }
                }
                Turn::Pushed(_) | Turn::Again => {}
            }
        }
    }

    /// Gives a lease back: to the next in line of this process, or to whoever wins it.
    async fn give_back(self: Arc<Self>, owed: Owed, mut seat: Option<Seat>) -> Result<(), Error> {
        let (given, lent) = match (seat.as_mut().and_then(Seat::next), seat) {
            (Some(next), Some(seat)) => (Box::pin(self.pass(owed.claim(), next, seat)).await, None),
            (_, seat) => (
                answered_by(
                    self.backend.as_ref(),
                    ANSWER_LIMIT,
                    self.backend.release(owed.claim()),
                )
                .await,
                seat,
            ),
        };
        // Only now may the next in line contend: those who wait elsewhere were told first.
        drop(lent);
        match given {
            Ok(held) => {
                match owed.is_doubtful() {
                    true => drop(self.tasks.spawn(owed.pay_late())),
                    false => owed.paid(),
                }
                held.then_some(()).ok_or_else(Held::lost)
            }
            Err(error) => {
                // Whether it was released is not known.
                self.tasks.spawn(owed.doubted().pay());
                Err(error.into())
            }
        }
    }

    /// Passes a lease on to the next in line, and the seat with it. Says whether it was held.
    async fn pass(
        self: &Arc<Self>,
        from: &Claim,
        next: Waiter,
        seat: Seat,
    ) -> Result<bool, BackendError> {
        let sent = Instant::now();
        match answered_by(self.backend.as_ref(), ANSWER_LIMIT, self.backend.pass(from, &next.claim))
            .await
        {
            Ok(Some(grant)) => {
                let watch = self.watchdog.watch(
                    next.claim.clone(),
                    next.upkeep,
                    next.runtime.clone(),
                    sent,
                );
                let held = Held::new(self.clone(), grant.fence(), watch, next.runtime.clone());
                next.call(Call::Take(held.seated(seat)));
                Ok(true)
            }
            Ok(None) => {
                next.call(Call::Contend { seat, passed: None });
                Ok(false)
            }
            Err(error) => {
                // One of the two may have it: the next claims it with the token that it may have been
                // passed to, unless it was given back under that.
                next.call(Call::Contend { seat, passed: Some(error.kind()) });
                match error.kind() {
                    // It was given away, and only not safely enough for the next one.
                    BackendErrorKind::Unreplicated => Ok(true),
                    _ => Err(error),
                }
            }
        }
    }

    /// Turns a hold into one of another mode in one step; gives it back if others are in the way.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped, both are released by a task of the engine's.
    pub(crate) async fn convert(
        self: &Arc<Self>,
        held: Held,
        mode: Mode,
        limit: Duration,
    ) -> Result<Result<Held, Held>, Error> {
        let (from, upkeep) = (held.claim().clone(), held.watch().upkeep());
        let claim = Claim { owner: Owner::fresh(), mode, ..from.clone() };
        let mut pending = Pending::new(self.clone(), claim);
        let mut tries = 0;
        loop {
            tries += 1;
            match pending.attempt(limit, |to| self.backend.pass(&from, to)).await {
                Ok((Some(grant), sent)) => {
                    held.settled();
                    return Ok(Ok(pending.granted(&grant, upkeep, sent)));
                }
                // Others are in the way, or it is lost; which of them, it says itself.
                Ok((None, _)) => {
                    return match held.refresh().await {
                        Err(error) if error.kind() == ErrorKind::Lost => Err(error),
                        _ => Ok(Err(held)),
                    };
                }
                // It may have been done: the same token asks once more.
                Err(error) if error.kind() == BackendErrorKind::Unknown && tries < 2 => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends what is held under a claim, and says so if it was lost before.
    ///
    /// Dropping the future does not stop the release.
    pub(crate) async fn end(self: &Arc<Self>, claim: Claim) -> Result<(), Error> {
        let owed = Owed::new(self.clone(), claim, false);
        self.give_back_on(owed, None, Handle::current()).await
    }

    pub(super) fn give_back_on(
        self: &Arc<Self>,
        owed: Owed,
        seat: Option<Seat>,
        runtime: Handle,
    ) -> Finish<Result<(), Error>> {
        let give_back = self.tasks.track_future(self.clone().give_back(owed, seat));
        Finish::new(give_back, runtime)
    }

    /// Releases what may be held under a claim, in a task that no caller owns.
    pub(crate) fn undo(self: &Arc<Self>, claim: Claim, doubtful: bool, runtime: &Handle) {
        self.tasks.spawn_on(Owed::new(self.clone(), claim, doubtful).pay(), runtime);
    }
}

/// How long a process whose turn is over waits before it asks again: so that who was called comes first, and
/// has the machine to himself. Less than that, and he waits for us; the line may wait as well.
const GIVE_WAY: Duration = Duration::from_millis(1);
