//! Changes that are told to a cache of the user's own.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    Cache, Loaded, Source,
    core::Core,
    local::{Fill, Order, WatchedOrder},
    settings::GREATEST_STALENESS,
};
use crate::{
    backend::{STRIPES, Store, Tap},
    error::Error,
    key::Key,
    sync::write,
};

/// Tells a cache of your own which values have changed, while it lives.
pub struct EntryWatch<V> {
    core: Arc<Core<V>>,
    watched: Arc<WatchedOrder>,
}

/// Taken before a value is loaded, and given back to keep that value.
#[derive(Debug)]
pub struct Ticket(Option<Fill>);

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Tells a listener of the changes of entries, to keep a cache of your own true.
    ///
    /// The listener is given a key, or `None` if any key may have changed: a tag has ended, or the
    /// connection broke and changes may have been missed. [`lag`](EntryWatch::lag) tells for how
    /// long that could have gone unnoticed. What is told is what a [local
    /// tier](super::Builder::local) is told, and the acts of this cache. In a cluster only
    /// the latter are. The end of a value's life is not told: keep no value for longer than it
    /// [expires in](Loaded::expires_in).
    ///
    /// Fences follow the clock of the server. After that clock went back, a newer value may have a
    /// smaller fence than an older one, and the older one may be kept. So bound how long your cache
    /// keeps a value, as [`max_age`](super::LocalTier::max_age) does for a local tier.
    ///
    /// The listener runs where changes are received, one call at a time for a key. So it must be
    /// fast, and must not wait. It must not call this watch.
    ///
    /// The example `moka_in_front` of the repository keeps a cache of `moka` true.
    pub fn watch(&self, listener: impl Fn(Option<&str>) + Send + Sync + 'static) -> EntryWatch<V> {
        let order = Order::new(&self.core.settings.namespace, &self.core.local.tags, STRIPES);
        let watched = Arc::new(WatchedOrder { order, listener: Box::new(listener) });
        let tap: Arc<dyn Tap> = watched.clone();
        self.core.backend.store.tap(Arc::downgrade(&tap), GREATEST_STALENESS / 8);
        let mut watches = write(&self.core.local.watches.0);
        watches.retain(|watch| watch.strong_count() > 0);
        watches.push(Arc::downgrade(&watched));
        EntryWatch { core: self.core.clone(), watched }
    }
}

impl<V: Clone + Send + Sync + 'static> EntryWatch<V> {
    /// Returns a ticket for a value that is loaded next.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long.
    pub fn ticket(&self, key: impl Into<Key>) -> Result<Ticket, Error> {
        let name = self.core.name(&key.into())?;
        let store: &dyn Store = self.core.backend.store.as_ref();
        let fill = self.watched.order.begin(store, &name, Instant::now(), true);
        Ok(Ticket(fill.is_heard.then_some(fill)))
    }

    /// Runs `insert` if the value that was loaded since the ticket is still current. No change is
    /// told while it runs. Returns whether it ran.
    ///
    /// It does not run until changes of the key are heard: soon after the first ticket. Nor does it
    /// run for a value that is not stored, because no change of such a value is told. A
    /// [`Degraded`](Source::Degraded) value may be older than a change that was told before the
    /// ticket, so it does not run for one either.
    pub fn insert_if_current(
        &self,
        ticket: &Ticket,
        loaded: &Loaded<V>,
        insert: impl FnOnce(),
    ) -> bool {
        if loaded.source == Source::Degraded || loaded.expires_in().is_none() {
            return false;
        }
        let Some(fence) = loaded.fence() else { return false };
        ticket.0.is_some_and(|fill| self.watched.order.keep(fill, fence, insert))
    }

    /// Returns how far behind the server this process may be: how long ago it knew that it was
    /// told all changes. Over a server that is a fraction of a second while all is well.
    ///
    /// Over the embedded backend and in a cluster it means nothing.
    pub fn lag(&self) -> Duration {
        self.watched.order.complete_until().elapsed()
    }
}

impl<V> fmt::Debug for EntryWatch<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryWatch").finish_non_exhaustive()
    }
}
