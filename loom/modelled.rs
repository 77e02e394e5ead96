//! Stands for `sync::checked` of the crate: the primitives of `std` and `tokio`, as the model
//! checker has them.

use std::{
    collections::HashMap,
    hash::Hash,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    sync::atomic::Ordering,
};

pub(crate) use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, AtomicUsize},
};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

/// Stands for `dashmap::DashMap`, with the methods that a flight needs. One lock stands for those
/// of its shards.
pub(crate) struct DashMap<K, V, S> {
    map: Mutex<HashMap<K, V>>,
    _hasher: PhantomData<S>,
}

/// The lock of a map, for the value of one key.
pub(crate) struct Ref<'a, K, V> {
    map: MutexGuard<'a, HashMap<K, V>>,
    key: K,
}

impl<K: Eq + Hash, V> Deref for Ref<'_, K, V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.map[&self.key]
    }
}

impl<K: Eq + Hash, V> DerefMut for Ref<'_, K, V> {
    fn deref_mut(&mut self) -> &mut V {
        self.map.get_mut(&self.key).unwrap()
    }
}

/// The lock of a map, for a key that may have no value.
pub(crate) struct Entry<'a, K, V>(Ref<'a, K, V>);

impl<'a, K: Clone + Eq + Hash, V: Default> Entry<'a, K, V> {
    pub(crate) fn or_default(mut self) -> Ref<'a, K, V> {
        let key = self.0.key.clone();
        self.0.map.entry(key).or_default();
        self.0
    }
}

impl<K: Clone + Eq + Hash, V: Clone, S> DashMap<K, V, S> {
    pub(crate) fn with_hasher(_hasher: S) -> Self {
        Self { map: Mutex::new(HashMap::new()), _hasher: PhantomData }
    }

    pub(crate) fn get(&self, key: &K) -> Option<Ref<'_, K, V>> {
        let map = lock(&self.map);
        let has_key = map.contains_key(key);
        has_key.then(|| Ref { map, key: key.clone() })
    }

    pub(crate) fn entry(&self, key: K) -> Entry<'_, K, V> {
        Entry(Ref { map: lock(&self.map), key })
    }

    pub(crate) fn remove(&self, key: &K) -> Option<V> {
        lock(&self.map).remove(key)
    }

    pub(crate) fn remove_if_mut(&self, key: &K, is_removed: impl FnOnce(&K, &mut V) -> bool) {
        let mut map = lock(&self.map);
        if let Some(value) = map.get_mut(key)
            && is_removed(key, value)
        {
            map.remove(key);
        }
    }

    pub(crate) fn clear(&self) {
        lock(&self.map).clear();
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = V> {
        let values: Vec<_> = lock(&self.map).values().cloned().collect();
        values.into_iter()
    }

    pub(crate) fn shrink_to_fit(&self) {}
}

/// Twice the number of tokens, plus one once it is closed.
#[derive(Clone)]
pub(crate) struct TaskTracker(std::sync::Arc<AtomicUsize>);

pub(crate) struct TaskTrackerToken(TaskTracker);

impl TaskTracker {
    pub(crate) fn new() -> Self {
        Self(std::sync::Arc::new(AtomicUsize::new(0)))
    }

    pub(crate) fn token(&self) -> TaskTrackerToken {
        self.0.fetch_add(2, Ordering::AcqRel);
        TaskTrackerToken(self.clone())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.load(Ordering::Acquire) / 2
    }

    pub(crate) fn close(&self) {
        self.0.fetch_or(1, Ordering::AcqRel);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.0.load(Ordering::Acquire) & 1 == 1
    }
}

impl Drop for TaskTrackerToken {
    fn drop(&mut self) {
        self.0.0.fetch_sub(2, Ordering::AcqRel);
    }
}
