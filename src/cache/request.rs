use std::{fmt, sync::Arc, time::Duration};

use futures_util::FutureExt;
use tokio::sync::SemaphorePermit;
use tracing::Instrument;

use super::{
    Cache, Inner, Lead,
    load::{self, Produced},
    path::{OnUncacheable, Outcome, Path},
};
use crate::{
    error::{BoxError, Error, ErrorKind},
    flight::{self, Joined, Notice, Refused, Waited},
    key::{Key, Name},
};

/// One request for a key, with options of its own (see [`Cache::request`]).
#[must_use = "a request does nothing until it is loaded"]
pub struct Request<V> {
    cache: Cache<V>,
    key: Key,
    options: Options,
}

#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) ttl: Duration,
    pub(super) load_limit: Duration,
    pub(super) wait_limit: Duration,
    pub(super) on_uncacheable: OnUncacheable,
}

/// A value, and where it came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Loaded<V> {
    value: V,
    source: Source,
}

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// It was stored.
    Hit,
    /// This caller's loader made it, under the lease.
    Led,
    /// The loader of another caller in this process made it meanwhile.
    Followed,
    /// Another process made it meanwhile.
    HandedOver,
    /// It was loaded without a lease and not stored: the backend did not answer, the wait for another
    /// process was over (by the wait limit or the retry strategy), a
    /// [verdict](super::Builder::uncacheable_ttl) stands, the loader came back to its own key, or the cache was
    /// shut down. Or it was loaded under a lease, the backend did not answer when it was to be stored, and
    /// this caller asked after the load had begun.
    ///
    /// It may come from a load that was under way in this process when its caller asked, and so be older
    /// than an invalidation in another process that had returned by then.
    Degraded,
}

impl<V> Loaded<V> {
    /// The value.
    pub fn value(&self) -> &V {
        &self.value
    }

    /// The value, taken out.
    pub fn into_value(self) -> V {
        self.value
    }

    /// Where it came from.
    pub fn source(&self) -> Source {
        self.source
    }
}

/// How a request ended that need not end with a value.
pub(crate) enum Flown<V> {
    Loaded(Loaded<V>),
    /// Everyone for himself.
    #[cfg_attr(not(feature = "http"), allow(dead_code))]
    Uncacheable,
}

