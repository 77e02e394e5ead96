//! The entry that a load is to replace.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;
use tracing::debug;

use super::{
    Codec, Loaded, Source,
    freshness::{self, Rules},
    outcome::Record,
};
use crate::{backend::Entry, time::after};

/// The entry that a load is to replace. Its value is decoded when it is needed.
pub(super) struct Previous<V> {
    pub(super) record: Option<Record>,
    pub(super) fence: u64,
    /// The source of the value, if it stands in for a failure.
    source: Source,
    /// Until when the value may stand in for a failure.
    on_error_until: Instant,
    codec: Arc<dyn Codec<V>>,
    /// Empty if the value was decoded before.
    payload: Bytes,
    value: OnceLock<Option<V>>,
}

impl<V: Clone + 'static> Previous<V> {
    /// Of an entry that is not served, the value is decoded only if the load asks for it or fails.
    pub(super) fn new(
        entry: Entry,
        rules: &Rules,
        codec: &Arc<dyn Codec<V>>,
        decoded: Option<V>,
        source: Source,
    ) -> Self {
        let left = freshness::left_on_error(&entry, rules).unwrap_or_default();
        Self {
            record: Record::of(&entry),
            fence: entry.fence,
            source,
            on_error_until: after(Instant::now(), left),
            codec: Arc::clone(codec),
            payload: entry.payload,
            value: decoded.map_or_else(OnceLock::new, |value| OnceLock::from(Some(value))),
        }
    }

    /// Returns the value, or `None` if it cannot be decoded.
    pub(super) fn value(&self) -> Option<V> {
        let decode = || {
            let decoded = self.codec.decode(self.payload.clone());
            decoded.inspect_err(|error| debug!(%error, "a stale value cannot be decoded")).ok()
        };
        self.value.get_or_init(decode).clone()
    }

    /// Returns the value, if it may stand in for a failure now.
    pub(super) fn fallback(&self) -> Option<Loaded<V>> {
        self.left_on_error()?;
        Some(Loaded { value: self.value()?, source: self.source, record: self.record })
    }

    /// Returns for how much longer the value may stand in for a failure.
    pub(super) fn left_on_error(&self) -> Option<Duration> {
        let left = self.on_error_until.checked_duration_since(Instant::now())?;
        (!left.is_zero()).then_some(left)
    }
}

impl<V> fmt::Debug for Previous<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Previous").field("fence", &self.fence).finish_non_exhaustive()
    }
}
