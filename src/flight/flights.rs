//! The flights of a cache, their leaders and their followers.
//!
//! A flight is in the map until it has landed, its head is closed, it is abandoned, or an act takes
//! it out, so that later callers begin a new flight. The map may be behind the
//! [state](super::state) of a flight: a caller that finds a flight which admits no caller any more
//! puts a new flight in its place.

use std::{
    future::{pending, poll_fn},
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use super::{
    cycle::current,
    lone::{KeyUse, KeyUses},
    state::{AfterChange, Epoch, Found, Join, Landing, State},
    wakers::Registration,
};
use crate::{
    key::Key,
    random::Hasher,
    sync::checked::{AtomicUsize, DashMap, Mutex, TaskTracker, TaskTrackerToken, lock},
};

/// Flights are numbered through the process, so that one can wait for one of another cache.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns the number of a flight, or of a load without one.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// The flights of one cache, one for each key and what its callers accept.
pub(crate) struct Flights<T> {
    by_key: DashMap<Key, Vec<Arc<Flight<T>>>, Hasher>,
    hasher: Hasher,
    uses: Arc<KeyUses>,
    /// How many leaders there are.
    leading: AtomicUsize,
    /// The greatest number of leaders since the map last gave memory back.
    most_leading: AtomicUsize,
    /// How many followers there are in all flights, also those that have an outcome.
    waiting: AtomicUsize,
    limits: Limits,
    /// Counts the leaders, for a shutdown. Once this is closed, no caller joins a flight.
    leaders: TaskTracker,
    /// A flight ends when its last caller leaves.
    cancels_abandoned: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) per_flight: usize,
    pub(crate) in_all: usize,
}

/// The values that a caller accepts. Callers that accept different values have flights of their
/// own, because one caller would wait where another does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Accepted {
    /// The longest stale window.
    pub(crate) stale: Duration,
    /// The longest window for failures.
    pub(crate) error: Duration,
    /// The least fence. A load that began before the caller knew of this fence may be older.
    pub(crate) least_fence: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Closed,
    /// As many callers as this limit wait in the flight already.
    FlightFull(usize),
    /// As many callers as this limit wait in all flights already.
    AllFull(usize),
}

/// A caller that has joined a flight.
pub(crate) struct Joined<T> {
    pub(crate) follower: Follower<T>,
    /// The first caller of a flight gets the duty to land it.
    pub(crate) leader: Option<Leader<T>>,
}

/// After more flights at once, the map gives its memory back when the last of them has ended.
const WORTH_SHRINKING: usize = 1024;

impl<T> Flights<T> {
    pub(crate) fn new(cancels_abandoned: bool, limits: Limits, leaders: TaskTracker) -> Arc<Self> {
        let hasher = Hasher::default();
        Arc::new(Self {
            by_key: DashMap::with_hasher(hasher.clone()),
            hasher,
            uses: KeyUses::new(),
            leading: AtomicUsize::new(0),
            most_leading: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            limits,
            leaders,
            cancels_abandoned,
        })
    }

    /// Begins a lone look for a key. Returns `None` if the key has a flight or another lone look,
    /// so that the caller is to [join](Self::join), or if no flight may begin any more.
    pub(crate) fn begin_lone_look(&self, key: &Key) -> Option<KeyUse> {
        if self.leaders.is_closed() {
            return None;
        }
        self.uses.begin_lone(self.hasher.hash_one(key))
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
        // Most callers of a hot key find its flight, and need no more than a look for that.
        let found = self.by_key.get(key).and_then(|flights| accepting(&flights, accepted));
        if let Some(flight) = found
            && let Some(follower) = flight.join()?
        {
            return Ok(Joined { follower, leader: None });
        }
        // Counted before the second look at the tracker: a shutdown waits for this leader, or the
        // leader finds the flights closed.
        let counted = self.leaders.token();
        if self.leaders.is_closed() {
            return Err(Refused::Closed);
        }
        let mut flights = self.by_key.entry(key.clone()).or_default();
        if let Some(flight) = accepting(&flights, accepted)
            && let Some(follower) = flight.join()?
        {
            return Ok(Joined { follower, leader: None });
        }
        // A flight that admits no caller any more may still be here.
        flights.retain(|flight| flight.accepted != accepted);
        // Before the flight is in the map: no lone look begins beside a flight that can be joined.
        let key_use = self.uses.begin(self.hasher.hash_one(key));
        let flight = Flight::new(self, key, accepted);
        flights.push(flight.clone());
        drop(flights);
        let follower = flight.follower(0);
        let leader = Leader::new(flight, key_use, counted);
        Ok(Joined { follower, leader: Some(leader) })
    }