impl<V: Clone + Send + Sync + 'static> Request<V> {
    pub(super) fn new(cache: Cache<V>, key: Key) -> Self {
        let settings = &cache.inner.settings;
        let options = Options {
            ttl: settings.ttl,
            load_limit: settings.load_limit,
            wait_limit: settings.wait_limit,
            on_uncacheable: OnUncacheable::Coalesce,
        };
        Self { cache, key, options }
    }

    /// How long the value is kept, if this caller is the one who loads it. Zero keeps it for 1 ms at most;
    /// [`Lead::do_not_store`] stores nothing.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// How long the load may take, if this caller is the one who leads.
    pub fn load_limit(mut self, limit: Duration) -> Self {
        self.options.load_limit = limit;
        self
    }

    /// How long to wait for the load of another process, if this caller is the one who leads.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.options.wait_limit = limit;
        self
    }

    #[cfg(feature = "http")]
    pub(crate) fn on_uncacheable(mut self, on_uncacheable: OnUncacheable) -> Self {
        self.options.on_uncacheable = on_uncacheable;
        self
    }

    /// The value of the key, as [`Cache::get_or_load`] finds or makes it, and where it came from.
    ///
    /// # Errors
    ///
    /// As [`Cache::get_or_load`].
    ///
    /// # Cancel safety
    ///
    /// As [`Cache::get_or_load`].
    pub fn load<F, Fut, E>(
        self,
        loader: F,
    ) -> impl Future<Output = Result<Loaded<V>, Error>> + Send + 'static
    where
        F: FnOnce(Lead) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        // Not an async function: it would keep a copy of what it passes on.
        self.fly(move |lead| load::shared(loader(lead))).map(|flown| match flown? {
            Flown::Loaded(loaded) => Ok(loaded),
            Flown::Uncacheable => Err(Error::new(ErrorKind::Cancelled, "the value was not shared")),
        })
    }

    /// As [`load`](Self::load), for work whose answer may turn out to be its caller's alone.
    pub(crate) fn fly<F, Fut>(
        self,
        work: F,
    ) -> impl Future<Output = Result<Flown<V>, Error>> + Send + 'static
    where
        F: FnOnce(Lead) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
    {
        let mut work = Some(work);
        // As above.
        async move {
            let inner = &self.cache.inner;
            // Only who leads needs the name; whether the key is good, everyone is told.
            Name::check(&self.key, inner.settings.max_key)?;
            let within = flight::current();
            // For how long he waited for an answer that did not come.
            let mut unanswered = None;
            loop {
                let (mut follower, leader) = match inner.flights.join(&self.key) {
                    Ok(Joined::Leading(follower, leader)) => (follower, Some(leader)),
                    Ok(Joined::Following(follower)) => (follower, None),
                    Err(Refused::Closed) => {
                        // A loader that waits for a place that loaders take could wait for itself.
                        let _place = match within {
                            Some(_) => None,
                            // In a box, so that the way of who follows stays small.
                            None => Some(Box::pin(inner.place(self.options.wait_limit)).await?),
                        };
                        // With a number, so that the loads that this one waits for need no place.
                        let number = within.or_else(|| Some(flight::next_id()));
                        return Box::pin(alone(inner, work.take(), self.options, number)).await;
                    }
                    Err(Refused::FlightFull(waiters)) => {
                        return Err(overloaded(waiters, " for this key"));
                    }
                    Err(Refused::GroupFull(waiters)) => return Err(overloaded(waiters, "")),
                };
                // A loader that waits for a flight that waits for it would wait for ever.
                let edge = within.map(|from| flight::nested(from, follower.flight_id()));
                match edge {
                    Some(None) => {
                        tracing::debug!(key = %self.key, "a loader came back to a key that waits for it");
                        drop((follower, leader));
                        return Box::pin(alone(inner, work.take(), self.options, within)).await;
                    }
                    Some(Some(_)) => follower.tell(Notice::NeededByLoader),
                    None => {}
                }
                let led = leader.is_some();
                let patience = inner.settings.retry.try_limit() / 2;
                if !led && unanswered.is_some_and(|waited| waited > patience) {
                    follower.tell(Notice::Hurry);
                }
                if let Some(leader) = leader {
                    let Some(work) = work.take() else { return Err(cut_off()) };
                    let name = inner.name(&self.key)?;
                    let path =
                        Path::new(inner.clone(), name, self.options, leader, unanswered.is_some());
                    let span = tracing::debug_span!("flight", key = %self.key);
                    follower.carry(Box::pin(path.run(work).instrument(span)));
                }
                return match follower.wait().await {
                    Waited::Outcome(Outcome::Value(value, source)) => {
                        let source = match source {
                            Source::Led if !led => Source::Followed,
                            source => source,
                        };
                        inner.count(source);
                        Ok(Flown::Loaded(Loaded { value, source }))
                    }
                    Waited::Outcome(Outcome::Uncacheable) => Ok(Flown::Uncacheable),
                    Waited::Outcome(Outcome::Failed(error)) => Err(error),
                    Waited::Outcome(Outcome::Unanswered(waited)) => {
                        unanswered = Some(waited);
                        continue;
                    }
                    Waited::JoinAgain => {
                        unanswered = None;
                        continue;
                    }
                };
            }
        }
    }
}

/// Loads for one caller: no flight, no lease, nothing stored.
async fn alone<V, F, Fut>(
    inner: &Arc<Inner<V>>,
    work: Option<F>,
    options: Options,
    flight: Option<u64>,
) -> Result<Flown<V>, Error>
where
    V: Clone + Send + Sync + 'static,
    F: FnOnce(Lead) -> Fut,
    Fut: Future<Output = Result<Produced<V>, Error>>,
{
    let work = work.ok_or_else(cut_off)?;
    inner.counters.loads.add();
    match load::run(work, Lead::new(None), options.load_limit, flight).await {
        Ok(Produced::Value(value)) => {
            inner.count(Source::Degraded);
            Ok(Flown::Loaded(Loaded { value, source: Source::Degraded }))
        }
        Ok(Produced::Uncacheable) => Ok(Flown::Uncacheable),
        Err(error) => {
            inner.counters.failures.add();
            Err(error)
        }
    }
}

fn overloaded(waiters: usize, which: &str) -> Error {
    Error::new(ErrorKind::Overloaded, format!("{waiters} callers wait{which} already"))
}

fn cut_off() -> Error {
    Error::new(ErrorKind::Cancelled, "the load was cut off: its runtime went away")
}

impl<V> Inner<V> {
    /// A place among the loads of this process.
    pub(super) async fn place(&self, limit: Duration) -> Result<SemaphorePermit<'_>, Error> {
        let overloaded = || {
            let loads = self.settings.max_loads;
            Error::new(ErrorKind::Overloaded, format!("{loads} loads are running already"))
        };
        match tokio::time::timeout(limit, self.loads.acquire()).await {
            Ok(place) => place.map_err(|_closed| overloaded()),
            Err(_) => Err(overloaded()),
        }
    }

    fn count(&self, source: Source) {
        match source {
            Source::Hit => self.counters.hits.add(),
            Source::Led => self.counters.led.add(),
            Source::Followed => self.counters.followed.add(),
            Source::HandedOver => self.counters.handed_over.add(),
            Source::Degraded => self.counters.degraded.add(),
        }
    }
}

impl<V> fmt::Debug for Request<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("key", &self.key).finish_non_exhaustive()
    }
}
