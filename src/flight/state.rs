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
//! Callers join a flight while it is [`UnderWay`](Phase::UnderWay) or has a
//! [head](Phase::HeadLanded). In every other phase, the next caller begins a new flight.
//!
//! Everything here stands under the one lock of the flight. Of foreign code, only the clones of
//! wakers run under that lock. Wakers are returned, to be woken and dropped without the lock.
//! Outcomes are shared by an `Arc`, so that a caller clones the outcome after the lock.

use std::{mem::replace, sync::Arc, task::Waker};

use super::wakers::{Registration, Wakers};

pub(super) struct State<T> {
    phase: Phase<T>,
    /// How many callers have joined.
    joined: u64,
    /// How many of them have not left.
    present: u64,
    /// The flight goes on without callers.
    goes_on: bool,
    /// A loader waits for this flight, or has waited for it.
    is_needed_by_loader: bool,
    /// A follower that joined too late for the head has looked since the leader last took this.
    has_late_joiner: bool,
    /// The task of the leader, if the leader has waited for news of the followers.
    leader: Option<Waker>,
    followers: Wakers,
}

enum Phase<T> {
    /// The work runs, and there is no outcome yet.
    UnderWay,
    /// The work runs, and some followers have a head.
    HeadLanded(FlightHead<T>),
    /// The work runs. A follower that takes a head and joined too late for this one joins anew.
    HeadClosed(FlightHead<T>),
    Landed(Landed<T>),
    /// The last caller left before there was an outcome, and the work is to be cancelled.
    Abandoned,
}

/// An outcome for the followers that take a head and joined before `admitted`.
struct FlightHead<T> {
    outcome: Arc<T>,
    admitted: Epoch,
}

/// The end of the work.
struct Landed<T> {
    /// A follower that the head admits, and that was not polled before the landing, still gets the
    /// head.
    head: Option<FlightHead<T>>,
    /// For the followers that joined before `epoch`, but those with the head.
    landing: Landing<Arc<T>>,
    epoch: Epoch,
    /// For the followers that joined later. `None` while the leader still owes them an end.
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

/// A moment in a flight. An outcome that belongs to it may go to the callers that joined before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Epoch {
    pub(super) joined: u64,
}

impl Epoch {
    /// The epoch that only the first caller joined before, which leads.
    pub(crate) const LEADER: Self = Self { joined: 1 };
    /// The epoch that every caller joined before.
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
        /// The last waker of the follower, to be dropped without the lock.
        replaced: Option<Waker>,
        /// The task of the leader, to be woken.
        leader: Option<Waker>,
    },
}

/// A change of the state, to be [told](Self::tell) without the lock. What the change has replaced
/// is dropped there, because the drop of an outcome may run the code of a user.
#[must_use]
pub(super) struct StateChange<T> {
    followers: Vec<Option<Waker>>,
    before: Option<Phase<T>>,
    unused: Option<Arc<T>>,
}

impl<T> Default for StateChange<T> {
    fn default() -> Self {
        Self { followers: Vec::new(), before: None, unused: None }
    }
}

impl<T> StateChange<T> {
    /// Wakes all followers, in the order of their slots.
    pub(super) fn tell(self) {
        let Self { followers, before, unused } = self;
        for waker in followers.into_iter().flatten() {
            waker.wake();
        }
        drop(before);
        drop(unused);
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
            leader: None,
            followers: Wakers::default(),
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

    /// Begins an epoch. An answer to a question that is asked from now on may go to the callers
    /// that have joined so far.
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
        let replaced = self.followers.register(registration, waker);
        let mut leader = None;
        if takes_head && matches!(self.phase, Phase::HeadLanded(_)) {
            self.has_late_joiner = true;
            leader = self.leader.take();
        }
        Found::Waits { replaced, leader }
    }

    fn landing_for(&mut self, number: u64, takes_head: bool) -> Option<Landing<Arc<T>>> {
        if takes_head
            && let Some(head) = self.head()
            && head.admitted.admits(number)
        {
            return Some(Landing::Outcome(head.outcome.clone()));
        }
        match &mut self.phase {
            Phase::UnderWay | Phase::HeadLanded(_) | Phase::Abandoned => None,
            Phase::HeadClosed(_) => takes_head.then_some(Landing::JoinAnew),
            Phase::Landed(landed) if !landed.epoch.admits(number) => landed.late.clone(),
            // No other caller is there, and none comes. This caller takes the only `Arc`, so it can
            // move the outcome out.
            Phase::Landed(landed) if self.present == 1 => {
                Some(replace(&mut landed.landing, Landing::JoinAnew))
            }
            Phase::Landed(landed) => Some(landed.landing.clone()),
        }
    }