    /// Takes the flights of a key out of the map, so that the next caller begins a new flight. They
    /// go on for the callers that joined them.
    pub(crate) fn detach(&self, key: &Key) {
        self.by_key.remove(key);
    }

    /// Takes all flights out of the map. They go on for the callers that joined them.
    pub(crate) fn detach_all(&self) {
        self.by_key.clear();
    }

    /// Returns how many flights are in the map.
    pub(crate) fn len(&self) -> usize {
        self.by_key.iter().map(|flights| flights.len()).sum()
    }

    /// Lets no caller join any more.
    pub(crate) fn close(&self) {
        self.leaders.close();
    }

    /// Takes a flight out of the map, if it is there.
    fn remove(&self, flight: &Flight<T>) {
        self.by_key.remove_if_mut(&flight.key, |_, flights| {
            flights.retain(|other| other.id != flight.id);
            flights.is_empty()
        });
    }

    fn count_leader(&self) {
        let leading = self.leading.fetch_add(1, Ordering::Relaxed) + 1;
        if leading > self.most_leading.load(Ordering::Relaxed) {
            self.most_leading.fetch_max(leading, Ordering::Relaxed);
        }
    }

    /// Counts a leader less. After a burst of flights, the last leader lets the map give its memory
    /// back.
    fn uncount_leader(&self) {
        let leading = self.leading.fetch_sub(1, Ordering::Relaxed) - 1;
        if leading == 0 && self.most_leading.load(Ordering::Relaxed) > WORTH_SHRINKING {
            self.most_leading.store(0, Ordering::Relaxed);
            self.by_key.shrink_to_fit();
        }
    }
}

/// Returns the flight among those of a key whose callers accept the same.
fn accepting<T>(flights: &[Arc<Flight<T>>], accepted: Accepted) -> Option<Arc<Flight<T>>> {
    flights.iter().find(|flight| flight.accepted == accepted).cloned()
}

pub(super) struct Flight<T> {
    id: u64,
    key: Key,
    accepted: Accepted,
    flights: Arc<Flights<T>>,
    state: Mutex<State<T>>,
}

impl<T> Flight<T> {
    fn new(flights: &Arc<Flights<T>>, key: &Key, accepted: Accepted) -> Arc<Self> {
        Arc::new(Self {
            id: next_id(),
            key: key.clone(),
            accepted,
            flights: flights.clone(),
            state: Mutex::new(State::new()),
        })
    }

    /// Joins the flight. Returns `None` if it admits no caller any more.
    pub(super) fn join(self: &Arc<Self>) -> Result<Option<Follower<T>>, Refused> {
        let limit = self.flights.limits.per_flight;
        let join = lock(&self.state).join(limit);
        match join {
            Join::Joined(number) => Ok(Some(self.follower(number))),
            Join::Full => Err(Refused::FlightFull(limit)),
            Join::Over => Ok(None),
        }
    }

    fn follower(self: &Arc<Self>, number: u64) -> Follower<T> {
        self.flights.waiting.fetch_add(1, Ordering::Relaxed);
        Follower { flight: self.clone(), number, registration: None }
    }

