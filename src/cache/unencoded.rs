//! Values that are not encoded, because only this process has them.
//!
//! The engine moves bytes. In a cache for one process, the bytes are the number of a value, and own
//! the value. So the value is dropped with the last copy of its bytes. The code of a user, such as
//! `Clone` or `Drop` of the value, never runs under a lock.
//!
//! A fresh value is served from a table by key, without the engine. A row of the table has a weak
//! reference to the value, so a value that is replaced or evicted is gone from the table, too. A
//! write of this process removes the row, and a read from before the write makes no new row.

use std::sync::{
    Arc, OnceLock, Weak,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use bytes::Bytes;
use dashmap::DashMap;
use tokio::time::Instant;

use super::{
    Codec, EarlyRefresh, Loaded, Source,
    freshness::Rules,
    local::{Fill, Order},
    outcome::Record,
    tags::Tags,
};
use crate::{
    backend::{Entry, MemoryBackend},
    error::BoxError,
    key::{Key, Name, Namespace},
    random::Hasher,
    time::after,
};

/// The number of stripes of writes. A write keeps the reads of its stripe from making rows.
const STRIPES: usize = 64;
/// Each eighth hit moves the value to the front of the backend's order of use.
const HITS: u32 = 8;

/// The codec that leaves values as they are.
pub(super) struct Unencoded<V>(pub(super) Arc<ValueTable<V>>);

/// The values by number, and the fresh values by key. The table owns no value.
pub(super) struct ValueTable<V> {
    next: AtomicU64,
    by_number: DashMap<u64, Weak<StoredValue<V>>, Hasher>,
    fresh: DashMap<Key, FreshRow<V>, Hasher>,
}

struct StoredValue<V> {
    value: V,
    /// The key of the value's row, once there was a row.
    key: OnceLock<Key>,
}

/// A value that may be served while it is fresh.
struct FreshRow<V> {
    stored: Weak<StoredValue<V>>,
    name: Name,
    record: Record,
    fence: u64,
    until: Instant,
    hits: AtomicU32,
}

/// The bytes of a value: its number. The bytes keep the value alive.
struct ValueBytes<V> {
    bytes: [u8; 8],
    stored: Arc<StoredValue<V>>,
    table: Arc<ValueTable<V>>,
}

impl<V> AsRef<[u8]> for ValueBytes<V> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<V> Drop for ValueBytes<V> {
    fn drop(&mut self) {
        let number = u64::from_le_bytes(self.bytes);
        self.table.by_number.remove(&number);
        if let Some(key) = self.stored.key.get() {
            let this = Arc::downgrade(&self.stored);
            self.table.fresh.remove_if(key, |_, row| row.stored.ptr_eq(&this));
        }
    }
}

impl<V> ValueTable<V> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            next: AtomicU64::new(0),
            by_number: DashMap::default(),
            fresh: DashMap::default(),
        })
    }

    /// Returns the value that these bytes own.
    fn stored(&self, bytes: &[u8]) -> Option<Arc<StoredValue<V>>> {
        let number = u64::from_le_bytes(bytes.try_into().ok()?);
        self.by_number.get(&number)?.upgrade()
    }
}

impl<V: Clone + Send + Sync + 'static> Codec<V> for Unencoded<V> {
    fn tag(&self) -> u16 {
        5
    }

    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        let table = self.0.clone();
        let number = table.next.fetch_add(1, Ordering::Relaxed);
        let stored = Arc::new(StoredValue { value: value.clone(), key: OnceLock::new() });
        table.by_number.insert(number, Arc::downgrade(&stored));
        Ok(Bytes::from_owner(ValueBytes { bytes: number.to_le_bytes(), stored, table }))
    }

    fn decode(&self, bytes: Bytes) -> Result<V, BoxError> {
        // The clone is made without a lock, because it is the code of a user.
        let stored = self.0.stored(&bytes).ok_or("the value is of another cache")?;
        Ok(stored.value.clone())
    }
}

/// The store of the values of a cache for one process.
pub(super) struct ValueStore<V> {
    pub(super) table: Arc<ValueTable<V>>,
    /// The backend has the entries, and their bytes own the values.
    pub(super) backend: MemoryBackend,
}

/// The fresh values of a cache for one process.
pub(super) struct FreshValues<V> {
    table: Arc<ValueTable<V>>,
    backend: MemoryBackend,
    /// The writes of this process.
    order: Order,
}

/// A value of which a row may be made, and the state of the writes before its read.
pub(super) struct FreshCandidate<V> {
    begun: Fill,
    stored: Weak<StoredValue<V>>,
}

impl<V: Clone + Send + Sync + 'static> FreshValues<V> {
    pub(super) fn new(values: ValueStore<V>, namespace: &Namespace, tags: &Arc<Tags>) -> Self {
        let ValueStore { table, backend } = values;
        Self { table, backend, order: Order::new(namespace, tags, STRIPES) }
    }

    /// Returns a value that is fresh.
    pub(super) fn get(&self, key: &str, rules: &Rules) -> Option<Loaded<V>> {
        let row = self.table.fresh.get(key)?;
        if rules.replaces || row.fence < rules.least_fence || Instant::now() >= row.until {
            return None;
        }
        let stored = row.stored.upgrade()?;
        let record = row.record;
        // Two callers may count one hit only, which does not matter.
        let hits = row.hits.load(Ordering::Relaxed) + 1;
        let used = if hits < HITS { None } else { Some(row.name.clone()) };
        row.hits.store(hits % HITS, Ordering::Relaxed);
        drop(row);
        if let Some(name) = used {
            self.backend.note_use(&name);
        }
        Some(Loaded { value: stored.value.clone(), source: Source::Hit, record })
    }

    /// Begins a read of the engine.
    pub(super) fn begin(&self, name: &Name) -> Fill {
        self.order.fill(name, Instant::now())
    }

    /// Returns the value of an entry that the engine has returned, if a row may be made of it. An
    /// entry with tags has no row, because the invalidation of a tag would not remove the row.
    pub(super) fn candidate(&self, begun: Fill, entry: &Entry) -> Option<FreshCandidate<V>> {
        if entry.tagged.is_some() {
            return None;
        }
        let stored = self.table.stored(&entry.payload)?;
        Some(FreshCandidate { begun, stored: Arc::downgrade(&stored) })
    }

    /// Makes the row of a value that is a hit.
    pub(super) fn note(
        &self,
        key: &Key,
        name: &Name,
        candidate: FreshCandidate<V>,
        loaded: &Loaded<V>,
        rules: &Rules,
    ) {
        // With early refreshes, a hit may have to begin a refresh.
        if rules.early != EarlyRefresh::Off {
            return;
        }
        let FreshCandidate { begun, stored } = candidate;
        let Some(left) = loaded.expires_in() else { return };
        let Some(alive) = stored.upgrade() else { return };
        let _ = alive.key.set(key.clone());
        let fence = loaded.fence().unwrap_or_default();
        let row = FreshRow {
            stored,
            name: name.clone(),
            record: loaded.record,
            fence,
            until: after(Instant::now(), left),
            hits: AtomicU32::new(0),
        };
        self.order.keep(begun, fence, || drop(self.table.fresh.insert(key.clone(), row)));
    }
}

impl<V> FreshValues<V> {
    /// Removes the row of a key. A read that has begun makes no new row.
    pub(super) fn forget(&self, key: &Key, name: &Name) {
        self.order.forget(name, || drop(self.table.fresh.remove(key)));
    }
}
