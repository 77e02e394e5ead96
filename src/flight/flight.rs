//! A flight, as its leader and its followers share it.
//!
//! All that changes is under one lock, which is never held while code of others runs: the work, a
//! waker, the clone of an outcome. The outcomes themselves are set once, so they are read without
//! it.
//!
//! A flight is under way, then it may have a [head](Leader::land_head), then it has
//! [landed](Landing). It is in the map until it has landed, a head is closed, or no caller wants
//! it.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker, ready},
};

use super::{
    group::Flights,
    wakers::{Registration, Wakers},
};
use crate::{
    key::Key,
    sync::checked::{Mutex, OnceLock, Runtime, lock, write},
};

/// The fate of a load that no caller waits for any more.
///
/// ```
/// use bellwether::{Cache, MemoryBackend, cache::Abandoned};
///
/// let cache: Cache<String> = Cache::builder(MemoryBackend::new(), "shop")
///     .when_abandoned(Abandoned::Cancel)
///     .build()?;
/// # Ok::<_, bellwether::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abandoned {
    /// It runs on and fills the cache.
    #[default]
    Finish,
    /// It is cancelled, and its lease released.
    Cancel,
}

/// The leader's work. It ends by landing the flight.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct Flight<T> {
    pub(super) id: u64,
    pub(super) key: Key,
    pub(super) hash: u64,
    flights: Arc<Flights<T>>,
    state: Mutex<State>,
    /// An outcome that callers may have while the flight is under way.
    head: OnceLock<T>,
    /// Set when the flight is out of the map.
    landing: OnceLock<Landing<T>>,
}

struct State {
    /// How many callers have joined, and how many of them are there.
    joined: u64,
    present: u64,
    work: LeaderWork,
    /// The callers that joined before this number may have the head.
    admitted: u64,
    /// No more callers may have the head.
    is_head_closed: bool,
    /// The flight goes on without callers.
    goes_on: bool,
    /// The notices that were given, by their number.
    told: [bool; 4],
    /// The leader's task, if it waits for a notice.
    leader: Option<Waker>,
    followers: Wakers,
}

/// The leader's work, and who polls it.
///
/// While the leader's caller is the only one that depends on the work, it polls the work itself: a
/// hit needs no task. As soon as another caller depends on it, the work moves to a task of its own,
/// and never back. That is when a follower joins, when the leader's caller leaves, and when the
/// group is closed. It is also before a load begins, because a load must not stop when its caller
/// is not polled.
enum LeaderWork {
    /// The leader's caller brings it and polls it. It is here between two polls.
    OfCaller(Option<Parked>),
    /// The leader's caller is about to bring it, or polls it for the last time. Then a task has it.
    Moving,
    /// A task polls it, or it has ended.
    OfTask,
}

struct Parked {
    task: Task,
    runtime: Runtime,
    /// Wakes the leader's caller when a task has taken the work.
    caller: Option<Waker>,
}

/// How a flight has ended. An outcome is `None` for callers that are to join anew.
enum Landing<T> {
    /// With one outcome for all followers.
    ForAll(Option<T>),
    /// With an outcome for the callers that joined before the epoch. Late joiners wait for another.
    Before { epoch: Epoch, outcome: T, late: OnceLock<Option<T>> },
}

/// A moment in a flight. An outcome that belongs to it may go to the callers that joined before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    /// How many callers had joined.
    pub(super) joined: u64,
}

impl Epoch {
    /// The epoch that every caller joined before.
    pub(crate) const END: Self = Self { joined: u64::MAX };
}

/// The news that followers have for the leader of their flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A follower has waited for an answer in vain already, so the leader should not wait for one.
    Hurry,
    /// A loader waits for this flight, so the leader must not wait for a permit that loaders hold.
    NeededByLoader,
    /// No caller waits any more, and the flight is to be cancelled for that.
    Unwanted,
    /// A follower waits that joined too late for the head.
    LateJoiner,
}

impl<T> Flight<T> {
    /// Begins a flight, which its first caller has joined.
    pub(super) fn begin(
        id: u64,
        flights: Arc<Flights<T>>,
        key: Key,
        hash: u64,
    ) -> (Arc<Self>, Follower<T>) {
        let state = State {
            joined: 1,
            present: 1,
            work: LeaderWork::OfCaller(None),
            admitted: 0,
            is_head_closed: false,
            goes_on: false,
            told: [false; 4],
            leader: None,
            followers: Wakers::default(),
        };
        flights.waiting.fetch_add(1, Ordering::Relaxed);
        let (state, head, landing) = (Mutex::new(state), OnceLock::default(), OnceLock::default());
        let flight = Arc::new(Self { id, key, hash, flights, state, head, landing });
        (flight.clone(), Follower::new(flight, 0))
    }