    fn head(&self) -> Option<&FlightHead<T>> {
        match &self.phase {
            Phase::HeadLanded(head) | Phase::HeadClosed(head) => Some(head),
            Phase::Landed(landed) => landed.head.as_ref(),
            Phase::UnderWay | Phase::Abandoned => None,
        }
    }

    /// Lands the head, for the followers that take a head and joined before the epoch. The first
    /// head stays.
    pub(super) fn land_head(&mut self, outcome: Arc<T>, epoch: Epoch) -> StateChange<T> {
        if !matches!(self.phase, Phase::UnderWay) {
            return StateChange { unused: Some(outcome), ..StateChange::default() };
        }
        self.phase = Phase::HeadLanded(FlightHead { outcome, admitted: epoch });
        self.woken()
    }

    /// Admits the followers to the head that joined before the epoch.
    pub(super) fn admit_to_head(&mut self, epoch: Epoch) -> StateChange<T> {
        let Phase::HeadLanded(head) = &mut self.phase else { return StateChange::default() };
        head.admitted = epoch.max(head.admitted);
        // Each follower wakes. One that is not admitted looks again, and sets this again.
        self.has_late_joiner = false;
        self.woken()
    }

    /// Sends the followers on that joined too late for the head.
    pub(super) fn close_head(&mut self) -> StateChange<T> {
        match replace(&mut self.phase, Phase::UnderWay) {
            Phase::HeadLanded(head) => {
                self.phase = Phase::HeadClosed(head);
                self.woken()
            }
            other => {
                self.phase = other;
                StateChange::default()
            }
        }
    }

    /// Lands for the followers that joined before the epoch.
    pub(super) fn land(&mut self, landing: Landing<Arc<T>>, epoch: Epoch) -> StateChange<T> {
        #[cfg(bellwether_sim)]
        let epoch = if crate::sim::is_planted("no-epochs") { self.epoch() } else { epoch };
        let mut landed = Landed { head: None, landing, epoch, late: None };
        let mut before = None;
        match replace(&mut self.phase, Phase::UnderWay) {
            Phase::HeadLanded(head) => landed.head = Some(head),
            Phase::HeadClosed(head) => {
                landed.head = Some(head);
                landed.late = Some(Landing::JoinAnew);
            }
            phase => before = Some(phase),
        }
        self.phase = Phase::Landed(landed);
        StateChange { before, ..self.woken() }
    }

    /// Lands for the followers that joined too late for [`land`](Self::land).
    pub(super) fn land_late(&mut self, landing: Landing<Arc<T>>) -> StateChange<T> {
        match &mut self.phase {
            Phase::Landed(landed) if landed.late.is_none() => {
                landed.late = Some(landing);
                self.woken()
            }
            _ => StateChange { unused: landing.outcome(), ..StateChange::default() },
        }
    }

    fn woken(&mut self) -> StateChange<T> {
        StateChange { followers: self.followers.take(), ..StateChange::default() }
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
        landed.landing.clone().outcome()
    }

    /// Lets a follower leave. Returns its waker, to be dropped without the lock.
    pub(super) fn leave(&mut self, registration: Option<Registration>) -> Option<Waker> {
        self.present -= 1;
        self.followers.leave(registration?)
    }

    /// Abandons the flight if no caller is left that wants it. A flight with a head or a landing is
    /// wanted by the callers that it served. Returns whether the flight is abandoned now.
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

    /// Registers the task of the leader, which waits for news of the followers. Returns the last
    /// waker, to be dropped without the lock.
    pub(super) fn register_leader(&mut self, waker: &Waker) -> Option<Waker> {
        match &mut self.leader {
            Some(last) if last.will_wake(waker) => None,
            leader => leader.replace(waker.clone()),
        }
    }

    /// Takes the waker of the leader, to be woken.
    pub(super) fn take_leader(&mut self) -> Option<Waker> {
        self.leader.take()
    }
}
