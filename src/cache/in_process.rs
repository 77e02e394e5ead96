//! A cache for one process, whose values are not encoded.
//!
//! The engine moves bytes. Here the bytes are the number of a value. They own it, so it is dropped
//! with their last copy. The code of a user, such as its `Clone` or `Drop`, runs under no lock.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;

use super::{Builder, Cache, Codec};
use crate::{backend::MemoryBackend, error::BoxError, sync::lock};

/// The values lie in so many maps, each under its own lock.
const STRIPES: usize = 16;

/// The codec of [`Cache::in_process`], which leaves values as they are.
struct Unencoded<V>(Arc<ValueTable<V>>);

/// The values, which their bytes own.
struct ValueTable<V> {
    next: AtomicU64,
    stripes: [Mutex<HashMap<u64, Weak<V>>>; STRIPES],
}

impl<V> ValueTable<V> {
    fn stripe(&self, number: u64) -> &Mutex<HashMap<u64, Weak<V>>> {
        &self.stripes[number as usize % STRIPES]
    }
}

/// The bytes of a value: its number. They keep the value alive.
struct ValueBytes<V> {
    bytes: [u8; 8],
    _value: Arc<V>,
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
        lock(self.table.stripe(number)).remove(&number);
    }
}

impl<V: Clone + Send + Sync + 'static> Codec<V> for Unencoded<V> {
    fn tag(&self) -> u16 {
        5
    }

    fn encode(&self, value: &V) -> Result<Bytes, BoxError> {
        let table = self.0.clone();
        let (number, value) = (table.next.fetch_add(1, Ordering::Relaxed), Arc::new(value.clone()));
        lock(table.stripe(number)).insert(number, Arc::downgrade(&value));
        Ok(Bytes::from_owner(ValueBytes { bytes: number.to_le_bytes(), _value: value, table }))
    }

    fn decode(&self, bytes: Bytes) -> Result<V, BoxError> {
        let number = u64::from_le_bytes(bytes.as_ref().try_into()?);
        let value = lock(self.0.stripe(number)).get(&number).and_then(Weak::upgrade);
        // Not under the lock: it is the code of a user.
        value.map(|value| V::clone(&value)).ok_or_else(|| "the value is of another cache".into())
    }
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Returns a builder of a cache for this process alone, with so many values at most, and at
    /// least 1. It needs no codec: the values are any type that can be cloned, and each caller gets
    /// a clone.
    ///
    /// Everything else is as with a [`MemoryBackend`]: flights, windows, tags, failures. Beyond
    /// the limit the least recently used value goes. About 800 bytes are taken beside each.
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use std::sync::Arc;
    /// use bellwether::{BoxError, Cache};
    ///
    /// /// It has no encoding.
    /// struct Template(Box<dyn Fn(&str) -> String + Send + Sync>);
    ///
    /// let templates: Cache<Arc<Template>> = Cache::in_process(1_000).build()?;
    /// let compile = |_lead| async {
    ///     Ok::<_, BoxError>(Arc::new(Template(Box::new(|name| format!("Hello, {name}!")))))
    /// };
    /// let hello = templates.get_or_load("hello", compile).await?;
    /// assert_eq!((hello.0)("Ada"), "Hello, Ada!");
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    pub fn in_process(values: usize) -> Builder<V, impl Codec<V>> {
        let stripes = std::array::from_fn(|_| Mutex::default());
        let table = Arc::new(ValueTable { next: AtomicU64::new(0), stripes });
        let backend = MemoryBackend::with_entries(values);
        let mut builder = Self::builder(backend, "in-process");
        builder.settings.in_process = Some(values);
        builder.codec(Unencoded(table))
    }
}
