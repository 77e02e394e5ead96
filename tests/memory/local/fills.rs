//! Fills of a local tier that meet a change on their way.
//!
//! The fault is on record five times: a fill that began before an invalidation ends after it, and
//! puts the old value back.

use bellwether::error::BackendError;
use testkit::interceptor::{Answer, Hook, Interceptor, Operation};
use tokio::sync::oneshot;

use super::cache;
use crate::prelude::*;

/// Holds the answer to the next read back.
#[derive(Clone, Default)]
struct Held(Arc<Mutex<Option<Gate>>>);

/// Tells that a read has its answer, and lets it go on.
type Gate = (oneshot::Sender<()>, oneshot::Receiver<()>);

impl<B: Store + Clone> Hook<B> for Held {
    async fn around(&self, inner: &B, operation: Operation) -> Result<Answer, BackendError> {
        let answer = operation.perform(inner).await;
        if let Operation::Get { .. } = operation {
            let held = self.0.lock().unwrap().take();
            if let Some((has_read, goes_on)) = held {
                has_read.send(()).unwrap();
                goes_on.await.unwrap();
            }
        }
        answer
    }
}

/// A process whose read has its answer, and is held back, and another process.
struct Race {
    here: Cache<u64>,
    there: Cache<u64>,
    read: JoinHandle<Option<u64>>,
    goes_on: oneshot::Sender<()>,
}

impl Race {
    /// Begins with a stored value, if there is one.
    async fn begin(stored: Option<u64>) -> Self {
        let backend = MemoryBackend::new();
        let hook = Held::default();
        let (here, there) =
            (cache(Interceptor { inner: backend.clone(), hook: hook.clone() }), cache(backend));
        if let Some(value) = stored {
            there.insert("k", &value).await.unwrap();
        }
        let (has_read, reads) = oneshot::channel();
        let (goes_on, waits) = oneshot::channel();
        *hook.0.lock().unwrap() = Some((has_read, waits));
        let reader = here.clone();
        let read = spawn(async move { reader.get("k").await.unwrap() });
        reads.await.unwrap();
        Self { here, there, read, goes_on }
    }

    /// Lets the read end. Returns its answer, and what this process serves then.
    async fn end(self) -> (Option<u64>, Option<u64>, Option<u64>) {
        self.goes_on.send(()).unwrap();
        let read = self.read.await.unwrap();
        (read, self.here.get_local("k"), self.here.get("k").await.unwrap())
    }
}

/// Lets a read of the first value end after an act of this process, or of another one. The old
/// answer is not kept, and the next read is served what the act has left.
async fn read_across(act: impl AsyncFnOnce(&Race) -> Result<u64, Error>, left: Option<u64>) {
    let race = Race::begin(Some(1)).await;
    act(&race).await.unwrap();
    assert_eq!(race.end().await, (Some(1), None, left));
}

/// FusionCache#613: a factory that began before `Remove` writes to the first level.
#[tokio::test]
async fn a_fill_from_before_a_removal_is_not_kept() {
    read_across(async |race: &Race| race.here.invalidate("k").await, None).await;
    read_across(async |race: &Race| race.there.invalidate("k").await, None).await;
}

/// IGNITE-627: a near cache is updated by a reader that has read before a write.
#[tokio::test]
async fn a_fill_from_before_a_write_is_not_kept() {
    read_across(async |race: &Race| race.here.insert("k", &2).await, Some(2)).await;
    read_across(async |race: &Race| race.there.insert("k", &2).await, Some(2)).await;
}

/// OpenMetadata#28902: a reader loads an entity while it is written.
#[tokio::test]
async fn a_fill_from_before_several_writes_is_not_kept() {
    let write = async |race: &Race| {
        for value in 2..4 {
            race.there.insert("k", &value).await?;
            assert_eq!(race.there.get("k").await?, Some(value));
        }
        race.there.insert("k", &4).await
    };
    read_across(write, Some(4)).await;
}

/// hazelcast#4671: a record is put after the invalidation of a later owner.
#[tokio::test]
async fn a_fill_from_before_a_rebuild_is_not_kept() {
    let rebuild = async |race: &Race| {
        let fence = race.there.invalidate("k").await?;
        let rebuilt = race.there.request("k").load(value(2)).await?;
        assert_eq!(rebuilt.source, Source::Led);
        Ok(fence)
    };
    read_across(rebuild, Some(2)).await;
}

/// redis-rs#2526: an invalidation arrives before the reply that it concerns.
#[tokio::test]
async fn a_fill_from_before_an_expiry_is_not_kept() {
    read_across(async |race: &Race| race.there.expire("k").await, None).await;
}

/// A change of another name in the same stripe costs one more read, if at all.
#[tokio::test]
async fn a_fill_that_nothing_concerns_is_kept() {
    let race = Race::begin(Some(1)).await;
    race.there.insert("other", &2).await.unwrap();
    assert_eq!(race.end().await, (Some(1), Some(1), Some(1)));
}

/// The answer is as new as the change.
#[tokio::test]
async fn a_fill_with_the_fence_of_the_change_is_kept() {
    let race = Race::begin(None).await;
    race.goes_on.send(()).unwrap();
    assert_eq!(race.read.await.unwrap(), None);
    race.there.insert("k", &2).await.unwrap();
    assert_eq!(race.here.get("k").await.unwrap(), Some(2));
    assert_eq!(race.here.get_local("k"), Some(2));
}
