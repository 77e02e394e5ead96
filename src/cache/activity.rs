//! The busiest keys of a cache, for `bellwether top`.
//!
//! Keys are counted only while questions of a `top` arrive. At all other times, a request pays for
//! reading one flag.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use serde_json::json;
use tokio::sync::Mutex as AsyncMutex;

use super::Cache;
use crate::{
    backend::{Owner, ProcessId, top_questions::Questions},
    key::{Family, Key},
    random,
    sync::lock,
};

const SAMPLED: u32 = 16;
/// How many keys are counted between two questions. A key with more than a 256th of the requests is
/// almost always among them.
const MOST_KEYS: usize = 1024;
const ANSWERED: usize = 20;

/// How often keys were asked for, while a `top` asks.
#[derive(Default)]
pub(super) struct Activity {
    is_asked: AtomicBool,
    sampled: Mutex<HashMap<Key, u32>>,
    /// Locked by the task that answers, so that only one of several tasks answers.
    answering: Arc<AsyncMutex<()>>,
}

impl Activity {
    pub(super) fn note(&self, key: impl Into<Key>) {
        if self.is_asked.load(Ordering::Relaxed) && random::below(SAMPLED) == 0 {
            self.count(key.into());
        }
    }

    #[cold]
    fn count(&self, key: Key) {
        let mut sampled = lock(&self.sampled);
        if sampled.len() < MOST_KEYS || sampled.contains_key(&key) {
            *sampled.entry(key).or_default() += 1;
        }
    }

    /// Returns the busiest keys since the last question, with the requests for each.
    fn take(&self) -> Vec<(String, u32)> {
        let mut keys: Vec<_> = lock(&self.sampled).drain().collect();
        keys.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
        keys.truncate(ANSWERED);
        let busiest = keys.into_iter();
        busiest.map(|(key, count)| (key.text.to_string(), count * SAMPLED)).collect()
    }
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Answers the questions of `bellwether top`: how many requests and loads there were, and for
    /// which keys.
    ///
    /// Spawn the future that this returns. The future subscribes to one channel of the namespace,
    /// and ends with the last clone of the cache. While a `top` runs somewhere, each process counts
    /// the keys of every 16th request, and answers once a second by one `PUBLISH`. At all other
    /// times no key is counted. If a cache has several such futures, one of them answers. When that
    /// future is dropped, another future answers.
    ///
    /// Each client that may subscribe in the namespace sees the keys.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the cache answers no more. Call this again to go on.
    pub fn answer_top(&self) -> impl Future<Output = ()> + Send + 'static + use<V> {
        let core = Arc::downgrade(&self.core);
        let backend = self.core.backend.store.clone();
        let namespace = self.core.settings.namespace.clone();
        let id = Owner::fresh().to_string();
        let answering = self.core.activity.answering.clone();
        async move {
            let _answers = answering.lock_owned().await;
            let hearing = Questions::subscribe(backend, &namespace, Family::Cache);
            let Some(mut questions) = hearing.await else { return };
            loop {
                let is_asked = questions.is_asked().await;
                let Some(core) = core.upgrade() else { return };
                core.activity.is_asked.store(is_asked, Ordering::Relaxed);
                let stats = core.stats();
                let keys = core.activity.take();
                drop(core);
                if is_asked {
                    let process = ProcessId::of_this().to_string();
                    let answer =
                        json!({"cache": id, "process": process, "stats": stats, "keys": keys});
                    questions.answer(&answer).await;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BoxError, MemoryBackend};

    /// A sample of a 16th varies by 4 % of 10,000 requests. The keys of calls for many were not
    /// counted.
    #[tokio::test]
    async fn a_key_of_a_call_for_many_counts_once() {
        let cache: Cache<u64> = Cache::new(MemoryBackend::new(), "bellwether").unwrap();
        let keys = || (0..10).map(|id| format!("id:{id}"));
        cache.insert_many(keys().map(|key| (key, 1))).await;
        cache.core.activity.is_asked.store(true, Ordering::Relaxed);
        let counted = || -> u32 {
            let keys = cache.core.activity.take();
            keys.iter().map(|(_, count)| count).sum()
        };
        for _ in 0..1_000 {
            cache.get_many(keys()).await;
        }
        let looked = counted();
        assert!((7_500..12_500).contains(&looked), "{looked}");
        for _ in 0..1_000 {
            let loader = |_batch| async { Ok::<[(String, u64); 0], BoxError>([]) };
            cache.get_or_load_many(keys(), Clone::clone, loader).await.unwrap();
        }
        let asked = counted();
        assert!((7_500..12_500).contains(&asked), "{asked}");
    }
}
