//! The flights of a cache, and a flight as its leader and its followers share it.
//!
//! All that changes is under one lock, which is never held while code of others runs: the work, a
//! waker, the clone of an outcome. The outcomes themselves are set once, so they are read without
//! it.
//!
//! A flight is under way, then it may have a [head](Leader::land_head), then it has
//! [landed](Leader::land). It is in the map until it has landed, a head is closed, or no caller
//! wants it.

use std::{
    future::{pending, poll_fn},
    hash::BuildHasher,
    mem::replace,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker, ready},
    thread,
    time::Duration,
};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::{
    cycle::current,
    wakers::{Registration, Wakers},
};
use crate::{
    key::Key,
    sync::checked::{
        AtomicUsize, Mutex, OnceLock, Runtime, RwLock, TaskTracker, TaskTrackerToken, lock, read,
        write,
    },
};

/// Flights are numbered through the process, so that one can wait for one of another cache.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns the number of a flight, or of a load without one.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// The flights of one cache, one for each key and what its callers accept, in a striped hash table.
/// No lock of it is held over an await.
///
/// A key is hashed once in a flight: the caller that joins passes the hash on, and the flight keeps
/// it for its removal. The hash is seeded for each process.
pub(crate) struct Flights<T> {
    stripes: Box<[Stripe<T>]>,
    hasher: DefaultHashBuilder,
    /// How many callers wait in all flights.
    waiting: AtomicUsize,
    limits: Limits,
    /// Counts the leaders. Once it is closed, no flight begins.
    leaders: TaskTracker,
    /// A flight ends when its last caller leaves.
    cancels_abandoned: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) per_flight: usize,
    pub(crate) in_all: usize,
}

/// The values that a caller accepts. Callers that differ in it have flights of their own, because
/// one of them would wait where the other does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// The longest stale window, and the longest error window.
    pub(crate) stale: Duration,
    pub(crate) error: Duration,
    /// The least fence. A load that began before its caller was told of it may be older.
    pub(crate) least_fence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Closed,
    /// So many callers wait in this flight already.
    FlightFull(usize),
    /// So many callers wait in all flights already.
    AllFull(usize),
}

/// A caller that has joined a flight.
pub(crate) struct Joined<T> {
    pub(crate) follower: Follower<T>,
    /// The first caller of a flight gets the duty to land it, and brings [work](Follower::bring).
    pub(crate) leader: Option<Leader<T>>,
}

/// Above this capacity, a stripe that becomes empty gives its memory back.
const WORTH_SHRINKING: usize = 256;

/// A part of the table. Aligned, because two locks in one cache line would slow each other down.
#[repr(align(128))]
struct Stripe<T>(RwLock<HashTable<Arc<Flight<T>>>>);

