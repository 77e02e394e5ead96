//! The flights of a cache: their table, and the leaders that are under way.

use std::{
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use hashbrown::{DefaultHashBuilder, HashTable};
use tokio::sync::Notify;

use super::flight::{Abandoned, Flight, Follower, Leader};
use crate::{
    key::Key,
    sync::checked::{AtomicUsize, RwLock, read, write},
};

/// The flights of one cache.
pub(crate) struct Group<T> {
    flights: Arc<Flights<T>>,
    limits: Limits,
}

/// The flights of one group, at most one for each key, in a striped hash table. No lock of it is
/// held over an await.
///
/// A key is hashed once in a flight: the caller that joins passes the hash on, and the flight keeps
/// it for its removal. The hash is seeded for each process.
pub(super) struct Flights<T> {
    stripes: Box<[Stripe<T>]>,
    hasher: DefaultHashBuilder,
    /// How many callers wait in all flights.
    pub(super) waiting: AtomicUsize,
    pub(super) leaders: Leaders,
    pub(super) abandoned: Abandoned,
}

/// Flights are numbered through the process, so that one can wait for one of another cache.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns the number of a flight, or of a load without one.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

/// How many callers may wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) per_flight: usize,
    pub(crate) in_all: usize,
}

/// Why a caller cannot join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The group is closed.
    Closed,
    /// So many callers wait in this flight already.
    FlightFull(usize),
    /// So many callers wait in this group already.
    GroupFull(usize),
}

/// A caller that has joined a flight.
pub(crate) struct Joined<T> {
    pub(crate) follower: Follower<T>,
    /// The first caller of a flight gets the duty to land it, and brings [work](Follower::lead).
    pub(crate) leader: Option<Leader<T>>,
}

impl<T> Group<T> {
    pub(crate) fn new(abandoned: Abandoned, limits: Limits) -> Self {
        Self { flights: Arc::new(Flights::new(abandoned)), limits }
    }

    /// Joins the flight of a key, or begins one.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the group is closed or full. Callers that join at the same moment may pass a
    /// limit together.
    pub(crate) fn join(&self, key: &Key) -> Result<Joined<T>, Refused> {
        let Flights { hasher, leaders, waiting, .. } = &*self.flights;
        let limit = self.limits.in_all;
        if waiting.load(Ordering::Relaxed) >= limit && !leaders.is_closed() {
            return Err(Refused::GroupFull(limit));
        }
        let hash = hasher.hash_one(key);
        let stripe = self.flights.stripe(hash);
        let same = |flight: &Arc<Flight<T>>| flight.key == *key;
        // Most callers of a hot key find its flight, and need no more than a look for that.
        let found = read(stripe).find(hash, same).map(|flight| self.follow(flight));
        if let Some(follower) = found {
            return Self::following(follower);
        }
        let mut table = write(stripe);
        let found = table.find(hash, same).map(|flight| self.follow(flight));
        if let Some(follower) = found {
            drop(table);
            return Self::following(follower);
        }
        // Under the lock: `close` finds each flight that begins before it.
        if leaders.is_closed() {
            return Err(Refused::Closed);
        }
        leaders.state.fetch_add(1, Ordering::Relaxed);
        let (flight, follower) = Flight::begin(next_id(), self.flights.clone(), key.clone(), hash);
        table.insert_unique(hash, flight.clone(), |flight| flight.hash);
        drop(table);
        Ok(Joined { follower, leader: Some(Leader { flight, has_late: false }) })
    }

    /// Lets the flight of a key end for the callers that joined it. The next caller begins a new
    /// one.
    pub(crate) fn detach(&self, key: &Key) {
        let hash = self.flights.hasher.hash_one(key);
        if let Some(flight) = self.flights.remove(hash, |flight| flight.key == *key) {
            // `close` does not find it any more.
            flight.detach();
        }
    }

    /// Lets all flights end for the callers that joined them.
    pub(crate) fn detach_all(&self) {
        self.flights.all().iter().for_each(|flight| self.detach(&flight.key));
    }

    /// Returns how many flights are under way.
    pub(crate) fn len(&self) -> usize {
        self.flights.stripes.iter().map(|stripe| read(&stripe.0).len()).sum()
    }

