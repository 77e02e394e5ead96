//! The outcomes of a request and of a flight.

use std::{
    any::Any,
    num::NonZeroU64,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use crate::{
    backend::Entry,
    error::{Error, ErrorKind},
    observe::Counters,
};

/// A value, its source, and the facts of its entry. A value that is not stored lacks some of these
/// facts, so they are methods that return an `Option`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded<V> {
    /// The value.
    pub value: V,
    /// Where the value came from.
    pub source: Source,
    pub(super) record: Record,
}

/// The facts of an entry beside its value. The record is small, because each caller gets a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// `None` if the value was loaded without a lease.
    fence: Option<NonZeroU64>,
    /// When the value was stored, by the monotonic clock.
    stored: Option<Instant>,
    /// How long the value is fresh after that. `None` if the value is not stored.
    pub(super) fresh: Option<Duration>,
}

impl Record {
    pub(super) fn of(entry: &Entry) -> Self {
        let fence = NonZeroU64::new(entry.fence);
        let age = entry.age.or_else(|| age_by_clocks(entry));
        let stored = age.and_then(|age| Instant::now().checked_sub(age));
        // An entry without a fence is not stored.
        let fresh = fence.and(entry.windows).map(|windows| windows.fresh);
        Self { fence, stored, fresh }
    }

    /// Returns the record of an entry that is in this process only.
    pub(super) fn unstored(entry: &Entry) -> Self {
        Self { fence: None, fresh: None, ..Self::of(entry) }
    }

    /// Returns the record of an entry whose load ended at this time. A value that is not stored has
    /// no time to live.
    pub(super) fn written(fence: u64, entry: &Entry, ended: Instant, is_stored: bool) -> Self {
        let fresh = entry.windows.filter(|_| is_stored).map(|windows| windows.fresh);
        Self { fence: NonZeroU64::new(fence), stored: Some(ended), fresh }
    }
}

/// Returns the age of an entry by the clock of the server, which stored it, and the clock here.
fn age_by_clocks(entry: &Entry) -> Option<Duration> {
    if entry.stored_at == 0 {
        return None;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Some(now.saturating_sub(Duration::from_micros(entry.stored_at)))
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The value was stored.
    Hit,
    /// The value was a copy of the [local tier](super::Builder::local).
    Local,
    /// The value was stored and is no longer fresh. A refresh runs in the background, or the load
    /// has failed.
    Stale,
    /// The loader of this caller made the value, under the lease.
    Led,
    /// While this caller waited, the loader of another caller in this process made the value.
    Followed,
    /// While this caller waited, another process made the value.
    Received,
    /// The value was loaded without a lease and not stored. Or the backend did not answer, and the
    /// process [remembered](super::Builder::outage_memory) the value. A value is loaded without a
    /// lease if:
    ///
    /// - the backend did not answer;
    /// - the wait for another process ended, by the wait limit or the retry strategy;
    /// - the key is remembered as uncacheable;
    /// - the loader asked for its own key, directly or through other loaders;
    /// - the cache was shut down.
    ///
    /// A caller that came after the load had begun also gets this source, if the backend did not
    /// answer the commit or the read after it. Over HTTP, a caller that joins such a load while the
    /// body of its response is on its way gets [`Followed`](Self::Followed).
    ///
    /// The value may come from a load that was under way in this process when the caller asked, or
    /// from an earlier load. So the value may be older than an invalidation by another process, of
    /// the key or of a tag, that had returned by then.
    Degraded,
}

impl<V> Loaded<V> {
    pub(super) fn degraded(value: V) -> Self {
        Self { value, source: Source::Degraded, record: Record::default() }
    }

    /// Returns the fence under which the value was loaded or inserted. Returns `None` if the value
    /// was loaded without a lease. [`Source::Degraded`] lists the reasons.
    pub fn fence(&self) -> Option<u64> {
        self.record.fence.map(NonZeroU64::get)
    }

    /// Returns the time since the load of the value ended. Returns `None` if the value was loaded
    /// without a lease, for the callers at that moment.
    ///
    /// If the value has stale windows, the clock of the server measures the age. The result is then
    /// too large by a round trip at most. Otherwise the age is as exact as the clocks of the server
    /// and of this process agree.
    pub fn age(&self) -> Option<Duration> {
        Some(self.record.stored?.elapsed())
    }

    /// Returns how long the value is still fresh, as exactly as the [age](Self::age) is known.
    /// Returns zero if the value is stale, and `None` if it is not stored. A later invalidation
    /// does not change the result.
    pub fn expires_in(&self) -> Option<Duration> {
        Some(self.record.fresh?.saturating_sub(self.age()?))
    }
}

/// The head of a value whose rest is still on its way. Only the loader knows its type.
pub(crate) type Head = Arc<dyn Any + Send + Sync>;

/// Why each caller loads for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alone {
    /// The load cannot be shared, and the name is marked as uncacheable.
    Uncacheable,
    /// The load depended on its request. The load of another caller may be shared.
    Reserved,
    /// Too many loads are under way.
    Full,
}

