//! A cache for one process.

use super::{
    Builder, Cache, Codec,
    unencoded::{Unencoded, ValueStore, ValueTable},
};
use crate::backend::MemoryBackend;

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Returns a builder of a cache for this process alone, with at most this many values (one or
    /// more). The cache needs no codec: a value may have any type that can be cloned, and each
    /// caller gets a clone.
    ///
    /// Everything else is as with a [`MemoryBackend`]: flights, windows, tags, failures. Beyond the
    /// limit, the cache evicts a value that was not used lately. A value takes about 900 bytes more
    /// than its own size.
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use std::sync::Arc;
    /// use bellwether::{BoxError, Cache};
    ///
    /// /// A type without an encoding.
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
        let table = ValueTable::new();
        let backend = MemoryBackend::with_entries(values);
        let codec = Unencoded(table.clone());
        let mut builder = Self::builder(backend.clone(), "in-process").codec(codec);
        builder.settings.in_process = Some(values);
        builder.values = Some(ValueStore { table, backend });
        builder
    }
}
