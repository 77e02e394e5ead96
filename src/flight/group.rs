//! The flights of a cache: how callers join them, and how all of them end.

use std::{
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::flight::{Flight, Flights, Follower, Leader};
use crate::{
    key::Key,
    sync::checked::{read, write},
};

/// The flights of one cache.
pub(crate) struct Group<T> {
    flights: Arc<Flights<T>>,
    limits: Limits,
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
    /// The first caller of a flight gets the duty to land it, and brings [work](Follower::bring).
    pub(crate) leader: Option<Leader<T>>,
}

impl<T> Group<T> {
    pub(crate) fn new(cancels_abandoned: bool, limits: Limits) -> Self {
        Self { flights: Arc::new(Flights::new(cancels_abandoned)), limits }
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
        leaders.begin();
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
        self.flights.leaders.close();
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