    /// Changes the state, and wakes the followers.
    fn change(&self, change: impl FnOnce(&mut State<T>) -> AfterChange<T>) {
        let after = change(&mut lock(&self.state));
        after.wake_and_drop();
    }
}

/// The duty to land a flight. Dropped without a landing, the leader sends its followers to join
/// anew; those that the head admits keep the head.
///
/// The leader of a load for one caller has no flight, and nothing to land.
pub(crate) struct Leader<T> {
    pub(super) flight: Option<Arc<Flight<T>>>,
    /// The number of the flight, or of the load. A loader that runs under this number may ask for
    /// other loads, which need no permit.
    pub(crate) id: u64,
    _use: Option<KeyUse>,
    _counted: Option<TaskTrackerToken>,
}

impl<T> Leader<T> {
    fn new(flight: Arc<Flight<T>>, key_use: KeyUse, counted: TaskTrackerToken) -> Self {
        flight.flights.count_leader();
        Self { id: flight.id, flight: Some(flight), _use: Some(key_use), _counted: Some(counted) }
    }

    /// A leader of no flight. Its load belongs to the flight of the `loader` that asks for it, if
    /// one does.
    pub(crate) fn alone(loader: Option<u64>) -> Self {
        let id = loader.unwrap_or_else(next_id);
        Self { flight: None, id, _use: None, _counted: None }
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.flight.is_none()
    }

    /// Begins an epoch. To be called before the backend is asked: its answer may go to the callers
    /// that joined before.
    pub(crate) fn begin_epoch(&self) -> Epoch {
        match &self.flight {
            Some(flight) => lock(&flight.state).epoch(),
            None => Epoch::LEADER,
        }
    }

    /// Completes when a loader waits for this flight, so that the leader must not wait for a permit
    /// that loaders hold.
    pub(crate) async fn needed_by_loader(&self) {
        // A load without a flight is needed by a loader only if a loader asks for it.
        if self.is_alone() && current().is_some() {
            return;
        }
        self.until(|state| state.is_needed_by_loader()).await;
    }

    /// Completes when no caller waits any more, and the flight is to be cancelled for that.
    pub(crate) async fn abandoned(&self) {
        self.until(|state| state.is_abandoned()).await;
    }

    /// Completes when a follower that joined too late for the head has looked.
    pub(crate) async fn late_joiner(&self) {
        self.until(State::take_late_joiner).await;
    }

    /// Completes when this holds of the state. A flight keeps one waker for its leader, so one task
    /// polls everything that a leader waits for.
    async fn until(&self, holds: impl Fn(&mut State<T>) -> bool) {
        let Some(flight) = &self.flight else { return pending().await };
        poll_fn(|cx| {
            let mut state = lock(&flight.state);
            if holds(&mut state) {
                return Poll::Ready(());
            }
            let replaced = state.register_leader(cx.waker());
            drop(state);
            drop(replaced);
            Poll::Pending
        })
        .await;
    }

    /// Lands the head of the outcome, for the followers that take a head and joined before the
    /// epoch. The flight goes on, and callers may still join. A flight keeps its first head.
    pub(crate) fn land_head(&self, outcome: T, epoch: Epoch) {
        let Some(flight) = &self.flight else { return };
        let head = Arc::new(outcome);
        flight.change(|state| state.land_head(head, epoch));
    }

    /// Admits the followers to the head that joined before the epoch. To be called only if nothing
    /// has changed the value between the landing of the head and the beginning of the epoch.
    pub(crate) fn admit_to_head(&self, epoch: Epoch) {
        let Some(flight) = &self.flight else { return };
        flight.change(|state| state.admit_to_head(epoch));
    }

    /// Lets the followers that take heads, and joined too late for the head, join anew. The next
    /// caller begins a new flight.
    pub(crate) fn close_head(&self) {
        let Some(flight) = &self.flight else { return };
        flight.flights.remove(flight);
        flight.change(State::close_head);
    }

