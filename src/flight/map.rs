//! A hash map for many threads, with one lock for each stripe of it. No lock is held over an await.
//!
//! A key is hashed once in a flight: the caller that joins passes the hash on, and the flight keeps
//! it for its removal. The hash is seeded for each process.

use std::thread;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::sync::checked::{RwLock, read, write};

/// Above this capacity, a stripe that becomes empty gives its memory back.
const WORTH_SHRINKING: usize = 256;

pub(super) struct Map<E> {
    stripes: Box<[Stripe<E>]>,
    pub(super) hasher: DefaultHashBuilder,
}

/// Aligned, because two locks in one cache line would slow each other down.
#[repr(align(128))]
struct Stripe<E>(RwLock<HashTable<E>>);

impl<E: Clone> Map<E> {
    pub(super) fn new() -> Self {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let stripes = if cfg!(loom) { 1 } else { (cores * 4).next_power_of_two() };
        Self {
            stripes: (0..stripes).map(|_| Stripe(RwLock::new(HashTable::new()))).collect(),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Removes an entry, if it is there.
    pub(super) fn remove(&self, hash: u64, which: impl FnMut(&E) -> bool) -> Option<E> {
        let mut table = write(self.stripe(hash));
        let (entry, _) = table.find_entry(hash, which).ok()?.remove();
        if table.is_empty() && table.capacity() > WORTH_SHRINKING {
            *table = HashTable::new();
        }
        Some(entry)
    }

    pub(super) fn len(&self) -> usize {
        self.stripes.iter().map(|stripe| read(&stripe.0).len()).sum()
    }

    /// Returns the entries that are there now.
    pub(super) fn all(&self) -> Vec<E> {
        let entries = |stripe: &Stripe<E>| read(&stripe.0).iter().cloned().collect::<Vec<_>>();
        self.stripes.iter().flat_map(entries).collect()
    }

    /// Chooses the stripe by the middle bits, because the table uses the upper and the lower ones.
    pub(super) fn stripe(&self, hash: u64) -> &RwLock<HashTable<E>> {
        &self.stripes[(hash >> 32) as usize & (self.stripes.len() - 1)].0
    }
}