    /// Joins the flight, if fewer callers than the limit are there. To be called under the lock of
    /// the map.
    pub(super) fn join(self: &Arc<Self>, limit: usize) -> Option<Follower<T>> {
        let mut state = lock(&self.state);
        if state.present >= limit as u64 {
            return None;
        }
        let number = state.joined;
        state.joined += 1;
        state.present += 1;
        self.flights.waiting.fetch_add(1, Ordering::Relaxed);
        Some(Follower::new(self.clone(), number))
    }

    /// Moves the work to a task of its own, unless it is there already. To be called without a lock
    /// of the map: a runtime that is gone drops the work at once, and so lands the flight.
    pub(super) fn detach(&self) {
        let parked = lock(&self.state).work.detach();
        parked.into_iter().for_each(Parked::spawn);
    }

    fn tell(&self, notice: Notice) {
        let leader = lock(&self.state).tell(notice);
        leader.into_iter().for_each(Waker::wake);
    }

    /// Polls for a notice, on behalf of the leader's one task.
    fn poll_notice(&self, notice: Notice, cx: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.told[notice as usize] {
            return Poll::Ready(());
        }
        let last = replaced(&mut state.leader, cx);
        drop(state);
        drop(last);
        Poll::Pending
    }

    /// Takes the flight out of the map, so that no caller joins it any more.
    fn remove(&self) {
        self.flights.map.remove(self.hash, |other| other.id == self.id);
    }

    /// Changes the state, and wakes all followers.
    fn wake(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        let followers = state.followers.take();
        drop(state);
        followers.wake();
    }

    /// Tells the leader that the flight is unwanted, if the last caller has left. A flight that has
    /// landed, or has a head, is wanted by the callers that it served.
    fn abandon(&self) {
        if self.flights.abandoned == Abandoned::Finish {
            return;
        }
        let mut table = write(self.flights.map.stripe(self.hash));
        let mut state = lock(&self.state);
        let has_served = self.head.get().is_some() || self.landing.get().is_some();
        if state.present > 0 || state.goes_on || has_served {
            return;
        }
        // Callers join under this lock, so a flight that is not in the map stays without any.
        if let Ok(entry) = table.find_entry(self.hash, |other| other.id == self.id) {
            entry.remove();
        }
        drop(table);
        let leader = state.tell(Notice::Unwanted);
        drop(state);
        leader.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// Notes a notice. Returns the leader's task, to be woken without the lock.
    fn tell(&mut self, notice: Notice) -> Option<Waker> {
        self.told[notice as usize] = true;
        self.leader.take()
    }
}

impl LeaderWork {
    /// Moves to a task. Returns the work if it is here, to be spawned without the lock.
    fn detach(&mut self) -> Option<Parked> {
        match self {
            Self::OfCaller(parked) => {
                let parked = parked.take();
                *self = if parked.is_some() { Self::OfTask } else { Self::Moving };
                parked
            }
            Self::Moving | Self::OfTask => None,
        }
    }
}

impl Parked {
    fn spawn(self) {
        self.runtime.spawn(self.task);
        self.caller.into_iter().for_each(Waker::wake);
    }
}

/// Puts the waker of this task in a place. Returns the last one, to be dropped without the lock:
/// the drop of a waker may run any code.
fn replaced(place: &mut Option<Waker>, cx: &Context<'_>) -> Option<Waker> {
    match place {
        Some(waker) if waker.will_wake(cx.waker()) => None,
        _ => place.replace(cx.waker().clone()),
    }
}

impl<T> Landing<T> {
    /// Returns what there is for a follower, by the number that it joined with. `None` if it is a
    /// late joiner that has to wait.
    fn of(&self, number: u64) -> Option<Option<&T>> {
        match self {
            Self::ForAll(outcome) => Some(outcome.as_ref()),
            Self::Before { epoch, outcome, .. } if number < epoch.joined => Some(Some(outcome)),
            Self::Before { late, .. } => Some(late.get()?.as_ref()),
        }
    }

