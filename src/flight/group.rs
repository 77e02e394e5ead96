use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use tokio::sync::Notify;

use super::{Follower, Leader, Mark, map::Map, waiters::Waiters, work::Work};
use crate::{key::Key, signal::Signal};

/// What becomes of a load that no caller waits for any more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Abandoned {
    /// It runs on and fills the cache.
    #[default]
    Finish,
    /// It is cancelled, and its lease released.
    Cancel,
}

/// The flights of one cache, at most one for each key.
pub(crate) struct Group<T> {
    flights: Map<T>,
    abandoned: Abandoned,
    limits: Limits,
    /// How many followers there are in all flights.
    waiting: AtomicUsize,
    /// How many leaders are under way, with what they do after they landed.
    leading: AtomicUsize,
    /// Someone waits for the last of them.
    closing: AtomicBool,
    idle: Notify,
    /// There were so many that the map is worth shrinking.
    swollen: AtomicBool,
}

/// How many may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) per_flight: usize,
    pub(crate) in_all: usize,
}

/// So many wait already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Full {
    Flight(usize),
    Group(usize),
}

/// When more than this have waited at once, the map is shrunk once nobody waits any more.
const WORTH_SHRINKING: usize = 4096;

/// One flight, as its leader and its followers share it.
pub(super) struct Flight<T> {
    pub(super) id: u64,
    pub(super) key: Key,
    pub(super) hash: u64,
    pub(super) group: Arc<Group<T>>,
    /// How many marks its leader has set.
    pub(super) marks: AtomicU32,
    /// How many of them there were when the last follower joined.
    pub(super) last_joined: AtomicU32,
    pub(super) followers: AtomicUsize,
    pub(super) work: Work,
    /// No longer in the group, so nobody can join.
    detached: AtomicBool,
    /// A loader waits for it, so it must not wait for a place that loaders take.
    pub(super) needed: Signal,
    /// Nobody waits, and it is to be cancelled for that.
    pub(super) unwanted: Signal,
    /// The outcome, for those who joined before the mark.
    pub(super) landed: OnceLock<(T, Mark)>,
    /// The end, for all others: the outcome of the second question, or nothing.
    pub(super) ended: OnceLock<Option<T>>,
    pub(super) waiters: Waiters,
}

/// Flights are numbered through the process, so that one can wait for one of another cache.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The number of a flight, or of a load that is none.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

impl<T> Flight<T> {
    fn new(group: Arc<Group<T>>, key: Key, hash: u64) -> Arc<Self> {
        Arc::new(Self {
            id: next_id(),
            key,
            hash,
            group,
            marks: AtomicU32::new(0),
            last_joined: AtomicU32::new(0),
            followers: AtomicUsize::new(0),
            work: Work::default(),
            detached: AtomicBool::new(false),
            needed: Signal::default(),
            unwanted: Signal::default(),
            landed: OnceLock::new(),
            ended: OnceLock::new(),
            waiters: Waiters::default(),
        })
    }
}