impl<T> Flights<T> {
    pub(crate) fn new(cancels_abandoned: bool, limits: Limits, leaders: TaskTracker) -> Arc<Self> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let stripes = if cfg!(loom) { 1 } else { (cores * 4).next_power_of_two() };
        Arc::new(Self {
            stripes: (0..stripes).map(|_| Stripe(RwLock::new(HashTable::new()))).collect(),
            hasher: DefaultHashBuilder::default(),
            waiting: AtomicUsize::default(),
            limits,
            leaders,
            cancels_abandoned,
        })
    }

    /// Joins the flight of a key, or begins one.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the flights are closed or full. Callers that join at the same moment may pass
    /// a limit together.
    pub(crate) fn join(
        self: &Arc<Self>,
        key: &Key,
        accepted: Accepted,
    ) -> Result<Joined<T>, Refused> {
        if self.leaders.is_closed() {
            return Err(Refused::Closed);
        }
        let limit = self.limits.in_all;
        if self.waiting.load(Ordering::Relaxed) >= limit {
            return Err(Refused::AllFull(limit));
        }
        let hash = self.hasher.hash_one(key);
        let stripe = self.stripe(hash);
        let follow = |table: &HashTable<Arc<Flight<T>>>| {
            let flight = table.find(hash, |it| it.key == *key && it.accepted == accepted)?;
            Some(flight.join(self.limits.per_flight))
        };
        // Most callers of a hot key find its flight, and need no more than a look for that.
        let found = follow(&read(stripe));
        let follower = match found {
            Some(joined) => joined?,
            None => {
                let mut table = write(stripe);
                match follow(&table) {
                    Some(joined) => joined?,
                    None => return self.begin(&mut table, key, hash, accepted),
                }
            }
        };
        // The second caller depends on the work. The later ones find it so.
        if follower.number == 1 {
            follower.flight.detach();
        }
        Ok(Joined { follower, leader: None })
    }

    /// Begins the flight of a key, under the lock of its stripe: `close` finds each flight that
    /// begins before it, and its leader counts.
    fn begin(
        self: &Arc<Self>,
        table: &mut HashTable<Arc<Flight<T>>>,
        key: &Key,
        hash: u64,
        accepted: Accepted,
    ) -> Result<Joined<T>, Refused> {
        if self.leaders.is_closed() {
            return Err(Refused::Closed);
        }
        let (id, counted) = (next_id(), self.leaders.token());
        let flight = Arc::new(Flight {
            id,
            key: key.clone(),
            hash,
            accepted,
            flights: self.clone(),
            state: Mutex::default(),
            head: OnceLock::default(),
            landing: OnceLock::default(),
            late: OnceLock::default(),
        });
        let follower = flight.join(self.limits.per_flight)?;
        table.insert_unique(hash, flight.clone(), |flight| flight.hash);
        let (flight, _counted) = (Some(flight), Some(counted));
        Ok(Joined { follower, leader: Some(Leader { flight, id, has_late: false, _counted }) })
    }

    /// Lets the flights of a key end for the callers that joined them. The next caller begins a new
    /// one.
    pub(crate) fn detach(&self, key: &Key) {
        let hash = self.hasher.hash_one(key);
        let next = || read(self.stripe(hash)).find(hash, |flight| flight.key == *key).cloned();
        while let Some(flight) = next() {
            self.remove(&flight);
            // `close` does not find it any more.
            flight.detach();
        }
    }

    /// Lets all flights end for the callers that joined them.
    pub(crate) fn detach_all(&self) {
        self.all().iter().for_each(|flight| self.detach(&flight.key));
    }

    pub(crate) fn len(&self) -> usize {
        self.stripes.iter().map(|stripe| read(&stripe.0).len()).sum()
    }

    /// Lets no flight begin any more. Those that are under way no longer need their callers to poll
    /// them.
    pub(crate) fn close(&self) {
        self.leaders.close();
        self.all().iter().for_each(|flight| flight.detach());
    }

    /// Takes a flight out of the map, if it is there, so that no caller joins it any more.
    fn remove(&self, flight: &Flight<T>) {
        let mut table = write(self.stripe(flight.hash));
        if let Ok(entry) = table.find_entry(flight.hash, |other| other.id == flight.id) {
            entry.remove();
        }
        if table.is_empty() && table.capacity() > WORTH_SHRINKING {
            *table = HashTable::new();
        }
    }

    fn all(&self) -> Vec<Arc<Flight<T>>> {
        let flights = |stripe: &Stripe<T>| read(&stripe.0).iter().cloned().collect::<Vec<_>>();
        self.stripes.iter().flat_map(flights).collect()
    }

    /// Chooses the stripe by the middle bits, because the table uses the upper and the lower ones.
    fn stripe(&self, hash: u64) -> &RwLock<HashTable<Arc<Flight<T>>>> {
        &self.stripes[(hash >> 32) as usize & (self.stripes.len() - 1)].0
    }
}

/// The leader's work. It ends by landing the flight.
pub(crate) type LeaderWork = Pin<Box<dyn Future<Output = ()> + Send>>;

pub(super) struct Flight<T> {
    id: u64,
    key: Key,
    hash: u64,
    accepted: Accepted,
    flights: Arc<Flights<T>>,
    state: Mutex<State>,
    /// An outcome that callers may have while the flight is under way.
    head: OnceLock<T>,
    /// Set when the flight is out of the map.
    landing: OnceLock<Landing<T>>,
    /// The outcome for those that joined too late for the head or the landing. `None` sends them to
    /// join anew.
    late: OnceLock<Option<T>>,
}

