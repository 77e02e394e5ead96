//! A request: it joins the flight of its key, leads it, or loads for its caller alone.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::Either};
use tokio::time::{Instant, timeout_at};
use tracing::Span;

use super::{
    Lead, Loaded,
    core::Core,
    freshness::Rules,
    lead::Keeping,
    loader::{self, Produced},
    notes::EntryNote,
    outcome::{Alone, FlightResult, Outcome, cut_off, end_span, ended},
    run::{AskedKey, Run, RunStart},
    settings::Options,
};
#[cfg(feature = "http")]
use crate::backend::Tagged;
use crate::{
    backend::{Edit, Entry},
    error::{BoxError, Error, ErrorKind},
    flight::{self, Edge, Follower, Joined, Notice, Refused},
    key::{Family, Key, Name},
    spans,
    time::after,
};

/// One request for a key, with options of its own. [`Cache::request`](super::Cache::request) makes
/// it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{BoxError, Cache, MemoryBackend, cache::Source};
///
/// let cache: Cache<u64> = Cache::builder(MemoryBackend::new(), "shop").build()?;
/// let loaded = cache
///     .request("stock:42")
///     .ttl(Duration::from_secs(5))
///     .wait_limit(Duration::from_secs(1))
///     .load(|_lead| async { Ok::<_, BoxError>(17) })
///     .await?;
/// assert_eq!((loaded.value, loaded.source()), (17, Source::Led));
///
/// let hour = Duration::from_secs(3600);
/// assert!(cache.request("stock:42").ttl(hour).touch().await?);
/// let fence = cache.request("stock:43").ttl(hour).insert(&16).await?;
/// // In another process, which was sent the fence:
/// let request = cache.request("stock:43").not_older_than(fence);
/// assert_eq!(request.load(|_lead| async { Ok::<_, BoxError>(17) }).await?.value, 16);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[must_use = "a request does nothing until it is loaded"]
pub struct Request<V> {
    pub(super) core: Arc<Core<V>>,
    pub(super) key: Key,
    /// The options, if they are not the cache's. In a box, because each follower carries it.
    pub(super) own: Option<Box<Options>>,
}

impl<V: Clone + Send + Sync + 'static> Request<V> {
    /// Stores a value with the time to live and the windows of this request. Everything else is as
    /// for [`Cache::insert`](super::Cache::insert).
    ///
    /// # Errors
    ///
    /// As with [`Cache::insert`](super::Cache::insert).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be stored.
    pub async fn insert(self, value: &V) -> Result<u64, Error> {
        let Self { core, key, own } = self;
        let (value, payload) = core.round_trip(value)?;
        let negative = own.is_none().then(|| core.negative_windows(&value)).flatten();
        let options = core.options(own.as_deref());
        let windows = core.windows(options, negative, &Keeping::default()).in_range();
        let (name, life) = (core.name(&key)?, core.settings.fence_life());
        let entry = Entry::value(core.tag, Duration::ZERO, payload).with_windows(windows);
        let entry = core.tagged(entry, core.begin_tags(options).await)?;
        let put = Edit::Put(entry, windows.kept());
        let fence = core.change(&key, core.store.edit(&name, &put, life)).await?;
        core.refreshes.note(EntryNote::Stored, &name, fence, Duration::MAX);
        Ok(fence)
    }

    /// Starts the windows of the stored value anew, with the settings of this request, such as when
    /// a write has not changed it. The value of a load that is under way is not stored.
    ///
    /// Returns false if there is no value, or if it was [expired](super::Cache::expire). An expired
    /// value is not revived, because the caller may not know of the expiry.
    ///
    /// # Errors
    ///
    /// As with [`Cache::invalidate`](super::Cache::invalidate).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the windows may or may not have begun anew.
    pub async fn touch(self) -> Result<bool, Error> {
        let Self { core, key, own } = self;
        let (name, life) = (core.name(&key)?, core.settings.fence_life());
        let windows = core.windows(core.options(own.as_deref()), None, &Keeping::default());
        let touch = async {
            // The end of a tag may be forgotten before the windows would end.
            if core.tags.is_on {
                let mut stored = core.store.get(&name).await;
                core.judge(&key, &mut stored).await;
                let is_current = |entry: &Entry| !entry.has_ended();
                if !stored?.as_ref().is_some_and(is_current) {
                    return Ok(0);
                }
            }
            core.store.edit(&name, &Edit::Touch(windows), life).await
        };
        let fence = core.change(&key, touch).await?;
        if fence > 0 {
            core.refreshes.note(EntryNote::Stored, &name, fence, Duration::MAX);
        }
        Ok(fence > 0)
    }

    /// Returns the value of the key and its source, as
    /// [`Cache::get_or_load`](super::Cache::get_or_load) finds or makes it.
    ///
    /// # Errors
    ///
    /// As [`Cache::get_or_load`](super::Cache::get_or_load).
    ///
    /// # Cancel safety
    ///
    /// As [`Cache::get_or_load`](super::Cache::get_or_load).
    pub fn load<F, Fut, E>(
        self,
        loader: F,
    ) -> impl Future<Output = Result<Loaded<V>, Error>> + Send + 'static
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        // Not an async function, whose future would hold a copy of what it passes on.
        let core = self.core.clone();
        let shared = core.clone();
        let work = move |lead: Lead<V>| loader::of_user(shared, lead.clone(), loader(lead));
        self.fly(work).map(move |flown| flown?.shared(&core.counters))
    }

    /// As [`load`](Self::load), for work that may make an answer for its caller alone.
    pub(crate) fn fly<F, Fut>(self, work: F) -> impl Future<Output = Outcome<V>> + Send + 'static
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
    {
        let Self { core, key, mut own } = self;
        let mut work = Some(work);
        async move {
            // Only a leader needs the name, but each caller is told if its key has none.
            Name::check(Family::Cache, &key, core.settings.max_key)?;
            let options = core.options(own.as_deref());
            if let Some(loaded) = core.local(key.as_str(), options) {
                return Ok(FlightResult::Loaded(loaded));
            }
            let takes_heads = options.sharing.takes_heads;
            let patience = options
                .serve_stale_after
                .map(|limit| Box::new((after(Instant::now(), limit), options.rules)));
            // Nothing but what the caller needs lives across the wait, so that its future is small.
            loop {
                let Joined { mut follower, leader } = match core.flights.join(&key) {
                    Ok(joined) => joined,
                    Err(Refused::Closed) => break,
                    Err(full) => return ended(&core.counters, Err(overloaded(full)), false),
                };
                let Some(_edge) = nest(flight::current(), &follower) else { break };
                let leads = leader.is_some();
                match leader {
                    Some(leader) => {
                        let run = Run::new(&core, &key, own.take(), Some(leader), RunStart::Look)?;
                        follower.bring(Box::pin(run.run(work.take().ok_or_else(cut_off)?)));
                    }
                    None => core.options(own.as_deref()).will_wait(),
                }
                let waited =
                    wait(patience.as_deref(), &core, &key, &mut follower, takes_heads, leads);
                if let Some(end) = waited.await {
                    return ended(&core.counters, end, leads);
                }
            }
            // The cache is shut down, or a loader asks for a key that waits for it.
            if takes_heads {
                return Ok(FlightResult::Alone(Alone::Uncacheable));
            }
            Box::pin(Run::load_for_caller(&core, &key, own, work.map(loader::boxed))).await
        }
    }
}

