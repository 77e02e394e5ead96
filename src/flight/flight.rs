//! A flight, as its leader and its followers share it, and the table of all flights of a group.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    census::Census,
    driver::Driver,
    landing::Landing,
    map::{self, Map},
    members::Members,
    notices::{Notice, Notices},
    waiters::Waiters,
};
use crate::{key::Key, sync::checked::OnceLock};

/// What becomes of a load that no caller waits for any more.
///
/// ```
/// use bellwether::{Cache, MemoryBackend, cache::Abandoned};
///
/// let cache: Cache<String> = Cache::builder(MemoryBackend::new())
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

/// The flights of one group, at most one for each key.
pub(super) struct Flights<T> {
    pub(super) map: Map<Arc<Flight<T>>>,
    pub(super) census: Census,
    pub(super) abandoned: Abandoned,
}

pub(super) struct Flight<T> {
    pub(super) id: u64,
    pub(super) key: Key,
    pub(super) hash: u64,
    pub(super) flights: Arc<Flights<T>>,
    /// Callers join under a lock of the map.
    pub(super) members: Members,
    pub(super) driver: Driver,
    pub(super) notices: Notices,
    /// Set once, when the flight is out of the map.
    pub(super) landing: OnceLock<Landing<T>>,
    /// Followers that wait for the landing.
    pub(super) waiters: Waiters,
}

/// Flights are numbered through the process, so that one can wait for one of another cache.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns the number of a flight, or of a load that is none.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

impl<T> Flight<T> {
    pub(super) fn new(flights: Arc<Flights<T>>, key: Key, hash: u64) -> Arc<Self> {
        Arc::new(Self {
            id: next_id(),
            key,
            hash,
            flights,
            members: Members::new(),
            driver: Driver::new(),
            notices: Notices::new(),
            landing: OnceLock::new(),
            waiters: Waiters::new(),
        })
    }

    /// Takes the flight out of the map, so that no caller can join it any more.
    pub(super) fn withdraw(&self) {
        map::remove(&mut self.flights.map.write(self.hash), self.hash, |other| other.id == self.id);
    }

    /// Lands the flight, and wakes the followers.
    pub(super) fn land(&self, landing: Landing<T>) {
        let _ = self.landing.set(landing);
        self.waiters.wake();
    }

    /// Tells the leader that the flight is unwanted, if the last caller has left.
    pub(super) fn abandon(&self) {
        if self.flights.abandoned == Abandoned::Finish || self.landing.get().is_some() {
            return;
        }
        let mut table = self.flights.map.write(self.hash);
        // Callers join under this lock, so an empty flight that is not in the map stays empty.
        let empty = self.members.present() == 0;
        if empty {
            map::remove(&mut table, self.hash, |other| other.id == self.id);
        }
        drop(table);
        if empty {
            self.notices.tell(Notice::Unwanted);
        }
    }
}
