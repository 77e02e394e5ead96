//! The busiest keys of a cache, for `bellwether top`.
//!
//! No key is counted until a question comes, nor once the last one is old. So a request reads one
//! flag more, and nothing else.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{Cache, core::Core};
use crate::{
    backend::{Changes, Owner},
    key::{Family, Key, Name},
    sync::lock,
};

/// The key whose channel has the questions.
const QUESTIONS: &str = "bellwether-top";
/// Keys are counted for so long after a question, which comes each second. The end of the cache is
/// noticed as late.
const FRESH: Duration = Duration::from_secs(3);
/// After how long a subscription that failed is tried again.
const AGAIN: Duration = Duration::from_secs(5);
/// One of so many requests is counted.
const SAMPLED: u32 = 16;
/// So many keys are counted at most. One of more than a 256th of the requests is always among them.
const MOST_KEYS: usize = 256;
/// So many are in an answer.
const ANSWERED: usize = 20;

/// How often keys were asked for, while a `top` asks.
#[derive(Default)]
pub(super) struct Activity {
    is_asked: AtomicBool,
    sampled: Mutex<HashMap<Key, u32>>,
}

impl Activity {
    /// Notes a request for a key.
    pub(super) fn note(&self, key: impl Into<Key>) {
        if self.is_asked.load(Ordering::Relaxed) && fastrand::u32(..SAMPLED) == 0 {
            self.count(key.into());
        }
    }

    /// Counts a key. If there are too many, each count falls by one, after Misra and Gries,
    /// "Finding repeated elements", 1982.
    #[cold]
    fn count(&self, key: Key) {
        let mut sampled = lock(&self.sampled);
        if sampled.len() < MOST_KEYS || sampled.contains_key(&key) {
            *sampled.entry(key).or_default() += 1;
            return;
        }
        sampled.retain(|_, count| {
            *count -= 1;
            *count > 0
        });
    }

    /// Returns the busiest keys since the last question, with the requests for each.
    fn take(&self) -> Vec<(Key, u64)> {
        let mut keys: Vec<_> = lock(&self.sampled).drain().collect();
        keys.sort_unstable_by_key(|(_, count)| std::cmp::Reverse(*count));
        keys.truncate(ANSWERED);
        keys.into_iter().map(|(key, count)| (key, u64::from(count) * u64::from(SAMPLED))).collect()
    }
}

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Answers the questions of `bellwether top`: how many requests and loads there were, and for
    /// which keys.
    ///
    /// Spawn the future that this returns. It ends with the last clone. Without it, `top` shows
    /// nothing of this cache. It subscribes to one channel of the namespace. While a `top` runs
    /// somewhere, each process counts the keys of every 16th request, and answers once a second by
    /// one `PUBLISH`. Otherwise no key is counted.
    ///
    /// Each client that may subscribe in the namespace sees the keys.
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{Cache, MemoryBackend};
    ///
    /// let cache: Cache<u64> = Cache::builder(MemoryBackend::new()).build()?;
    /// tokio::spawn(cache.answer_top());
    /// # Ok::<_, bellwether::Error>(()) }).unwrap();
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, there are no more answers. Call this again to go on.
    pub fn answer_top(&self) -> impl Future<Output = ()> + Send + 'static + use<V> {
        let core = Arc::downgrade(&self.core);
        async move {
            let id = Owner::fresh().to_string();
            while let Some((name, subscribed)) = questions(&core).await {
                match subscribed {
                    Some(changes) => answer_all(&core, &name, changes, &id).await,
                    None => sleep(AGAIN).await,
                }
            }
        }
    }
}

/// Subscribes to the questions, unless the cache is gone.
async fn questions<V: Clone + Send + Sync + 'static>(
    core: &Weak<Core<V>>,
) -> Option<(Name, Option<Changes>)> {
    let core = core.upgrade()?;
    let name = Name::new(&core.settings.namespace, Family::Cache, &QUESTIONS.into(), 512).ok()?;
    let store = core.store.clone();
    drop(core);
    let changes = store.changes(&name).await.ok();
    Some((name, changes))
}

/// Answers each question until the cache is gone or an answer fails.
async fn answer_all<V: Clone + Send + Sync + 'static>(
    core: &Weak<Core<V>>,
    name: &Name,
    mut changes: Changes,
    id: &str,
) {
    loop {
        let asked = timeout(FRESH, changes.next()).await.is_ok();
        let Some(core) = core.upgrade() else { return };
        core.activity.is_asked.store(asked, Ordering::Relaxed);
        let keys = core.activity.take();
        if asked {
            let answer = core.answer(id, &keys);
            let store = core.store.clone();
            drop(core);
            if store.answer(name, &answer).await.is_err() {
                return;
            }
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    fn answer(&self, id: &str, keys: &[(Key, u64)]) -> String {
        let stats = self.stats();
        let keys: Vec<_> = keys.iter().map(|(key, count)| json!([key.as_str(), count])).collect();
        json!({
            "cache": id,
            "process": Owner::process(),
            "hits": stats.hits + stats.local + stats.stale,
            "loads": stats.loads,
            "failures": stats.failures,
            "waited": stats.followed + stats.received,
            "degraded": stats.degraded,
            "flights": stats.flights,
            "keys": keys,
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_is_counted_unless_somebody_asks() {
        let activity = Activity::default();
        (0..1000).for_each(|_| activity.note("k"));
        assert_eq!(activity.take(), []);
        activity.is_asked.store(true, Ordering::Relaxed);
        (0..16_000).for_each(|_| activity.note("k"));
        let [(key, requests)] = &activity.take()[..] else { panic!("one key was asked for") };
        assert!(key.as_str() == "k" && requests.abs_diff(16_000) < 8_000, "{requests}");
    }

    #[test]
    fn a_busy_key_is_found_among_many() {
        let activity = Activity::default();
        for number in 0..10_000_u32 {
            activity.count(Key::from(number));
            if number % 50 == 0 {
                activity.count(Key::from("busy"));
            }
        }
        let keys = activity.take();
        assert!(keys.len() <= ANSWERED && keys[0].0.as_str() == "busy", "{keys:?}");
    }
}