/// The end of a flight, which each caller of the flight gets. The code that returns the result to a
/// caller counts that caller.
#[derive(Clone)]
pub(crate) enum FlightResult<V> {
    /// A value.
    Loaded(Loaded<V>),
    /// The head of a value, for a request that [takes it](super::Sharing::takes_heads).
    Head(Head, Source),
    /// Each caller loads for itself.
    Alone(Alone),
}

pub(super) type Outcome<V> = Result<FlightResult<V>, Error>;

/// Returns the value of an outcome, and counts its caller. A loader that a user wrote returns a
/// value or an error, never a head or `Alone`.
pub(super) fn value_of<V>(outcome: Outcome<V>, counters: &Counters) -> Result<Loaded<V>, Error> {
    let shared = outcome.and_then(|ended| match ended {
        FlightResult::Loaded(loaded) => Ok(loaded),
        FlightResult::Head(..) | FlightResult::Alone(_) => {
            Err(Error::new(ErrorKind::Cancelled, "the value was not shared"))
        }
    });
    match &shared {
        Ok(loaded) => counters.served(loaded.source),
        Err(_) => counters.failed.add(),
    }
    shared
}

/// Returns the label of an outcome in spans and metrics, for the leader or for another caller.
pub(super) fn result<V>(outcome: &Outcome<V>, leads: bool) -> &'static str {
    let source = match outcome {
        Ok(FlightResult::Loaded(loaded)) => loaded.source,
        Ok(FlightResult::Head(_, source)) => *source,
        Ok(FlightResult::Alone(_)) => return "alone",
        Err(_) => return "error",
    };
    match source {
        Source::Led if leads => "led",
        Source::Led | Source::Followed => "followed",
        Source::Hit | Source::Local => "hit",
        Source::Stale => "stale",
        Source::Received => "received",
        Source::Degraded => "degraded",
    }
}

/// Returns the outcome of a flight for its leader, or for a caller that followed.
pub(super) fn for_caller<V>(outcome: Outcome<V>, leads: bool) -> Outcome<V> {
    if leads {
        return outcome;
    }
    Ok(match outcome? {
        FlightResult::Loaded(loaded) => {
            FlightResult::Loaded(Loaded { source: for_follower(loaded.source), ..loaded })
        }
        FlightResult::Head(head, source) => FlightResult::Head(head, for_follower(source)),
        FlightResult::Alone(why) => FlightResult::Alone(why),
    })
}

/// Returns the source of a value for a caller that followed.
fn for_follower(source: Source) -> Source {
    if source == Source::Led { Source::Followed } else { source }
}

impl Counters {
    /// Counts a caller that was served a value of this source.
    pub(crate) fn served(&self, source: Source) {
        let counter = match source {
            Source::Hit => &self.hits,
            Source::Local => return self.local.add(),
            Source::Stale => &self.stale,
            Source::Led => &self.led,
            Source::Followed => &self.followed,
            Source::Received => &self.received,
            Source::Degraded => &self.degraded,
        };
        counter.add();
    }
}

pub(super) fn cut_off() -> Error {
    Error::new(ErrorKind::Cancelled, "the load was cut off, because its runtime was shut down")
}