impl<T: Clone> Group<T> {
    pub(crate) fn new(abandoned: Abandoned, limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            flights: Map::new(),
            abandoned,
            limits,
            waiting: AtomicUsize::new(0),
            leading: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            idle: Notify::new(),
            swollen: AtomicBool::new(false),
        })
    }

    /// Joins the flight of a key; a new one comes with its leader, whose work its caller is to
    /// [carry](Follower::carry).
    ///
    /// # Errors
    ///
    /// [`Full`] at a limit, which as many may pass as join at the same moment.
    #[allow(clippy::type_complexity)]
    pub(crate) fn join(
        self: &Arc<Self>,
        key: &Key,
    ) -> Result<(Follower<T>, Option<Leader<T>>), Full> {
        let Limits { per_flight, in_all } = self.limits;
        if self.waiting.load(Ordering::Relaxed) >= in_all {
            return Err(Full::Group(in_all));
        }
        let hash = self.flights.hash(key);
        let follow = |flight: &Arc<Flight<T>>| {
            let full = flight.followers.load(Ordering::Relaxed) >= per_flight;
            (!full).then(|| Follower::new(flight.clone()))
        };
        let found = |follower: Option<Follower<T>>| {
            let follower = follower.ok_or(Full::Flight(per_flight))?;
            // Without the lock: the work may end where it is moved to, and leave the map.
            follower.depend();
            Ok((follower, None))
        };
        // Most callers of a hot key find its flight, and need no more than a look for that.
        let follower = self.flights.read(hash).find(hash, |flight| flight.key == *key).map(follow);
        if let Some(follower) = follower {
            return found(follower);
        }
        let flight = Flight::new(self.clone(), key.clone(), hash);
        let mut flights = self.flights.write(hash);
        let follower = match flights.find(hash, |flight| flight.key == *key).map(follow) {
            Some(follower) => {
                drop(flights);
                return found(follower);
            }
            None => Follower::new(flight.clone()),
        };
        flights.insert_unique(hash, flight.clone(), |flight| flight.hash);
        drop(flights);
        self.leading.fetch_add(1, Ordering::SeqCst);
        Ok((follower, Some(Leader::new(flight))))
    }

    /// Lets the flight of a key end for those who joined it; who asks from now on starts a new one.
    pub(crate) fn detach(&self, key: &Key) {
        let detached = self.flights.remove(self.flights.hash(key), |flight| {
            let found = flight.key == *key;
            if found {
                // Under the lock, for whoever leaves last looks at it if the flight is not there any more.
                flight.detached.store(true, Ordering::SeqCst);
            }
            found
        });
        if let Some(flight) = detached {
            // Who closes the group does not find it any more.
            flight.work.detach();
        }
    }

    /// How many flights are under way.
    pub(crate) fn len(&self) -> usize {
        self.flights.len()
    }

    pub(super) fn remove(&self, flight: &Arc<Flight<T>>) {
        self.flights.remove(flight.hash, |present| Arc::ptr_eq(present, flight));
    }

    /// Returns when no leader is under way. None waits for a caller to poll his work any more.
    pub(crate) async fn idle(&self) {
        self.closing.store(true, Ordering::SeqCst);
        for flight in self.flights.all() {
            flight.work.detach();
        }
        loop {
            // Made before the look, it also completes if the last one ends between the two.
            let idle = self.idle.notified();
            if self.leading.load(Ordering::SeqCst) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// Whether no caller is to carry its work: someone waits for the last leader, or nobody finds it any more.
    pub(super) fn must_run(&self, flight: &Flight<T>) -> bool {
        self.closing.load(Ordering::SeqCst) || flight.detached.load(Ordering::SeqCst)
    }

    /// A leader's work has ended.
    pub(super) fn led(&self) {
        let last = self.leading.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.closing.load(Ordering::SeqCst) {
            self.idle.notify_waiters();
        }
    }

    /// One more waits.
    pub(super) fn enter(&self) {
        if self.waiting.fetch_add(1, Ordering::Relaxed) == WORTH_SHRINKING {
            self.swollen.store(true, Ordering::Relaxed);
        }
    }

    /// One less waits. After a burst, the last one gives its memory back. To be called without a lock of the
    /// map.
    pub(super) fn leave(&self) {
        let last = self.waiting.fetch_sub(1, Ordering::Relaxed) == 1;
        if last && self.swollen.swap(false, Ordering::Relaxed) {
            self.flights.shrink();
        }
    }

    /// The last follower has left.
    pub(super) fn left(&self, flight: &Arc<Flight<T>>) {
        if self.abandoned == Abandoned::Finish
            || flight.landed.get().is_some()
            || flight.ended.get().is_some()
        {
            return;
        }
        // Joining happens under the same lock of the map, so nobody is cancelled who has just joined.
        let removed = self.flights.remove(flight.hash, |present| {
            Arc::ptr_eq(present, flight) && flight.followers.load(Ordering::Acquire) == 0
        });
        // Nobody joins a detached one; but someone may have joined just before.
        let detached = || flight.detached.load(Ordering::SeqCst);
        let empty = || flight.followers.load(Ordering::SeqCst) == 0;
        if removed.is_some() || detached() && empty() {
            flight.unwanted.give();
        }
    }
}
