//! What a request ends with, and what a flight lands with.

use std::{
    num::NonZeroU64,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{backend::Entry, error::Error};

/// A value, where it came from, and what is known of its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded<V> {
    pub(super) value: V,
    pub(super) source: Source,
    pub(super) record: Option<Record>,
}

/// What is known of an entry beside its value. It is small, because each caller gets a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    fence: NonZeroU64,
    /// How long the load took, in milliseconds.
    cost: u32,
    /// For how many milliseconds it is kept after its load. Zero if it is not stored.
    ttl: u32,
}

impl Record {
    /// Returns the record of an entry, or `None` if it has no fence.
    pub(super) fn of(entry: &Entry) -> Option<Self> {
        Self::new(entry.fence, entry)
    }

    /// Returns the record of an entry that is written under this fence.
    pub(super) fn new(fence: u64, entry: &Entry) -> Option<Self> {
        let millis = |time: Duration| u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        let fence = NonZeroU64::new(fence)?;
        Some(Self { fence, cost: millis(entry.cost), ttl: millis(entry.ttl) })
    }

    /// Returns the record without a time to live, unless the entry is stored.
    pub(super) fn if_stored(self, is_stored: bool) -> Self {
        Self { ttl: if is_stored { self.ttl } else { 0 }, ..self }
    }

    /// Returns the time since the load ended. A fence is the time of the server at which it began.
    fn age(&self) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let cost = Duration::from_millis(self.cost.into());
        let stored_at = Duration::from_micros(self.fence.get()).saturating_add(cost);
        now.saturating_sub(stored_at)
    }
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// It was stored.
    Hit,
    /// The loader of this caller made it, under the lease.
    Led,
    /// The loader of another caller in this process made it meanwhile.
    Followed,
    /// Another process made it meanwhile.
    Received,
    /// It was loaded without a lease and not stored. That is so if:
    ///
    /// - the backend did not answer;
    /// - the wait for another process ended, by the wait limit or the retry strategy;
    /// - the key is remembered as [uncacheable](super::Builder::uncacheable_ttl);
    /// - the loader asked for its own key, directly or through other loaders;
    /// - the cache was shut down.
    ///
    /// It is also so if the value was loaded under a lease, the backend did not answer the commit,
    /// and this caller asked after the load had begun.
    ///
    /// The value may come from a load that was under way in this process when the caller asked. So
    /// it may be older than an invalidation in another process that had returned by then.
    Degraded,
}

impl<V> Loaded<V> {
    /// A value that was loaded without a lease.
    pub(super) fn degraded(value: V) -> Self {
        Self { value, source: Source::Degraded, record: None }
    }

    /// Returns the value.
    pub fn value(&self) -> &V {
        &self.value
    }

    /// Takes the value out.
    pub fn into_value(self) -> V {
        self.value
    }

    /// Returns where the value came from.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the fence under which the value was loaded or inserted.
    ///
    /// Returns `None` if it was loaded without a lease. [`Source::Degraded`] lists the reasons.
    pub fn fence(&self) -> Option<u64> {
        Some(self.record?.fence.get())
    }

    /// Returns the time since the load of the value ended.
    ///
    /// It compares the clock of the server that keeps the entry with the clock of this process. So
    /// it is as exact as the two agree. Nothing in the cache depends on it.
    ///
    /// Returns `None` where [`fence`](Self::fence) does.
    pub fn age(&self) -> Option<Duration> {
        Some(self.record?.age())
    }

    /// Returns the time until the entry expires, as exact as the [age](Self::age) is. Zero if it is
    /// over.
    ///
    /// Returns `None` if the value is not stored. A later invalidation is not known here.
    pub fn expires_in(&self) -> Option<Duration> {
        let record = self.record.filter(|record| record.ttl > 0)?;
        Some(Duration::from_millis(record.ttl.into()).saturating_sub(record.age()))
    }
}

/// How a request ended that may end without a value.
pub(crate) enum Flown<V> {
    Loaded(Loaded<V>),
    /// Each caller loads for itself.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Alone(Alone),
}

/// Why each caller loads for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alone {
    /// The load cannot be shared.
    Uncacheable,
    /// Too many loads are under way.
    Full,
}

/// What a flight lands with.
#[derive(Clone)]
pub(super) enum Outcome<V> {
    Value(Loaded<V>),
    /// Each caller loads for itself.
    Alone(Alone),
    Failed(Error),
    /// For late joiners: the backend did not say within this time what they may have. They load
    /// without it.
    Unanswered(Duration),
}