    /// Lets no flight begin any more. Those that are under way no longer need their callers to poll
    /// them.
    pub(crate) fn close(&self) {
        self.flights.leaders.state.fetch_or(CLOSED, Ordering::Relaxed);
        for flight in self.flights.all() {
            flight.detach();
        }
    }

    /// Returns whether no flight begins any more.
    pub(crate) fn is_closed(&self) -> bool {
        self.flights.leaders.is_closed()
    }

    /// Returns when no leader is under way. The group must be [closed](Self::close).
    pub(crate) async fn idle(&self) {
        self.flights.leaders.idle().await;
    }

    /// Joins a flight under the lock of the map.
    fn follow(&self, flight: &Arc<Flight<T>>) -> Result<Follower<T>, Refused> {
        let limit = self.limits.per_flight;
        if self.flights.leaders.is_closed() {
            return Err(Refused::Closed);
        }
        flight.join(limit).ok_or(Refused::FlightFull(limit))
    }

    /// Completes a join after the lock is released.
    fn following(follower: Result<Follower<T>, Refused>) -> Result<Joined<T>, Refused> {
        let follower = follower?;
        follower.depend();
        Ok(Joined { follower, leader: None })
    }
}

/// Above this capacity, a stripe that becomes empty gives its memory back.
const WORTH_SHRINKING: usize = 256;

/// A part of the table. Aligned, because two locks in one cache line would slow each other down.
#[repr(align(128))]
struct Stripe<T>(RwLock<HashTable<Arc<Flight<T>>>>);

impl<T> Flights<T> {
    fn new(abandoned: Abandoned) -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let stripes = if cfg!(loom) { 1 } else { (cores * 4).next_power_of_two() };
        Self {
            stripes: (0..stripes).map(|_| Stripe(RwLock::new(HashTable::new()))).collect(),
            hasher: DefaultHashBuilder::default(),
            waiting: AtomicUsize::default(),
            leaders: Leaders::default(),
            abandoned,
        }
    }

    /// Removes a flight, if it is there.
    pub(super) fn remove(
        &self,
        hash: u64,
        which: impl FnMut(&Arc<Flight<T>>) -> bool,
    ) -> Option<Arc<Flight<T>>> {
        let mut table = write(self.stripe(hash));
        let (flight, _) = table.find_entry(hash, which).ok()?.remove();
        if table.is_empty() && table.capacity() > WORTH_SHRINKING {
            *table = HashTable::new();
        }
        Some(flight)
    }

    /// Returns the flights that are there now.
    fn all(&self) -> Vec<Arc<Flight<T>>> {
        let flights = |stripe: &Stripe<T>| read(&stripe.0).iter().cloned().collect::<Vec<_>>();
        self.stripes.iter().flat_map(flights).collect()
    }

    /// Chooses the stripe by the middle bits, because the table uses the upper and the lower ones.
    pub(super) fn stripe(&self, hash: u64) -> &RwLock<HashTable<Arc<Flight<T>>>> {
        &self.stripes[(hash >> 32) as usize & (self.stripes.len() - 1)].0
    }
}

/// The leaders that are under way in a group, and the end of the last one.
#[derive(Default)]
pub(super) struct Leaders {
    /// The number of leaders, with [`CLOSED`].
    state: AtomicUsize,
    /// Notified when the last leader of a closed group has ended.
    idle: Notify,
}

/// No leader may begin any more.
const CLOSED: usize = 1 << (usize::BITS - 1);

impl Leaders {
    fn is_closed(&self) -> bool {
        self.state.load(Ordering::Relaxed) & CLOSED != 0
    }

    /// Counts the end of a leader.
    pub(super) fn end(&self) {
        // Pairs with `idle`: what the leader did, is visible to the caller that waited for it.
        if self.state.fetch_sub(1, Ordering::Release) == CLOSED | 1 {
            self.idle.notify_waiters();
        }
    }

    async fn idle(&self) {
        loop {
            // Created before the check, it also completes if the last leader ends between the two.
            let idle = self.idle.notified();
            if self.state.fetch_or(CLOSED, Ordering::Acquire) == CLOSED {
                return;
            }
            idle.await;
        }
    }
}
