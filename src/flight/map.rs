use std::{
    hash::BuildHasher,
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
    thread,
};

use hashbrown::{DefaultHashBuilder, HashTable};

use super::group::Flight;
use crate::key::Key;

type Table<T> = HashTable<Arc<Flight<T>>>;

/// The flights by their keys, with one lock for each shard; never held over an await.
///
/// A key is hashed once in a flight, with a seed of this process: who joins has the hash, and the flight
/// keeps it for the time when it leaves.
pub(super) struct Map<T> {
    shards: Box<[Shard<T>]>,
    hasher: DefaultHashBuilder,
}

/// Two shards in one cache line would be one to the processor.
#[repr(align(128))]
struct Shard<T>(RwLock<Table<T>>);

impl<T> Map<T> {
    pub(super) fn new() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let shards = (0..(cores * 4).next_power_of_two()).map(|_| Shard(RwLock::default()));
        Self { shards: shards.collect(), hasher: DefaultHashBuilder::default() }
    }

    pub(super) fn hash(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(super) fn read(&self, hash: u64) -> RwLockReadGuard<'_, Table<T>> {
        self.shard(hash).0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self, hash: u64) -> RwLockWriteGuard<'_, Table<T>> {
        self.shard(hash).0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a flight out, if it is there and may go.
    pub(super) fn remove(
        &self,
        hash: u64,
        which: impl Fn(&Arc<Flight<T>>) -> bool,
    ) -> Option<Arc<Flight<T>>> {
        let mut table = self.write(hash);
        let (flight, _) = table.find_entry(hash, which).ok()?.remove();
        Some(flight)
    }

    pub(super) fn len(&self) -> usize {
        self.shards
            .iter()
            .map(|shard| shard.0.read().unwrap_or_else(PoisonError::into_inner).len())
            .sum()
    }

    /// Those that are there now.
    pub(super) fn all(&self) -> Vec<Arc<Flight<T>>> {
        let shards = self.shards.iter();
        let read = |shard: &Shard<T>| {
            let table = shard.0.read().unwrap_or_else(PoisonError::into_inner);
            table.iter().cloned().collect::<Vec<_>>()
        };
        shards.flat_map(read).collect()
    }

    pub(super) fn shrink(&self) {
        for shard in &self.shards {
            let mut table = shard.0.write().unwrap_or_else(PoisonError::into_inner);
            table.shrink_to_fit(|flight| flight.hash);
        }
    }

    /// By the middle bits: the table goes by the upper and the lower ones.
    fn shard(&self, hash: u64) -> &Shard<T> {
        &self.shards[(hash >> 32) as usize & (self.shards.len() - 1)]
    }
}