/// The settings of a request, in place of its cache's.
impl<V: Clone + Send + Sync + 'static> Request<V> {
    /// Sets how long the value is kept, if this caller is the one that loads it. Zero keeps it for
    /// 1 ms at most, and [`Lead::do_not_store`](crate::cache::Lead::do_not_store) stores nothing.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options_mut().ttl = ttl;
        self
    }

    /// Sets how long this caller waits for a load while a value is kept for failures, as
    /// [`Builder::serve_stale_after`](crate::cache::Builder::serve_stale_after) does.
    pub fn serve_stale_after(mut self, limit: Duration) -> Self {
        self.options_mut().serve_stale_after = Some(limit);
        self
    }

    /// Sets how long the value is served stale while it is refreshed, if this caller is the one
    /// that loads it. A stored value is then served stale to this caller for no longer either. Zero
    /// asks for a fresh value. Everything else is as for
    /// [`Builder::stale_while_revalidate`](crate::cache::Builder::stale_while_revalidate).
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        self.options_mut().stale_while_revalidate = window;
        self.options_mut().rules.stale = window;
        self
    }

    /// Sets how long the value is kept for the case that its load fails, if this caller is the one
    /// that loads it. A stored value stands in for a failure for no longer either. Everything else
    /// is as for [`Builder::stale_if_error`](crate::cache::Builder::stale_if_error).
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        self.options_mut().stale_if_error = window;
        self.options_mut().rules.error = window;
        self
    }

    /// Sets how long to wait for the load of another process, if this caller is the one that leads.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.options_mut().wait_limit = limit;
        self
    }

    /// Gives the value a tag, if this caller is the one that loads or inserts it, as
    /// [`Lead::tag`](crate::cache::Lead::tag) does.
    pub fn tag(mut self, tag: impl Into<Arc<str>>) -> Self {
        self.options_mut().tagged.tags.push(tag.into());
        self
    }

    /// Gives the value tags, with the tag number from before it was read.
    #[cfg(feature = "http")]
    pub(crate) fn tagged(mut self, tagged: Tagged) -> Self {
        self.options_mut().tagged = tagged;
        self
    }

    /// Accepts no copy of the [local tier](crate::cache::Builder::local) that is older than this,
    /// and keeps the copy that this call makes for no longer. So the value has two lives: this one
    /// in the process, and its [`ttl`](Self::ttl) in the fleet. It only shortens
    /// [`max_age`](crate::cache::LocalTier::max_age). Zero asks the backend.
    pub fn max_local_age(mut self, age: Duration) -> Self {
        self.options_mut().rules.copy = age;
        self
    }

    /// Accepts no copy of the [local tier](crate::cache::Builder::local) with a smaller
    /// [fence](crate::cache::Loaded::fence) than this, which an act of any process has returned. So
    /// a process reads at once what another one has written. An answer of the backend needs no
    /// such check.
    pub fn not_older_than(mut self, fence: u64) -> Self {
        self.options_mut().least_fence = fence;
        self
    }

    /// Accepts a stale value for this long after its time to live, whatever it is stale for.
    #[cfg(feature = "http")]
    pub(crate) fn max_stale(mut self, limit: Duration) -> Self {
        let rules = &mut self.options_mut().rules;
        (rules.stale, rules.error) = (limit, limit);
        self
    }

    /// Sets how long the load may go on after it has announced the head of its value.
    #[cfg(feature = "http")]
    pub(crate) fn rest_limit(mut self, limit: Duration) -> Self {
        self.options_mut().rest_limit = limit;
        self
    }

    #[cfg(feature = "http")]
    pub(crate) fn sharing(mut self, sharing: crate::cache::Sharing) -> Self {
        self.options_mut().sharing = sharing;
        self
    }

    pub(super) fn options_mut(&mut self) -> &mut Options {
        let core = &self.core;
        self.own.get_or_insert_with(|| Box::new(core.settings.options.clone()))
    }
}

