//! A flight, as its leader and its followers share it, and the table of all flights of a group.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use super::{
    driver::Driver,
    group::{Leaders, Map},
    landing::{FirstLanding, Landing},
    leader::{Notice, Notices},
    waiters::Waiters,
};
use crate::{
    key::Key,
    sync::checked::{AtomicU64 as CheckedU64, AtomicUsize, OnceLock, write},
};

/// The fate of a load that no caller waits for any more.
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
    /// How many callers wait in all flights.
    pub(super) waiting: AtomicUsize,
    pub(super) leaders: Leaders,
    pub(super) abandoned: Abandoned,
}

pub(super) struct Flight<T> {
    pub(super) id: u64,
    pub(super) key: Key,
    pub(super) hash: u64,
    pub(super) flights: Arc<Flights<T>>,
    /// How many callers have joined, each under a lock of the map. A caller joins with `Release`,
    /// and an epoch begins with `Acquire`: what the caller did before is done before the leader
    /// asks.
    pub(super) joined: CheckedU64,
    /// How many of them have left. Each leaves with `AcqRel`, and so sees the joins of those that
    /// have left before it. The last caller to leave knows that it is the last.
    pub(super) left: CheckedU64,
    pub(super) driver: Driver,
    pub(super) notices: Notices,
    /// Set if the flight is to go on without callers.
    pub(super) goes_on: OnceLock<()>,
    /// The value that callers may have while the flight is under way.
    pub(super) first: FirstLanding<T>,
    /// Set once, when the flight is out of the map.
    pub(super) landing: OnceLock<Landing<T>>,
    /// Followers that wait for the landing.
    pub(super) waiters: Waiters,
}

/// Flights are numbered through the process, so that one can wait for one of another cache.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// Returns the number of a load without a flight.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Ordering::Relaxed)
}

impl<T> Flight<T> {
    pub(super) fn new(flights: Arc<Flights<T>>, key: Key, hash: u64) -> Arc<Self> {
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            key,
            hash,
            flights,
            joined: CheckedU64::default(),
            left: CheckedU64::default(),
            driver: Driver::default(),
            notices: Notices::default(),
            goes_on: OnceLock::default(),
            first: FirstLanding::default(),
            landing: OnceLock::default(),
            waiters: Waiters::default(),
        })
    }

    /// Returns how many callers are present. Exact while none joins or leaves.
    pub(super) fn present(&self) -> u64 {
        let left = self.left.load(Ordering::Relaxed);
        self.joined.load(Ordering::Relaxed).saturating_sub(left)
    }

    /// Tells the leader that the flight is unwanted, if the last caller has left. A flight that has
    /// landed for the first time is wanted by the callers that it served.
    pub(super) fn abandon(&self) {
        let has_landed = self.landing.get().is_some() || self.first.has_landed();
        let is_wanted = has_landed || self.goes_on.get().is_some();
        if self.flights.abandoned == Abandoned::Finish || is_wanted {
            return;
        }
        let mut table = write(self.flights.map.stripe(self.hash));
        // Callers join under this lock, so an empty flight that is not in the map stays empty.
        let empty = self.present() == 0;
        if empty && let Ok(entry) = table.find_entry(self.hash, |other| other.id == self.id) {
            entry.remove();
        }
        drop(table);
        if empty {
            self.notices.tell(Notice::Unwanted);
        }
    }
}
