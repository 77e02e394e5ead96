//! The state of a flight: what its followers may have, and the wakers of those that wait.
//!
//! ```text
//!           land_head          close_head
//! UnderWay -----------> HeadLanded ------> HeadClosed
//!   |   |                    |                 |
//!   |   |  land              |  land           |  land
//!   |   +--------------------+-----------------+-----> Landed
//!   |                                                    ^
//!   |  abandon                              land         |
//!   +------------> Abandoned ----------------------------+
//! ```
//!
//! The first caller of a flight is a follower, too. The leader is the handle of the work.
//!
//! Callers join a flight in the phases [`UnderWay`](Phase::UnderWay) and
//! [`HeadLanded`](Phase::HeadLanded). In every other phase, the next caller begins a new flight.
//!
//! One lock protects the whole state. Under the lock, the only foreign code that runs is the clone
//! of a waker. The methods return wakers, which the caller wakes and drops after it has released
//! the lock. Outcomes are in an `Arc`, so that a follower clones its outcome without the lock.

use std::{
    mem::replace,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Waker,
};

use super::wakers::{Registration, Wakers};

pub(super) struct State<T> {
    phase: Phase<T>,
    /// How many callers have joined.
    joined: u64,
    /// How many callers have joined and not left.
    present: u64,
    /// The flight goes on without callers.
    goes_on: bool,
    /// A loader waits for this flight, or has waited for it.
    is_needed_by_loader: bool,
    /// Since the leader last [took this flag](State::take_late_joiner), a follower has looked that
    /// joined too late for the head.
    has_late_joiner: bool,
    /// Wakes the task of the leader, which waits for news of the followers.
    leader_waker: Option<Waker>,
    follower_wakers: Wakers,
}

enum Phase<T> {
    /// The work runs, and there is no outcome yet.
    UnderWay,
    /// The work runs, and some followers have a head.
    HeadLanded(FlightHead<T>),
    /// The work runs. A follower that takes heads, and joined too late for this head, joins anew.
    HeadClosed(FlightHead<T>),
    Landed(Landed<T>),
    /// The last caller left before there was an outcome, and the work is to be cancelled.
    Abandoned,
}

/// An outcome for the followers that take heads and joined before `epoch`.
struct FlightHead<T> {
    outcome: Arc<T>,
    epoch: Epoch,
}

/// The end of the work.
struct Landed<T> {
    /// For the followers that the head admits. They get the head also if they are first polled
    /// after the landing.
    head: Option<FlightHead<T>>,
    /// For the followers that joined before `epoch`, except the followers that get the head. `None`
    /// once the last follower has moved the landing out.
    landing: Option<Landing<Arc<T>>>,
    epoch: Epoch,
    /// For the followers that joined later. `None` until the leader [lands](State::land_late) for
    /// these followers.
    late: Option<Landing<Arc<T>>>,
}

/// The end of a flight for some of its followers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Landing<T> {
    Outcome(T),
    /// There is no outcome for these followers, so each of them joins anew.
    JoinAnew,
}

impl<T> Landing<T> {
    pub(crate) fn outcome(self) -> Option<T> {
        match self {
            Self::Outcome(outcome) => Some(outcome),
            Self::JoinAnew => None,
        }
    }

    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> Landing<U> {
        match self {
            Self::Outcome(outcome) => Landing::Outcome(change(outcome)),
            Self::JoinAnew => Landing::JoinAnew,
        }
    }
}

/// A moment in a flight. An outcome of this moment may go to the callers that joined before the
/// moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch {
    pub(super) joined: u64,
}

impl Epoch {
    /// The moment after the first caller, which leads, has joined.
    pub(crate) const LEADER: Self = Self { joined: 1 };
    /// The moment after the last caller has joined.
    pub(crate) const END: Self = Self { joined: u64::MAX };

    fn admits(self, number: u64) -> bool {
        number < self.joined
    }
}

/// How a caller joins.
pub(super) enum Join {
    /// With this number, which counts the callers that joined before.
    Joined(u64),
    /// The flight has as many callers as it may have.
    Full,
    /// The flight admits no caller any more.
    Over,
}

/// What a follower finds.
pub(super) enum Found<T> {
    Landed(Landing<Arc<T>>),
    Waits {
        /// The previous waker of the follower, to be dropped without the lock.
        replaced: Option<Waker>,
        /// The waker of the leader, to be woken without the lock.
        leader_waker: Option<Waker>,
    },
}