    /// Returns what there is for the leader's caller, which joined before each epoch.
    fn into_first(self) -> Option<T> {
        match self {
            Self::ForAll(outcome) => outcome,
            Self::Before { outcome, .. } => Some(outcome),
        }
    }
}

/// The duty to land a flight.
///
/// Dropped without an outcome, the leader sends its followers to join anew.
pub(crate) struct Leader<T> {
    pub(super) flight: Arc<Flight<T>>,
}

/// The duty to the callers that joined too late for an outcome. No caller can join any more.
///
/// Dropped without an outcome, it sends them to join anew.
pub(crate) struct LateJoiners<T>(Leader<T>);

impl<T> Leader<T> {
    /// Returns the number of this flight in the process.
    pub(crate) fn id(&self) -> u64 {
        self.flight.id
    }

    /// Begins an epoch. To be called before the backend is asked: its answer may go to the callers
    /// that joined before.
    pub(crate) fn begin_epoch(&self) -> Epoch {
        Epoch { joined: lock(&self.flight.state).joined }
    }

    /// Returns when the leader's work has a task of its own. To be awaited by the work.
    pub(crate) async fn own_task(&self) {
        poll_fn(|_| {
            let mut state = lock(&self.flight.state);
            if let LeaderWork::OfTask = state.work {
                return Poll::Ready(());
            }
            // The caller spawns the work after this poll, so no waker is needed.
            state.work = LeaderWork::Moving;
            Poll::Pending
        })
        .await;
    }

    /// Completes when a follower gives this notice.
    pub(crate) async fn told(&self, notice: Notice) {
        poll_fn(|cx| self.flight.poll_notice(notice, cx)).await;
    }

    /// Asks a question in a new epoch, and awaits the answer. `None` if a follower is in a hurry.
    pub(crate) async fn ask<F: Future>(&self, question: F) -> (Option<F::Output>, Epoch) {
        let (epoch, hurries) = {
            let state = lock(&self.flight.state);
            (Epoch { joined: state.joined }, state.told[Notice::Hurry as usize])
        };
        if hurries {
            return (None, epoch);
        }
        let mut question = pin!(question);
        let answer = poll_fn(|cx| match question.as_mut().poll(cx) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => self.flight.poll_notice(Notice::Hurry, cx).map(|()| None),
        });
        (answer.await, epoch)
    }

    /// Lands the head of the outcome, for the followers that take it and joined before the epoch.
    /// The flight goes on, and callers may still join it.
    pub(crate) fn land_head(&self, outcome: T, epoch: Epoch) {
        let _ = self.flight.head.set(outcome);
        self.admit(epoch);
    }

    /// Admits the callers that joined before this epoch to the head.
    pub(crate) fn admit(&self, epoch: Epoch) {
        self.flight.wake(|state| state.admitted = state.admitted.max(epoch.joined));
    }

    /// Completes when a follower waits that joined too late for the head.
    pub(crate) async fn late_joiner(&self) {
        self.told(Notice::LateJoiner).await;
        lock(&self.flight.state).told[Notice::LateJoiner as usize] = false;
    }

    /// Sends those that joined too late for the head to join anew. The next caller begins a new
    /// flight.
    pub(crate) fn close_head(&self) {
        self.flight.remove();
        self.flight.wake(|state| state.is_head_closed = true);
    }

    /// Lands the flight for the callers that joined before the epoch. The others are still owed an
    /// outcome.
    pub(crate) fn land(self, outcome: T, epoch: Epoch) -> Option<LateJoiners<T>> {
        let flight = &self.flight;
        flight.remove();
        let mut late = false;
        flight.wake(|state| {
            late = state.joined > epoch.joined;
            let _ = flight.landing.set(match late {
                true => Landing::Before { epoch, outcome, late: OnceLock::default() },
                false => Landing::ForAll(Some(outcome)),
            });
        });
        late.then(|| LateJoiners(self))
    }
}

impl<T> LateJoiners<T> {
    /// Lands the flight with the answer to a question that was asked after this duty began. `None`
    /// sends the late joiners to join anew.
    pub(crate) fn land(self, outcome: Option<T>) {
        if let Some(Landing::Before { late, .. }) = self.0.flight.landing.get() {
            let _ = late.set(outcome);
            self.0.flight.wake(|_| {});
        }
    }
}

