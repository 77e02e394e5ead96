//! State for each shard of a backend: a server is one, and so is each node of a cluster.

use std::{
    collections::HashMap,
    sync::{Arc, RwLock},
};

use crate::sync::{read, write};

/// The state of the shards, by the numbers that the backend gives them.
#[derive(Default)]
pub(crate) struct Shards<T> {
    /// Shard 0, the only one of most backends.
    first: Arc<T>,
    others: RwLock<HashMap<usize, Arc<T>>>,
}

impl<T: Default> Shards<T> {
    /// Returns the state of a shard, which stays: there are as few shards as there are servers.
    pub(crate) fn of(&self, number: usize) -> Arc<T> {
        if number == 0 {
            return self.first.clone();
        }
        let known = read(&self.others).get(&number).cloned();
        known.unwrap_or_else(|| write(&self.others).entry(number).or_default().clone())
    }

    /// Returns the state of each shard.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let others = read(&self.others);
        std::iter::once(&self.first).chain(others.values()).cloned().collect()
    }

    /// Counts the shards that are so.
    #[cfg(feature = "metrics")]
    pub(crate) fn count(&self, is_so: impl Fn(&T) -> bool) -> usize {
        let others = read(&self.others);
        std::iter::once(&self.first).chain(others.values()).filter(|shard| is_so(shard)).count()
    }
}
