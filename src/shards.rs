//! State for each shard of a backend. A shard is a server, or a node of a cluster.

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
    /// Returns the state of a shard. The state is never removed, because there are as few shards as
    /// servers.
    pub(crate) fn of(&self, number: usize) -> Arc<T> {
        if number == 0 {
            return self.first.clone();
        }
        let known = read(&self.others).get(&number).cloned();
        if let Some(state) = known {
            return state;
        }
        let mut others = write(&self.others);
        others.entry(number).or_default().clone()
    }

    /// Returns the state of each shard.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let mut all = vec![self.first.clone()];
        all.extend(read(&self.others).values().cloned());
        all
    }

    /// Counts the shards for which a condition holds.
    #[cfg(feature = "metrics")]
    pub(crate) fn count(&self, holds: impl Fn(&T) -> bool) -> usize {
        let all = self.all();
        all.iter().filter(|shard| holds(shard)).count()
    }
}