impl<T> Drop for Leader<T> {
    fn drop(&mut self) {
        let flight = &self.flight;
        let is_cut_off = match flight.landing.get() {
            Some(Landing::ForAll(_)) => false,
            Some(Landing::Before { late, .. }) => late.set(None).is_ok(),
            None => {
                flight.remove();
                flight.landing.set(Landing::ForAll(None)).is_ok()
            }
        };
        if is_cut_off {
            flight.wake(|_| {});
        }
        flight.flights.leaders.end();
    }
}

/// One caller in a flight. Dropping it leaves the flight.
pub(crate) struct Follower<T> {
    pub(super) flight: Arc<Flight<T>>,
    /// How many callers had joined before it.
    number: u64,
    takes_head: bool,
    stage: Stage,
    /// Where its waker is, while it waits.
    registration: Option<Registration>,
}

enum Stage {
    /// It polls the leader's work, until a task does.
    Carrying,
    /// It waits for an outcome.
    Waiting,
    /// It has what it waited for.
    Served,
}

impl<T> Follower<T> {
    fn new(flight: Arc<Flight<T>>, number: u64) -> Self {
        Self { flight, number, takes_head: false, stage: Stage::Waiting, registration: None }
    }

    /// Makes the leader's work independent of its caller, if this is the second caller. The later
    /// ones find it so. To be called without the lock of the map.
    pub(super) fn depend(&self) {
        if self.number == 1 {
            self.flight.detach();
        }
    }

    /// Returns the number of the flight in the process.
    pub(crate) fn flight_id(&self) -> u64 {
        self.flight.id
    }

    /// Sets whether the head of an outcome is of use to this follower.
    pub(crate) fn take_head(&mut self, takes_head: bool) {
        self.takes_head = takes_head;
    }

    pub(crate) fn tell(&self, notice: Notice) {
        self.flight.tell(notice);
    }

    /// Brings the leader's work from a runtime. This follower polls it while it
    /// [waits](Self::wait), as long as no other caller depends on it.
    pub(crate) fn lead(&mut self, task: Task) {
        let parked = Parked { task, runtime: Runtime::current(), caller: None };
        self.stage = Stage::Carrying;
        let mut state = lock(&self.flight.state);
        if let LeaderWork::OfCaller(None) = state.work {
            state.work = LeaderWork::OfCaller(Some(parked));
            return;
        }
        state.work = LeaderWork::OfTask;
        drop(state);
        parked.spawn();
    }

    /// Polls the leader's work, if it is this follower's to poll, until a task does.
    ///
    /// # Cancel safety
    ///
    /// As [`wait`](Self::wait).
    pub(crate) fn carry(&mut self) -> impl Future<Output = ()> {
        poll_fn(|cx| self.poll_work(cx))
    }

    /// Ready when there is nothing more for this follower to poll.
    pub(super) fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Stage::Carrying = self.stage else { return Poll::Ready(()) };
        let taken = match &mut lock(&self.flight.state).work {
            LeaderWork::OfCaller(parked) => parked.take(),
            LeaderWork::Moving | LeaderWork::OfTask => None,
        };
        let Some(mut parked) = taken else {
            self.stage = Stage::Waiting;
            return Poll::Ready(());
        };
        let is_over = parked.task.as_mut().poll(cx).is_ready();
        let mut state = lock(&self.flight.state);
        if is_over || matches!(state.work, LeaderWork::Moving) {
            self.stage = Stage::Waiting;
            state.work = LeaderWork::OfTask;
            drop(state);
            if !is_over {
                parked.spawn();
            }
            return Poll::Ready(());
        }
        let last = replaced(&mut parked.caller, cx);
        state.work = LeaderWork::OfCaller(Some(parked));
        drop(state);
        drop(last);
        Poll::Pending
    }

    /// Lets the flight go on, even if no caller is left.
    pub(crate) fn leave_behind(&self) {
        lock(&self.flight.state).goes_on = true;
    }
}

