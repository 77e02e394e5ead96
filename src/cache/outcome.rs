//! What a request ends with, and what a flight lands with.

use std::time::Duration;

use crate::error::Error;

/// A value, and where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded<V> {
    pub(super) value: V,
    pub(super) source: Source,
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
    Value(V, Source),
    /// Each caller loads for itself.
    Alone(Alone),
    Failed(Error),
    /// For late joiners: the backend did not say within this time what they may have. They load
    /// without it.
    Unanswered(Duration),
}
