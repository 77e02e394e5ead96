//! What a load has made: the entry of its value with its windows, and what this process remembers
//! of the value in an outage.

use std::{mem, time::Duration};

use tokio::time::Instant;
use tracing::{debug, warn};

use super::AskedKey;
use crate::{
    advice,
    backend::{Entry, Windows},
    cache::{Lead, local::Fill, outage::Outage, settings::UNCACHEABLE_LIFE},
    error::{Chain, Error},
};

/// When a load began, by the clock and by the acts of this process, and in which outage.
#[derive(Clone, Copy)]
pub(super) struct LoadBegun {
    pub(super) at: Instant,
    mark: Option<Fill>,
    pub(super) outage: Option<Outage>,
}

/// A loaded value, and the entry to store.
pub(super) struct MadeValue<V> {
    /// The value as a hit gets it.
    pub(super) value: V,
    pub(super) entry: Entry,
    /// How long the entry is kept. `None` stores nothing.
    pub(super) ttl: Option<Duration>,
}

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    /// Notes that a load begins now.
    pub(super) fn begin_load(&self) -> LoadBegun {
        let at = Instant::now();
        let mark = self.core.local.copies.as_ref().map(|copies| copies.order.fill(&self.name, at));
        LoadBegun { at, mark, outage: self.shard.breaker.outage() }
    }

    /// Makes the entry of a loaded value. A value without an encoding stays as it is.
    pub(super) fn made(&self, value: V, begun: LoadBegun, lead: &Lead<V>) -> MadeValue<V> {
        let core = &self.core;
        let cost = begun.at.elapsed();
        let mut keeping = lead.keeping().clone();
        let tagged = mem::take(&mut keeping.tagged);
        let (value, entry, windows) = match core.entry(&value, cost, tagged) {
            Ok((value, entry)) => {
                let windows = core.windows(&self.options, Some(&value), &keeping);
                (value, entry, windows)
            }
            Err(error) => {
                self.tell_unstorable(&error);
                (value, Entry::uncacheable(cost), Windows::fresh(UNCACHEABLE_LIFE))
            }
        };
        let mut ttl = None;
        if !keeping.do_not_store {
            ttl = Some(windows.kept());
            let served = windows.fresh.saturating_add(windows.stale);
            advice::loaded(&core.format.short_lived, &core.settings.namespace, cost, served);
        }
        MadeValue { value, entry: entry.with_windows(windows), ttl }
    }

    fn tell_unstorable(&self, error: &Error) {
        let error = Chain(error);
        if self.core.format.unstorable.first() {
            warn!(%error, "a value is returned and not stored");
        } else {
            debug!(%error, "a value is returned and not stored");
        }
    }

    /// Remembers a value for the later callers of this process, if the outage has not ended since
    /// its load began.
    pub(super) fn remember(
        &self,
        value: &V,
        entry: Entry,
        begun: LoadBegun,
        lead: &Lead<V>,
        outage: Option<Outage>,
    ) {
        let (Some(outage), Some(mark)) = (outage, begun.mark) else { return };
        if lead.keeping().do_not_store {
            return;
        }
        // The value replaces the stored one, and the load began after its callers knew their fence.
        let replaced = lead.0.previous.as_ref().map_or(0, |previous| previous.fence);
        let entry = entry.with_fence(replaced.max(self.options.rules.least_fence));
        self.core.remember(&self.key, &self.shard, outage, mark, entry, value);
    }
}