impl<T: Clone> Follower<T> {
    /// Waits until the flight has landed, or its head if that is of use to this follower. `None` if
    /// there is no outcome for this follower, so that it joins anew.
    ///
    /// A follower that [leads](Self::lead) polls the work meanwhile, as long as no other caller
    /// depends on it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future and the follower leaves the flight, which goes on for the others. The
    /// work goes on in a task.
    pub(crate) fn wait(&mut self) -> impl Future<Output = Option<T>> {
        // Not an async function: what a follower holds while it waits is its own state.
        poll_fn(|cx| {
            let waited = ready!(self.poll(cx));
            self.stage = Stage::Served;
            Poll::Ready(waited)
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        if let Stage::Carrying = self.stage {
            ready!(self.poll_work(cx));
            // The last caller that has the flight needs no copy of the outcome.
            let landing = Arc::get_mut(&mut self.flight).and_then(|flight| flight.landing.take());
            if let Some(landing) = landing {
                return Poll::Ready(landing.into_first());
            }
        }
        let (flight, number) = (&*self.flight, self.number);
        let landed = || flight.landing.get()?.of(number);
        if !self.takes_head
            && let Some(outcome) = landed()
        {
            // Its registration is gone with the wake-up that has come, or is about to.
            self.registration = None;
            return Poll::Ready(outcome.cloned());
        }
        let mut state = lock(&flight.state);
        let head = flight.head.get().filter(|_| self.takes_head);
        let outcome = match head {
            Some(_) if number < state.admitted => Some(head),
            Some(_) if state.is_head_closed => Some(None),
            _ => landed(),
        };
        if let Some(outcome) = outcome {
            drop(state);
            self.registration = None;
            return Poll::Ready(outcome.cloned());
        }
        let last = state.followers.register(&mut self.registration, cx.waker());
        let leader = head.and_then(|_| state.tell(Notice::LateJoiner));
        drop(state);
        drop(last);
        leader.into_iter().for_each(Waker::wake);
        Poll::Pending
    }
}

impl<T> Drop for Follower<T> {
    fn drop(&mut self) {
        let flight = &self.flight;
        flight.flights.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut state = lock(&flight.state);
        state.present -= 1;
        let waker = state.followers.leave(self.registration);
        let parked = match self.stage {
            Stage::Carrying => state.work.detach(),
            Stage::Waiting | Stage::Served => None,
        };
        let is_last = state.present == 0;
        drop(state);
        drop(waker);
        parked.into_iter().for_each(Parked::spawn);
        if is_last && !matches!(self.stage, Stage::Served) {
            flight.abandon();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::{
        future::pending,
        pin::pin,
        sync::mpsc,
        task::{Wake, Waker},
        thread,
        time::Duration,
    };

    use super::*;
    use crate::{
        flight::{Group, Joined, Limits},
        key::Key,
    };

    fn flight() -> (Group<u64>, Leader<u64>, Follower<u64>) {
        let group = Group::new(Abandoned::Finish, Limits::NONE);
        let Joined { follower, leader: Some(leader) } = join(&group) else { unreachable!() };
        (group, leader, follower)
    }

    fn join(group: &Group<u64>) -> Joined<u64> {
        group.join(&Key::from("k")).unwrap_or_else(|_| unreachable!())
    }

    fn is_pending(wait: impl Future<Output = Option<u64>>, waker: &Waker) -> bool {
        pin!(wait).poll(&mut Context::from_waker(waker)).is_pending()
    }

    struct Task;

    impl Wake for Task {
        fn wake(self: Arc<Self>) {}
    }

    /// The memory of a task would stay until the landing.
    #[test]
    fn a_follower_that_leaves_takes_its_waker_along() {
        let (group, _leader, _first) = flight();
        let mut follower = join(&group).follower;
        let task = Arc::new(Task);
        assert!(is_pending(follower.wait(), &Waker::from(task.clone())));
        assert_eq!(Arc::strong_count(&task), 2);
        drop(follower);
        assert_eq!(Arc::strong_count(&task), 1);
    }

    /// A waker that owns the last caller of a flight. Its drop detaches the work.
    struct Joins(Group<u64>);

    impl Wake for Joins {
        fn wake(self: Arc<Self>) {}
    }

    impl Drop for Joins {
        fn drop(&mut self) {
            drop(join(&self.0));
        }
    }

    /// The waker of the last poll was dropped under the lock that its drop took as well.
    #[tokio::test]
    async fn a_caller_may_be_polled_with_a_new_waker_whose_predecessor_runs_code() {
        let (group, leader, mut first) = flight();
        first.lead(Box::pin(async move {
            pending::<()>().await;
            drop(leader);
        }));
        // The second caller detaches the work.
        let waker = Waker::from(Arc::new(Joins(group)));
        assert!(is_pending(first.wait(), &waker));
        drop(waker);
        // In a thread, which would block for ever.
        let (polled, answer) = mpsc::channel();
        thread::spawn(move || polled.send(is_pending(first.wait(), Waker::noop())));
        assert_eq!(answer.recv_timeout(Duration::from_secs(10)), Ok(true));
    }
}