    /// Lands the flight for the callers that joined before the epoch. Returns whether others are
    /// [still owed](Self::land_late) an outcome. No caller can join any more.
    pub(crate) fn land(&self, landing: Landing<T>, epoch: Epoch) -> bool {
        let Some(flight) = &self.flight else { return false };
        let landing = landing.map(Arc::new);
        let mut state = lock(&flight.state);
        let after = state.land(landing, epoch);
        let owes_late_joiners = state.owes_late_joiners();
        drop(state);
        // First, because the next step runs foreign code, which may panic.
        flight.flights.remove(flight);
        after.wake_and_drop();
        owes_late_joiners
    }

    /// Returns the outcome that the flight has landed with. Returns `None` if the last follower has
    /// taken that outcome away.
    pub(crate) fn outcome(&self) -> Option<Arc<T>> {
        lock(&self.flight.as_ref()?.state).outcome()
    }

    /// Lands the flight for the late joiners, with the answer to a question that was asked after
    /// they had joined.
    pub(crate) fn land_late(&self, landing: Landing<T>) {
        let Some(flight) = &self.flight else { return };
        let landing = landing.map(Arc::new);
        flight.change(|state| state.land_late(landing));
    }
}

impl<T> Drop for Leader<T> {
    fn drop(&mut self) {
        let Some(flight) = &self.flight else { return };
        let has_landed = lock(&flight.state).has_landed();
        if has_landed {
            self.land_late(Landing::JoinAnew);
        } else {
            self.land(Landing::JoinAnew, Epoch::END);
        }
        flight.flights.uncount_leader();
    }
}

/// One caller in a flight. Dropping it leaves the flight.
pub(crate) struct Follower<T> {
    flight: Arc<Flight<T>>,
    /// How many callers had joined before it.
    number: u64,
    /// Where its waker is, while it waits.
    registration: Option<Registration>,
}

impl<T> Follower<T> {
    pub(crate) fn flight_id(&self) -> u64 {
        self.flight.id
    }

    /// Notifies the leader that a loader waits for the flight.
    pub(crate) fn notify_of_loader(&self) {
        let mut state = lock(&self.flight.state);
        state.note_loader();
        let leader = state.take_leader();
        drop(state);
        wake(leader);
    }

    /// Lets the flight go on, even if no caller is left.
    pub(crate) fn leave_behind(&self) {
        lock(&self.flight.state).go_on();
    }
}

impl<T: Clone> Follower<T> {
    /// Waits until the flight has landed for this follower. A follower that takes a head also gets
    /// the head if the follower joined in time. Too late for a head that is closed, it joins anew.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future and the follower leaves the flight, which goes on for the others.
    pub(crate) fn wait(&mut self, takes_head: bool) -> impl Future<Output = Landing<T>> {
        // Not an async function: what a follower holds while it waits is its own state.
        poll_fn(move |cx| self.poll(cx, takes_head))
    }

    fn poll(&mut self, cx: &mut Context<'_>, takes_head: bool) -> Poll<Landing<T>> {
        let mut state = lock(&self.flight.state);
        let found = state.look(self.number, takes_head, &mut self.registration, cx.waker());
        drop(state);
        match found {
            Found::Landed(landing) => Poll::Ready(landing.map(Arc::unwrap_or_clone)),
            Found::Waits { replaced, leader_waker } => {
                drop(replaced);
                wake(leader_waker);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Follower<T> {
    fn drop(&mut self) {
        let flight = &self.flight;
        let flights = &flight.flights;
        flights.waiting.fetch_sub(1, Ordering::Relaxed);
        let mut state = lock(&flight.state);
        let waker = state.leave(self.registration);
        let is_abandoned = flights.cancels_abandoned && state.abandon();
        let leader = if is_abandoned { state.take_leader() } else { None };
        drop(state);
        drop(waker);
        if is_abandoned {
            flights.remove(flight);
            wake(leader);
        }
    }
}

fn wake(task: Option<Waker>) {
    if let Some(task) = task {
        task.wake();
    }
}
