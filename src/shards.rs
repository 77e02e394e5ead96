//! State for each shard of a backend: a server is one, and so is each node of a cluster.

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

use crate::sync::{read, write};

/// From this number on, shards that are not in use are forgotten when a new one comes.
const WORTH_CLEARING: usize = 64;

/// The state of the shards, by the numbers that the backend gives them.
#[derive(Default)]
pub(crate) struct Shards<T> {
    /// Shard 0, the only one of most backends.
    first: Arc<T>,
    others: RwLock<HashMap<usize, Arc<T>>>,
}

impl<T: Default> Shards<T> {
    /// Returns the state of a shard. A state that nothing uses may be forgotten if `is_idle`.
    pub(crate) fn of(&self, number: usize, is_idle: impl Fn(&T) -> bool) -> Arc<T> {
        if number == 0 {
            return self.first.clone();
        }
        let known = read(&self.others).get(&number).cloned();
        known.unwrap_or_else(|| {
            let mut others = write(&self.others);
            if others.len() >= WORTH_CLEARING {
                others.retain(|_, shard| Arc::strong_count(shard) > 1 || !is_idle(shard));
            }
            others.entry(number).or_default().clone()
        })
    }

    /// Counts the shards that are so.
    #[cfg(feature = "metrics")]
    pub(crate) fn count(&self, is_so: impl Fn(&T) -> bool) -> usize {
        let others = read(&self.others);
        std::iter::once(&self.first).chain(others.values()).filter(|shard| is_so(shard)).count()
    }
}