/// What is left to do after a change of the state, [without the lock](Self::wake_and_drop).
#[must_use]
pub(super) struct AfterChange<T> {
    followers: Vec<Option<Waker>>,
    /// An outcome that no follower gets. Its drop may run the code of a user.
    unused: Option<Arc<T>>,
}

impl<T> AfterChange<T> {
    const NOTHING: Self = Self { followers: Vec::new(), unused: None };

    fn unused(outcome: Option<Arc<T>>) -> Self {
        Self { unused: outcome, ..Self::NOTHING }
    }

    /// Wakes all followers, in the order of their slots.
    pub(super) fn wake_and_drop(self) {
        for waker in self.followers.into_iter().flatten() {
            // A waker that panics must not keep the other followers asleep.
            let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
        }
        drop(self.unused);
    }
}

impl<T> State<T> {
    /// Returns the state of a new flight. Its first caller has joined.
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::UnderWay,
            joined: 1,
            present: 1,
            goes_on: false,
            is_needed_by_loader: false,
            has_late_joiner: false,
            leader_waker: None,
            follower_wakers: Wakers::default(),
        }
    }

    pub(super) fn join(&mut self, limit: usize) -> Join {
        if !matches!(self.phase, Phase::UnderWay | Phase::HeadLanded(_)) {
            return Join::Over;
        }
        if self.present >= limit as u64 {
            return Join::Full;
        }
        let number = self.joined;
        self.joined += 1;
        self.present += 1;
        Join::Joined(number)
    }

    /// Returns the present epoch. If the leader asks the backend after this call, the answer may go
    /// to the callers that have joined so far.
    pub(super) fn epoch(&self) -> Epoch {
        Epoch { joined: self.joined }
    }

    /// Looks for the landing of a follower, or registers its waker.
    pub(super) fn look(
        &mut self,
        number: u64,
        takes_head: bool,
        registration: &mut Option<Registration>,
        waker: &Waker,
    ) -> Found<T> {
        if let Some(landing) = self.landing_for(number, takes_head) {
            return Found::Landed(landing);
        }
        let replaced = self.follower_wakers.register(registration, waker);
        let mut leader_waker = None;
        if takes_head && matches!(self.phase, Phase::HeadLanded(_)) {
            self.has_late_joiner = true;
            leader_waker = self.leader_waker.take();
        }
        Found::Waits { replaced, leader_waker }
    }

    fn landing_for(&mut self, number: u64, takes_head: bool) -> Option<Landing<Arc<T>>> {
        if takes_head
            && let Some(head) = self.head()
            && head.epoch.admits(number)
        {
            return Some(Landing::Outcome(head.outcome.clone()));
        }
        match &mut self.phase {
            Phase::UnderWay | Phase::HeadLanded(_) | Phase::Abandoned => None,
            Phase::HeadClosed(_) if takes_head => Some(Landing::JoinAnew),
            Phase::HeadClosed(_) => None,
            Phase::Landed(landed) if !landed.epoch.admits(number) => landed.late.clone(),
            // No other caller is in the flight, and no caller can join. So this caller takes the
            // only `Arc`, and moves the outcome out.
            Phase::Landed(landed) if self.present == 1 => landed.landing.take(),
            Phase::Landed(landed) => landed.landing.clone(),
        }
    }

    fn head(&self) -> Option<&FlightHead<T>> {
        match &self.phase {
            Phase::HeadLanded(head) | Phase::HeadClosed(head) => Some(head),
            Phase::Landed(landed) => landed.head.as_ref(),
            Phase::UnderWay | Phase::Abandoned => None,
        }
    }

    /// Lands the head, for the followers that take heads and joined before the epoch. A flight
    /// keeps its first head.
    pub(super) fn land_head(&mut self, outcome: Arc<T>, epoch: Epoch) -> AfterChange<T> {
        if !matches!(self.phase, Phase::UnderWay) {
            return AfterChange::unused(Some(outcome));
        }
        self.phase = Phase::HeadLanded(FlightHead { outcome, epoch });
        self.take_followers()
    }

    /// Moves the epoch of the head. A follower that joined before `epoch` now gets the head.
    pub(super) fn admit_to_head(&mut self, epoch: Epoch) -> AfterChange<T> {
        let Phase::HeadLanded(head) = &mut self.phase else { return AfterChange::NOTHING };
        head.epoch = epoch.max(head.epoch);
        // Each follower wakes. A follower that joined too late looks again, and sets this again.
        self.has_late_joiner = false;
        self.take_followers()
    }

    /// Closes the head. A follower that takes heads, and joined too late, now joins anew.
    pub(super) fn close_head(&mut self) -> AfterChange<T> {
        // `UnderWay` stands in for the phase only while the phase is moved.
        match replace(&mut self.phase, Phase::UnderWay) {
            Phase::HeadLanded(head) => {
                self.phase = Phase::HeadClosed(head);
                self.take_followers()
            }
            other => {
                self.phase = other;
                AfterChange::NOTHING
            }
        }
    }

    /// Lands for the followers that joined before the epoch. A flight lands once.
    pub(super) fn land(&mut self, landing: Landing<Arc<T>>, epoch: Epoch) -> AfterChange<T> {
        #[cfg(bellwether_sim)]
        let epoch = if crate::sim::is_planted("no-epochs") { self.epoch() } else { epoch };
        let mut head = None;
        let mut late = None;
        // `UnderWay` stands in for the phase only while the phase is moved.
        match replace(&mut self.phase, Phase::UnderWay) {
            Phase::HeadLanded(landed) => head = Some(landed),
            Phase::HeadClosed(landed) => {
                head = Some(landed);
                late = Some(Landing::JoinAnew);
            }
            Phase::UnderWay | Phase::Abandoned | Phase::Landed(_) => {}
        }
        self.phase = Phase::Landed(Landed { head, landing: Some(landing), epoch, late });
        self.take_followers()
    }

    /// Lands for the followers that joined too late for [`land`](Self::land).
    pub(super) fn land_late(&mut self, landing: Landing<Arc<T>>) -> AfterChange<T> {
        match &mut self.phase {
            Phase::Landed(landed) if landed.late.is_none() => {
                landed.late = Some(landing);
                self.take_followers()
            }
            _ => AfterChange::unused(landing.outcome()),
        }
    }

    /// Takes the wakers of all followers, to be woken without the lock.
    fn take_followers(&mut self) -> AfterChange<T> {
        AfterChange { followers: self.follower_wakers.take(), ..AfterChange::NOTHING }
    }

    /// Returns whether the flight has landed, and followers have joined too late for the landing.
    /// They may have left since.
    pub(super) fn owes_late_joiners(&self) -> bool {
        match &self.phase {
            Phase::Landed(landed) => landed.late.is_none() && self.joined > landed.epoch.joined,
            _ => false,
        }
    }

    pub(super) fn has_landed(&self) -> bool {
        matches!(self.phase, Phase::Landed(_))
    }

    /// Returns the outcome for the followers that joined before the epoch of the landing. Returns
    /// `None` if the last follower has moved the outcome out.
    pub(super) fn outcome(&self) -> Option<Arc<T>> {
        let Phase::Landed(landed) = &self.phase else { return None };
        landed.landing.clone()?.outcome()
    }

    /// Lets a follower leave. Returns its waker, to be dropped without the lock.
    pub(super) fn leave(&mut self, registration: Option<Registration>) -> Option<Waker> {
        self.present -= 1;
        self.follower_wakers.leave(registration?)
    }

    /// Abandons the flight if no caller is left. A flight with a head goes on, because the callers
    /// that have the head need the rest. Returns whether the flight is abandoned now.
    pub(super) fn abandon(&mut self) -> bool {
        let is_unwanted =
            self.present == 0 && !self.goes_on && matches!(self.phase, Phase::UnderWay);
        if is_unwanted {
            self.phase = Phase::Abandoned;
        }
        is_unwanted
    }

    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self.phase, Phase::Abandoned)
    }

    /// Lets the flight go on, even if no caller is left.
    pub(super) fn go_on(&mut self) {
        self.goes_on = true;
    }

    /// Notes that a loader waits for the flight.
    pub(super) fn note_loader(&mut self) {
        self.is_needed_by_loader = true;
    }

    pub(super) fn is_needed_by_loader(&self) -> bool {
        self.is_needed_by_loader
    }

    /// Returns whether a follower that joined too late for the head has looked, and forgets that.
    pub(super) fn take_late_joiner(&mut self) -> bool {
        replace(&mut self.has_late_joiner, false)
    }

    /// Registers the task of the leader, which waits for news of the followers. Returns the
    /// previous waker, to be dropped without the lock.
    pub(super) fn register_leader(&mut self, waker: &Waker) -> Option<Waker> {
        match &mut self.leader_waker {
            Some(previous) if previous.will_wake(waker) => None,
            leader_waker => leader_waker.replace(waker.clone()),
        }
    }

    /// Takes the waker of the leader, to be woken without the lock.
    pub(super) fn take_leader(&mut self) -> Option<Waker> {
        self.leader_waker.take()
    }
}