/// Until when a caller waits for a load, while there is an old value, and which stored values it
/// accepts after that.
type Patience = (Instant, Rules);

/// Waits for the end of a flight, as long as the patience of its caller lasts. A caller that leads
/// has the span of its load, and no other.
fn wait<V: Clone + Send + Sync + 'static>(
    patience: Option<&Patience>,
    core: &Arc<Core<V>>,
    key: &Key,
    follower: &mut Follower<Outcome<V>>,
    takes_heads: bool,
    leads: bool,
) -> impl Future<Output = Option<Outcome<V>>> {
    let span = if leads { Span::none() } else { spans::load(key) };
    let waited = match patience {
        None => Either::Left(follower.wait(takes_heads)),
        // In a box, which most callers do not need.
        Some(patience) => {
            Either::Right(Box::pin(wait_until(patience, core, key, follower, takes_heads)))
        }
    };
    if span.is_disabled() {
        return Either::Left(waited);
    }
    let ends = |waited: &Option<Outcome<V>>, span: &Span| {
        if let Some(outcome) = waited {
            end_span(span, outcome, false);
        }
    };
    // In a box, which callers need only where spans are collected.
    Either::Right(Box::pin(spans::within(span, waited, ends)))
}

/// Waits for a flight, and after the limit reads the stored value, if one may be served.
async fn wait_until<V: Clone + Send + Sync + 'static>(
    &(until, ref rules): &Patience,
    core: &Arc<Core<V>>,
    key: &Key,
    follower: &mut Follower<Outcome<V>>,
    takes_heads: bool,
) -> Option<Outcome<V>> {
    // A look that is slow has a limit of its own. A second one would ask the same server.
    follower.carry().await;
    if let Ok(waited) = timeout_at(until, follower.wait(takes_heads)).await {
        return waited;
    }
    let old: Option<Loaded<V>> = tokio::select! {
        biased;
        waited = follower.wait(takes_heads) => return waited,
        old = async {
            AskedKey::new(core, key, None).ok()?.in_place_of_slow_load(rules).await
        } => old,
    };
    let Some(old) = old else { return follower.wait(takes_heads).await };
    tracing::debug!("the stale value is served, because the load is slow");
    follower.leave_behind();
    core.counters.slow.add();
    Some(Ok(FlightResult::Loaded(old)))
}

/// Enters the wait of a loader for a flight into the graph of waits, and gives its flight notice.
/// A caller that is no loader enters nothing. Returns `None` if the two would wait for each other.
pub(super) fn nest<T>(from: Option<u64>, follower: &Follower<T>) -> Option<Option<Edge>> {
    let Some(from) = from else { return Some(None) };
    let Some(edge) = flight::nested(from, follower.flight_id()) else {
        tracing::debug!("a loader asked for a key that waits for it");
        return None;
    };
    follower.tell(Notice::NeededByLoader);
    Some(Some(edge))
}

fn overloaded(full: Refused) -> Error {
    let words = match full {
        Refused::FlightFull(limit) => {
            format!("{limit} callers wait for this key: ask later, or raise `max_waiters_per_key`")
        }
        Refused::AllFull(limit) => {
            format!("{limit} callers wait in this cache: ask later, or raise `max_waiters`")
        }
        Refused::Closed => return Error::shut_down(),
    };
    Error::new(ErrorKind::Overloaded, words)
}

impl<V> fmt::Debug for Request<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("key", &self.key).finish_non_exhaustive()
    }
}