#[derive(Default)]
struct State {
    /// How many callers have joined, and how many of them are there.
    joined: u64,
    present: u64,
    /// The leader's work, if the leader's caller is the one to poll it.
    work: Option<Parked>,
    /// The work has a task of its own, or moves to one after the poll that is under way.
    ///
    /// While the leader's caller is the only one that depends on the work, it polls the work
    /// itself: a hit needs no task. The work moves, and never back, when a follower joins, when the
    /// leader's caller leaves, and when the group is closed. It also moves before a load begins,
    /// because a load must not stop when its caller is not polled.
    is_detached: bool,
    /// The callers that joined before this number may have the head.
    admitted: u64,
    /// The flight goes on without callers.
    goes_on: bool,
    /// The notices that were given, by their number.
    told: [bool; 3],
    /// The leader's task, if it waits for a notice.
    leader: Option<Waker>,
    followers: Wakers,
}

/// The leader's work, while no poll of it is under way.
struct Parked {
    work: LeaderWork,
    runtime: Runtime,
    /// Wakes the leader's caller when a task has taken the work.
    caller: Option<Waker>,
}

/// The end of a flight for the callers that joined before an epoch. `None` sends them to join anew.
struct Landing<T> {
    epoch: Epoch,
    outcome: Option<T>,
}

/// A moment in a flight. An outcome that belongs to it may go to the callers that joined before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Epoch {
    pub(super) joined: u64,
}

impl Epoch {
    /// The epoch that every caller joined before.
    pub(crate) const END: Self = Self { joined: u64::MAX };
}

/// The news that followers have for the leader of their flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// A loader waits for this flight, so the leader must not wait for a permit that loaders hold.
    NeededByLoader,
    /// No caller waits any more, and the flight is to be cancelled for that.
    Unwanted,
    /// A follower waits that joined too late for the head.
    LateJoiner,
}

impl<T> Flight<T> {
    /// Joins the flight, if fewer callers than the limit are there. To be called under the lock of
    /// the map.
    pub(super) fn join(self: &Arc<Self>, limit: usize) -> Result<Follower<T>, Refused> {
        let mut state = lock(&self.state);
        if state.present >= limit as u64 {
            return Err(Refused::FlightFull(limit));
        }
        let number = state.joined;
        state.joined += 1;
        state.present += 1;
        self.flights.waiting.fetch_add(1, Ordering::Relaxed);
        let (flight, stage) = (self.clone(), Stage::Waiting);
        Ok(Follower { flight, number, stage, registration: None })
    }

    /// Moves the work to a task of its own, unless it is there already. To be called without a lock
    /// of the map: a runtime that is gone drops the work at once, and so lands the flight.
    fn detach(&self) {
        let parked = lock(&self.state).detach();
        parked.into_iter().for_each(Parked::spawn);
    }

    /// Returns what there is for a follower, by the number that it joined with.
    fn landed_for(&self, number: u64) -> Option<Option<&T>> {
        let landing = self.landing.get()?;
        let outcome =
            if number < landing.epoch.joined { &landing.outcome } else { self.late.get()? };
        Some(outcome.as_ref())
    }

    /// Changes the state, and wakes all followers.
    ///
    /// The first one to wake leads the next flight if this one had nothing for it. It is not the
    /// one that came right behind the leader: requests that come one after another are often alike.
    fn wake(&self, change: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        change(&mut state);
        let mut followers = state.followers.take();
        drop(state);
        // So the leaders of several flights in a row come from different parts of the crowd.
        let first = followers.len() * 5 / 13;
        let (earlier, later) = followers.split_at_mut(first);
        later.iter_mut().chain(earlier).filter_map(Option::take).for_each(Waker::wake);
    }

