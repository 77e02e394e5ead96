//! Watches, which notify a cache of the user's own of changes.

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

/// Notifies a cache of your own of changed values, until the watch is dropped.
pub struct EntryWatch<V> {
    core: Arc<Core<V>>,
    watched: Arc<WatchedOrder>,
}

/// Take a ticket before you load a value, and pass it to
/// [`insert_if_current`](EntryWatch::insert_if_current) with the value.
#[derive(Debug)]
pub struct Ticket(Option<Fill>);

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Calls a listener for each change of an entry, to keep a cache of your own true.
    ///
    /// The listener gets a key, or `None` if any key may have changed. That is so after the
    /// invalidation of a tag, and after a broken connection, which may have lost changes.
    /// [`lag`](EntryWatch::lag) returns how long a broken connection may have gone unnoticed.
    ///
    /// The listener gets the changes that a [local tier](super::Builder::local) gets, and the
    /// writes of this cache. In a cluster it gets only the writes of this cache. No call is made
    /// when the life of a value ends, so keep no value for longer than it [expires
    /// in](Loaded::expires_in).
    ///
    /// Fences follow the clock of the server. After that clock went back, a newer value may have a
    /// smaller fence than an older value, and your cache may keep the older value. So bound how
    /// long your cache keeps a value, as [`max_age`](super::LocalTier::max_age) does for a local
    /// tier.
    ///
    /// The listener runs in the task that receives changes, one call at a time for a key. So the
    /// listener must be fast, must not block, and must not call this watch.
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
    /// Returns a ticket. Take the ticket before you load the value.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long.
    pub fn ticket(&self, key: impl Into<Key>) -> Result<Ticket, Error> {
        let name = self.core.name(&key.into())?;
        let store: &dyn Store = self.core.backend.store.as_ref();
        let fill = self.watched.order.begin(store, &name, Instant::now(), true);
        Ok(Ticket(if fill.is_subscribed { Some(fill) } else { None }))
    }

    /// Runs `insert` if the value that was loaded after the ticket is still current. The listener
    /// is not called for the key while `insert` runs. Returns whether `insert` ran.
    ///
    /// `insert` does not run for:
    ///
    /// - a ticket from before the subscription to changes of the key, which begins with the first
    ///   ticket of the key;
    /// - a value that is not stored, because no process publishes a change of such a value;
    /// - a [`Degraded`](Source::Degraded) value, because it may be older than a change from before
    ///   the ticket.
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

    /// Returns how far this process may be behind the server: the time since all changes were known
    /// to be received. Over a single server, the lag is a fraction of a second while all is well.
    ///
    /// Over the embedded backend and in a cluster the result has no meaning.
    pub fn lag(&self) -> Duration {
        self.watched.order.complete_until().elapsed()
    }
}

impl<V> fmt::Debug for EntryWatch<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EntryWatch").finish_non_exhaustive()
    }
}
