//! Single calls that share a query, like the `DataLoader` of GraphQL servers.

use std::hash::Hash;

use bellwether::{BoxError, Cache, Error, cache::Batch};
use tokio::{
    sync::{mpsc, oneshot},
    task::yield_now,
};

type Ask<I, V> = (I, oneshot::Sender<Result<V, Error>>);

/// Gathers the ids of the calls that are ready at the same moment.
pub(super) struct Batcher<I, V>(mpsc::UnboundedSender<Ask<I, V>>);

impl<I, V> Batcher<I, V>
where
    I: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    /// Starts the task that gathers. It ends with the last call.
    pub(super) fn new<L, Fut, R, E>(cache: Cache<V>, key: fn(&I) -> String, loader: L) -> Self
    where
        L: Fn(Batch<I, V>) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: IntoIterator<Item = (I, V)> + 'static,
        E: Into<BoxError> + 'static,
    {
        let (ask, mut asked) = mpsc::unbounded_channel::<Ask<I, V>>();
        tokio::spawn(async move {
            while let Some(first) = asked.recv().await {
                // All tasks that are ready now ask first.
                yield_now().await;
                let mut asks = vec![first];
                while let Ok(next) = asked.try_recv() {
                    asks.push(next);
                }
                let (ids, answers): (Vec<_>, Vec<_>) = asks.into_iter().unzip();
                let loads = cache.get_or_load_many(ids, key, loader.clone());
                // The next ones do not wait for these.
                tokio::spawn(async move {
                    match loads.await {
                        Ok(loaded) => {
                            for (answer, loaded) in answers.into_iter().zip(loaded) {
                                let _ = answer.send(loaded.map(|loaded| loaded.value));
                            }
                        }
                        Err(error) => {
                            for answer in answers {
                                let _ = answer.send(Err(error.clone()));
                            }
                        }
                    }
                });
            }
        });
        Self(ask)
    }

    /// Returns the value of one id.
    pub(super) async fn load(&self, id: I) -> Result<V, BoxError> {
        let (answer, answered) = oneshot::channel();
        self.0.send((id, answer)).map_err(|_| "the runtime was shut down")?;
        let loaded = answered.await.map_err(|_| "the runtime was shut down")?;
        Ok(loaded?)
    }
}