    /// Tells the leader that the flight is unwanted, if the last caller has left. A flight that has
    /// landed, or has a head, is wanted by the callers that it served.
    fn abandon(&self) {
        if !self.flights.cancels_abandoned {
            return;
        }
        let mut table = write(self.flights.stripe(self.hash));
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

    /// Moves the work to a task. Returns it if it is here, to be spawned without the lock.
    fn detach(&mut self) -> Option<Parked> {
        self.is_detached = true;
        self.work.take()
    }
}

impl Parked {
    fn spawn(self) {
        self.runtime.spawn(self.work);
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

/// The duty to land a flight. Or a leader without followers, on its way to a load for one caller.
///
/// Dropped without an outcome, the leader sends its followers to join anew.
pub(crate) struct Leader<T> {
    pub(super) flight: Option<Arc<Flight<T>>>,
    /// The number of the flight, or of the load. Loads that it asks for need no permit.
    pub(crate) id: u64,
    /// Callers that joined too late for the landing are owed an outcome.
    has_late: bool,
    _counted: Option<TaskTrackerToken>,
}

impl<T> Leader<T> {
    /// A leader of no flight. Its load belongs to the flight of the `loader` that asks for it, if
    /// one does.
    pub(crate) fn alone(loader: Option<u64>) -> Self {
        let id = loader.unwrap_or_else(next_id);
        Self { flight: None, id, has_late: false, _counted: None }
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.flight.is_none()
    }

    /// Begins an epoch. To be called before the backend is asked: its answer may go to the callers
    /// that joined before.
    pub(crate) fn begin_epoch(&self) -> Epoch {
        let joined = |flight: &Arc<Flight<T>>| Epoch { joined: lock(&flight.state).joined };
        self.flight.as_ref().map_or(Epoch::END, joined)
    }

    /// Returns when the leader's work has a task of its own. To be awaited by the work. Returns
    /// false at once if its caller may be the one to poll it, because it leads no flight.
    pub(crate) async fn own_task(&self) -> bool {
        let Some(flight) = &self.flight else { return false };
        poll_fn(|_| {
            // The caller spawns the work after this poll, so no waker is needed.
            let was_detached = replace(&mut lock(&flight.state).is_detached, true);
            if was_detached { Poll::Ready(true) } else { Poll::Pending }
        })
        .await
    }

    /// Completes when a notice was given. One task at a time waits for notices.
    pub(crate) async fn told(&self, notice: Notice) {
        let Some(flight) = &self.flight else {
            if notice == Notice::NeededByLoader && current().is_some() {
                return;
            }
            return pending().await;
        };
        poll_fn(|cx| {
            let mut state = lock(&flight.state);
            if state.told[notice as usize] {
                return Poll::Ready(());
            }
            let last = replaced(&mut state.leader, cx);
            drop(state);
            drop(last);
            Poll::Pending
        })
        .await;
    }

    /// Lands the head of the outcome, for the followers that take it and joined before the epoch.
    /// The flight goes on, and callers may still join it. Landed again, it admits those that joined
    /// before the new epoch.
    pub(crate) fn land_head(&self, outcome: T, epoch: Epoch) {
        let Some(flight) = &self.flight else { return };
        let _ = flight.head.set(outcome);
        flight.wake(|state| state.admitted = state.admitted.max(epoch.joined));
    }

    /// Completes when a follower waits that joined too late for the head.
    pub(crate) async fn late_joiner(&self) {
        self.told(Notice::LateJoiner).await;
        if let Some(flight) = &self.flight {
            lock(&flight.state).told[Notice::LateJoiner as usize] = false;
        }
    }

    /// Sends those that joined too late for the head to join anew. The next caller begins a new
    /// flight.
    pub(crate) fn close_head(&self) {
        self.flight.iter().for_each(|flight| flight.flights.remove(flight));
        self.land_late(None);
    }

    /// Lands the flight for the callers that joined before the epoch. Returns whether others are
    /// [still owed](Self::land_late) an outcome. No caller can join any more. `None` sends all to
    /// join anew.
    pub(crate) fn land(&mut self, outcome: Option<T>, epoch: Epoch) -> bool {
        let Self { flight: Some(flight), has_late, .. } = self else { return false };
        flight.flights.remove(flight);
        flight.wake(|state| {
            *has_late = state.joined > epoch.joined;
            let _ = flight.landing.set(Landing { epoch, outcome });
        });
        *has_late
    }

    pub(crate) fn landed(&self) -> Option<&T> {
        self.flight.as_ref()?.landing.get()?.outcome.as_ref()
    }

    /// Lands the flight for the late joiners, with the answer to a question that was asked after
    /// they had joined. `None` sends them to join anew.
    pub(crate) fn land_late(&self, outcome: Option<T>) {
        let Some(flight) = &self.flight else { return };
        if flight.late.set(outcome).is_ok() {
            flight.wake(|_| {});
        }
    }
}

impl<T> Drop for Leader<T> {
    fn drop(&mut self) {
        if self.has_late {
            self.land_late(None);
        } else if self.flight.as_ref().is_some_and(|flight| flight.landing.get().is_none()) {
            self.land(None, Epoch::END);
        }
    }
}

/// One caller in a flight. Dropping it leaves the flight.
pub(crate) struct Follower<T> {
    pub(super) flight: Arc<Flight<T>>,
    /// How many callers had joined before it.
    number: u64,
    stage: Stage,
    /// Where its waker is, while it waits.
    registration: Option<Registration>,
}

enum Stage {
    /// It polls the leader's work, until a task does.
    Carrying,
    Waiting,
    /// It has what it waited for.
    Served,
}

impl<T> Follower<T> {
    pub(crate) fn flight_id(&self) -> u64 {
        self.flight.id
    }

    pub(crate) fn tell(&self, notice: Notice) {
        let leader = lock(&self.flight.state).tell(notice);
        leader.into_iter().for_each(Waker::wake);
    }

    /// Brings the leader's work from a runtime. This follower polls it while it
    /// [waits](Self::wait), as long as no other caller depends on it.
    pub(crate) fn bring(&mut self, work: LeaderWork) {
        let parked = Parked { work, runtime: Runtime::current(), caller: None };
        self.stage = Stage::Carrying;
        let mut state = lock(&self.flight.state);
        if state.is_detached {
            drop(state);
            return parked.spawn();
        }
        state.work = Some(parked);
    }

    /// Polls the leader's work until a task does, if this follower is the one to poll it. As
    /// cancel safe as [`wait`](Self::wait).
    pub(crate) fn carry(&mut self) -> impl Future<Output = ()> {
        poll_fn(|cx| self.poll_work(cx))
    }

    /// Ready when there is nothing more for this follower to poll.
    fn poll_work(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Stage::Carrying = self.stage else { return Poll::Ready(()) };
        let taken = lock(&self.flight.state).work.take();
        let Some(mut parked) = taken else {
            self.stage = Stage::Waiting;
            return Poll::Ready(());
        };
        let is_over = parked.work.as_mut().poll(cx).is_ready();
        let mut state = lock(&self.flight.state);
        if is_over || state.is_detached {
            self.stage = Stage::Waiting;
            drop(state);
            if !is_over {
                parked.spawn();
            }
            return Poll::Ready(());
        }
        let last = replaced(&mut parked.caller, cx);
        state.work = Some(parked);
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
    /// Waits until the flight has landed, or its head if this follower takes it. `None` if there is
    /// no outcome for this follower, so that it joins anew.
    ///
    /// A follower that [brings](Self::bring) the work polls the work meanwhile, as long as no other
    /// caller depends on it.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future and the follower leaves the flight, which goes on for the others. The
    /// work goes on in a task.
    pub(crate) fn wait(&mut self, takes_head: bool) -> impl Future<Output = Option<T>> {
        // Not an async function: what a follower holds while it waits is its own state.
        poll_fn(move |cx| {
            let waited = ready!(self.poll(cx, takes_head));
            self.stage = Stage::Served;
            Poll::Ready(waited)
        })
    }

    fn poll(&mut self, cx: &mut Context<'_>, takes_head: bool) -> Poll<Option<T>> {
        if let Stage::Carrying = self.stage {
            ready!(self.poll_work(cx));
            // The last caller that has the flight needs no copy of the outcome. The leader's caller
            // joined before each epoch.
            let landing = Arc::get_mut(&mut self.flight).and_then(|flight| flight.landing.take());
            if let Some(landing) = landing {
                return Poll::Ready(landing.outcome);
            }
        }
        let (flight, number) = (&*self.flight, self.number);
        if !takes_head && let Some(outcome) = flight.landed_for(number) {
            // Its registration is gone with the wake-up that has come, or is about to.
            self.registration = None;
            return Poll::Ready(outcome.cloned());
        }
        let mut state = lock(&flight.state);
        let head = flight.head.get().filter(|_| takes_head);
        let outcome = match head {
            Some(_) if number < state.admitted => Some(head),
            Some(_) => flight.landed_for(number).or_else(|| Some(flight.late.get()?.as_ref())),
            None => flight.landed_for(number),
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
        let waker = self.registration.and_then(|it| state.followers.leave(it));
        let parked = match self.stage {
            Stage::Carrying => state.detach(),
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
