//! The watches that are told of the changes, each in an order of its own.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{RwLock, Weak},
};

use tokio::time::Instant;

use super::order::Order;
use crate::{
    backend::Tap,
    key::{Key, Name},
    sync::read,
};

type WatchListener = dyn Fn(Option<&str>) + Send + Sync;

/// The watches of a cache.
#[derive(Default)]
pub(in crate::cache) struct Watches(pub(in crate::cache) RwLock<Vec<Weak<WatchedOrder>>>);

impl Watches {
    pub(in crate::cache) fn are_none(&self) -> bool {
        read(&self.0).is_empty()
    }

    pub(in crate::cache) fn each(&self, tell: impl Fn(&WatchedOrder)) {
        read(&self.0).iter().filter_map(Weak::upgrade).for_each(|watch| tell(&watch));
    }
}

/// The changes of one watch.
pub(in crate::cache) struct WatchedOrder {
    pub(in crate::cache) order: Order,
    pub(in crate::cache) listener: Box<WatchListener>,
}

impl WatchedOrder {
    /// Tells of an act of this process.
    pub(in crate::cache) fn acted(&self, key: &Key, name: &Name) {
        self.order.forget(name, || self.tell(Some(key.as_str())));
    }

    fn tell(&self, key: Option<&str>) {
        // It runs in the task of a connection, which must go on.
        if catch_unwind(AssertUnwindSafe(|| (self.listener)(key))).is_err() {
            tracing::error!("the listener of a watch panicked, and missed a change");
        }
    }
}

impl Tap for WatchedOrder {
    fn changed(&self, prefix: &str, fence: u64) {
        if self.order.tag_of(prefix).is_some() {
            return self.lost();
        }
        self.order.changed(prefix, fence, |key| self.tell(Some(key)));
    }

    fn lost(&self) {
        self.order.lost();
        // Otherwise an insert under way would put an old value back, after the listener was told.
        self.order.settle();
        self.tell(None);
    }

    fn complete_until(&self, asked: Instant) {
        self.order.note_complete(asked);
    }
}
