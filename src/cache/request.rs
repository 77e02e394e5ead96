//! A request joins the flight of its key, leads that flight, or loads for its caller alone.

use std::{fmt, mem, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::Either};
use tokio::time::{Instant, timeout_at};
use tracing::{Instrument, Span};

use super::{
    Lead, Loaded,
    core::Core,
    freshness::Rules,
    loader::{self, Produced, Work},
    outcome::{Alone, FlightResult, Outcome, cut_off, for_caller, result, value_of},
    run::{self, Begun, LoneLook, Looked, Run, RunStart},
    settings::Options,
};
use crate::{
    backend::{Edit, EntryKind},
    error::{BoxError, Error, ErrorKind},
    flight::{self, Edge, Follower, Joined, KeyUse, Landing, Refused},
    key::{Key, Name},
    spans,
    time::after,
};

/// One request for a key, with options of its own. [`Cache::request`](super::Cache::request)
/// returns it.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{BoxError, Cache, MemoryBackend};
///
/// let cache: Cache<u64> = Cache::builder(MemoryBackend::new(), "shop").build()?;
/// let hour = Duration::from_secs(3600);
/// let load = |_lead| async { Ok::<_, BoxError>(17) };
/// assert_eq!(cache.request("stock:42").refresh(load).await?.value, 17);
/// assert!(cache.request("stock:42").ttl(hour).touch().await?);
/// let fence = cache.request("stock:43").ttl(hour).insert(&16).await?;
/// // In another process, which was sent the fence:
/// let request = cache.request("stock:43").not_older_than(fence);
/// assert_eq!(request.load(load).await?.value, 16);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[must_use = "a request does nothing until `load` or another of its methods is called"]
pub struct Request<V> {
    pub(super) core: Arc<Core<V>>,
    pub(super) key: Key,
    /// The options of the cache, or a changed copy. Behind an `Arc`, because each follower carries
    /// them.
    pub(super) options: Arc<Options>,
}

/// The entry that a touch would change.
struct Touchable<V> {
    /// The fence of the entry, or zero to touch any entry.
    seen: u64,
    /// The value of the entry, if its windows depend on the value.
    value: Option<V>,
}

/// How many times a touch reads and edits the entry, if other writes replace the entry in between.
const TOUCH_TRIES: u32 = 4;

impl<V: Clone + Send + Sync + 'static> Request<V> {
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
        // Not an async function, because its future would hold a second copy of the arguments.
        let core = self.core.clone();
        let outcome = self.fly(move |lead| loader::of_user(loader(lead)));
        outcome.map(move |outcome| value_of(outcome, &core.counters))
    }

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
        let Self { core, key, options } = self;
        let name = core.name(&key)?;
        let tagged = core.begin_tags(&options).await;
        let (value, entry) = core.entry(value, Duration::ZERO, tagged)?;
        let windows = core.windows(&options, Some(&value), &options.keeping()).in_range();
        let put = Edit::Put(entry.with_windows(windows), windows.kept());
        core.edit(&key, &name, &put).await
    }

    /// Loads the value anew, and stores it. Meanwhile all other callers are served the old value,
    /// if it may be served.
    ///
    /// No value of a load that began before this call is stored, in the whole fleet. If another
    /// load begins during this call, this call may return the value of that load, and perhaps does
    /// not run this loader. When several callers refresh at the same moment, few loads run. A later
    /// refresh ends a load that is under way and loads again. If the load fails, the old value
    /// stays.
    ///
    /// # Errors
    ///
    /// As [`Cache::get_or_load`](super::Cache::get_or_load), and
    /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer or refused before the
    /// load began. [`ShutDown`](crate::ErrorKind::ShutDown) if the cache is shut down.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after the load began, the load goes on in the background.
    pub fn refresh<F, Fut, E>(
        self,
        loader: F,
    ) -> impl Future<Output = Result<Loaded<V>, Error>> + Send + 'static
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<V, E>> + Send + 'static,
        E: Into<BoxError> + 'static,
    {
        let core = self.core.clone();
        let work = loader::boxed(move |lead| loader::of_user(loader(lead)));
        let outcome = self.refresh_by(work);
        outcome.map(move |outcome| value_of(outcome, &core.counters))
    }

    /// Starts the windows of the stored value anew, with the settings of this request. Use it when
    /// you know that the value is still true. The value of a load that is under way is not stored.
    ///
    /// A [negative](super::Builder::negative_ttl) value keeps its own time to live, unless this
    /// request sets a [`ttl`](Self::ttl).
    ///
    /// Returns false if no windows have begun anew:
    ///
    /// - There is no value, or the key is remembered as uncacheable.
    /// - The value was [expired](super::Cache::expire). An expired value is not revived, because
    ///   the caller may not know of the expiry.
    /// - The cache has a [`negative_ttl`](super::Builder::negative_ttl), and cannot decode the
    ///   value.
    /// - During this call, other writes replaced the value four times.
    ///
    /// # Errors
    ///
    /// As with [`Cache::invalidate`](super::Cache::invalidate). A failed touch is never repeated
    /// later.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the windows may or may not have begun anew.
    pub async fn touch(self) -> Result<bool, Error> {
        let Self { core, key, options } = &self;
        let name = core.name(key)?;
        // The copies of this process are dropped even if there is nothing to touch: a copy of an
        // entry that is gone must not be served after this call.
        let _changed = core.changing(key);
        for _ in 0..TOUCH_TRIES {
            let Some(Touchable { seen, value }) = self.look_to_touch(&name).await? else {
                return Ok(false);
            };
            let windows = core.windows(options, value.as_ref(), &options.keeping());
            let touched = core.edit(key, &name, &Edit::Touch { windows, seen }).await?;
            // If nothing was touched, the entry was replaced since the read. The new entry is read
            // too, because its windows may be different.
            if touched > 0 || seen == 0 {
                return Ok(touched > 0);
            }
        }
        Ok(false)
    }

    /// Returns the stored value, or a load under the lease of the key, or both. Returns
    /// [`Alone`](Begun::Alone) if the caller is to load without a lease.
    ///
    /// Use this to load by something else than a closure, such as by a stream that other code
    /// reads. Two calls of `begin` in one process meet at the lease as two processes do: the second
    /// call waits for the value of the first.
    ///
    /// # Errors
    ///
    /// - The failure of the load that this call waited for, or after which the key backs off.
    /// - [`InvalidKey`](crate::ErrorKind::InvalidKey) if the key is empty or too long.
    /// - [`Overloaded`](crate::ErrorKind::Overloaded) if too many
    ///   [loads](super::Builder::max_loads) are under way.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that was granted is released.
    ///
    /// # Examples
    ///
    /// [`Load`](crate::cache::Load) has one.
    pub async fn begin(mut self) -> Result<Begun<V>, Error> {
        self.options_mut().sharing.passes_uncacheable = true;
        let Self { core, key, options } = self;
        if let Some(loaded) = core.local_value(&key.text, &options) {
            core.counters.served(loaded.source);
            return Ok(Begun::Ready(loaded));
        }
        let run = Run::alone(&core, &key, options, RunStart::Look)?;
        if core.loads.begun.is_closed() {
            return Ok(Begun::Alone);
        }
        Box::pin(run.begin()).await
    }

    /// Reads the entry that a touch would change, if the touch depends on the entry. Returns `None`
    /// if there is nothing to touch.
    ///
    /// A touch depends on the entry in three cases:
    ///
    /// - The entry has tags. The new windows may end after the backend has forgotten that a tag was
    ///   invalidated.
    /// - The value means "not found", and so has its own time to live.
    /// - The entry is from before an outage, and may count as old.
    async fn look_to_touch(&self, name: &Name) -> Result<Option<Touchable<V>>, Error> {
        let Self { core, key, .. } = self;
        if !core.local.tags.is_on
            && core.format.is_negative.is_none()
            && !core.backend.writes.has_old()
        {
            return Ok(Some(Touchable { seen: 0, value: None }));
        }
        core.backend.writes_repeated(name).await?;
        let mut stored = core.in_time(core.backend.store.get(name)).await;
        core.judge(key, &mut stored).await;
        let Some(mut entry) = stored? else { return Ok(None) };
        if entry.kind != EntryKind::Value
            || entry.has_ended()
            || core.backend.writes.is_old(name, &entry)
        {
            return Ok(None);
        }
        let seen = entry.fence;
        if core.format.is_negative.is_none() {
            return Ok(Some(Touchable { seen, value: None }));
        }
        let value = core.decoded(name, &mut entry);
        Ok(value.map(|value| Touchable { seen, value: Some(value) }))
    }

    async fn refresh_by(mut self, work: Work<V>) -> Outcome<V> {
        let rules = &mut self.options_mut().rules;
        rules.replaces = true;
        // The age says for how long the old value may stand in for a failed load.
        rules.asks_age = true;
        let Self { core, key, options } = self;
        if core.loads.begun.is_closed() {
            return Err(Error::shut_down());
        }
        // The fence of this command is greater than the fences of all loads that have begun, so
        // none of their values is stored.
        let superseded_at = core.edit(&key, &core.name(&key)?, &Edit::Supersede).await?;
        // A shutdown that begins from here on waits for the load.
        let begun = core.loads.begun.token();
        if core.loads.begun.is_closed() {
            return Err(Error::shut_down());
        }
        let run = Run::alone(&core, &key, options, RunStart::Supersede(superseded_at))?;
        let load = run.load(work).in_current_span();
        // If a loader asks for this refresh, the refresh is a part of that loader's flight.
        let load = match flight::current() {
            Some(number) => core.loads.begun.spawn(flight::within(number, load)),
            None => core.loads.begun.spawn(load),
        };
        // A shutdown must not wait for this caller, because perhaps nothing polls it any more.
        drop(begun);
        load.await.unwrap_or_else(|_| Err(cut_off()))
    }

    /// Does what [`load`](Self::load) does. The answer of the work may be for its caller alone.
    pub(crate) fn fly<F, Fut>(self, work: F) -> impl Future<Output = Outcome<V>> + Send + 'static
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
    {
        let Self { core, key, mut options } = self;
        let mut work = Some(work);
        async move {
            if let Some(loaded) = core.local_value(&key.text, &options) {
                return Ok(FlightResult::Loaded(loaded));
            }
            let takes_heads = options.sharing.takes_heads;
            let patience = Patience::new(&options);
            // A value that lives across an `await` makes the future of every caller larger.
            let mut looked = None;
            if let Some(key_use) = lone_key_use(&core, &key, &options) {
                // The box keeps the future of a caller that waits small.
                match Box::pin(run::look_alone(&core, &key, options.clone(), key_use)).await? {
                    LoneLook::Served(outcome) => return outcome,
                    LoneLook::Refreshes(outcome, refresh) => {
                        refresh.begin(work.take().map(loader::boxed));
                        return outcome;
                    }
                    LoneLook::Loads(found) => looked = Some(found),
                    LoneLook::NoTurn => {}
                }
            }
            loop {
                let joined = InFlight::join(&core, &key, &mut options, &mut work, looked.take());
                let Some(mut caller) = joined? else { break };
                let landing =
                    wait(patience.as_deref(), &core, &key, &mut caller, takes_heads).await;
                match landing {
                    Landing::Outcome(end) => return for_caller(end, caller.leads),
                    // The task that led is gone, and with it the work and the options of this
                    // caller.
                    Landing::JoinAnew if caller.leads => return Err(cut_off()),
                    Landing::JoinAnew => {}
                }
            }
            // The cache is shut down, or this caller is a loader and the flight of the key waits
            // for that loader.
            if takes_heads {
                return Ok(FlightResult::Alone(Alone::Uncacheable));
            }
            let work = loader::boxed(work.take().ok_or_else(cut_off)?);
            let run = Run::alone(&core, &key, options, RunStart::Unleased)?;
            Box::pin(run.load(work)).await
        }
    }
}

/// Begins the use of a key for a lone look, if no other caller asks for the key. Returns `None` for
/// a key that a call for many keys has read already.
fn lone_key_use<V>(core: &Core<V>, key: &Key, options: &Options) -> Option<KeyUse> {
    let has_looked = options.batch.as_ref().is_some_and(|member| member.missed.is_some());
    if has_looked {
        return None;
    }
    core.loads.flights.begin_lone_look(key)
}

/// The settings of a request, in place of the settings of its cache.
impl<V: Clone + Send + Sync + 'static> Request<V> {
    /// Sets how long the value is fresh, if this caller loads, inserts or touches it. Zero means at
    /// most 1 ms. To store nothing, use [`Lead::do_not_store`](crate::cache::Lead::do_not_store).
    pub fn ttl(mut self, ttl: Duration) -> Self {
        let options = self.options_mut();
        options.windows.fresh = ttl;
        options.own.fresh = Some(ttl);
        self
    }

    /// Sets how long this caller waits for a load while a value is kept for failures, as
    /// [`Builder::serve_stale_after`](crate::cache::Builder::serve_stale_after) does.
    pub fn serve_stale_after(mut self, limit: Duration) -> Self {
        self.options_mut().serve_stale_after = Some(limit);
        self
    }

    /// Sets how long the value is [served
    /// stale](crate::cache::Builder::stale_while_revalidate), if this caller loads it. The limit
    /// also applies to a value that is already stored. Zero asks for a fresh value.
    pub fn stale_while_revalidate(mut self, window: Duration) -> Self {
        let options = self.options_mut();
        options.windows.stale = window;
        options.own.stale = Some(window);
        options.rules.stale = window;
        self
    }

    /// Sets how long the value is [kept for failures](crate::cache::Builder::stale_if_error), if
    /// this caller loads it. The limit also applies to a value that is already stored.
    pub fn stale_if_error(mut self, window: Duration) -> Self {
        let options = self.options_mut();
        options.windows.error = window;
        options.own.error = Some(window);
        options.rules.error = window;
        self
    }

    /// Sets how long this caller waits for the load of another process, and for a permit to load.
    /// A caller that follows a flight waits as long as the caller that leads.
    pub fn wait_limit(mut self, limit: Duration) -> Self {
        self.options_mut().wait_limit = limit;
        self
    }

    /// Gives the value a tag, if this caller loads or inserts it, as
    /// [`Lead::tag`](crate::cache::Lead::tag) does.
    pub fn tag(mut self, tag: impl Into<Arc<str>>) -> Self {
        self.options_mut().tagged.tags.push(tag.into());
        self
    }

    /// Accepts no copy of the [local tier](crate::cache::Builder::local) that is older than `age`,
    /// and keeps the copy that this call makes for at most `age`. An `age` beyond
    /// [`max_age`](crate::cache::LocalTier::max_age) has no effect. Zero always asks the backend.
    pub fn max_local_age(mut self, age: Duration) -> Self {
        self.options_mut().rules.copy = age;
        self
    }

    /// Accepts nothing that may be older than a [fence](crate::cache::Loaded::fence), which a write
    /// of any process has returned. So a process reads at once what another process has written.
    ///
    /// The request then uses no older copy of the [local tier](crate::cache::Builder::local), and
    /// no older value that is [remembered](crate::cache::Builder::outage_memory) in an outage. It
    /// joins no load of callers that accept older values. While the backend is away, the value is
    /// loaded anew. Callers with the same fence share a load.
    ///
    /// Fences follow the clock of the server. If that clock goes back, a copy with a greater fence
    /// can be older than the written value. Such a copy is served for up to its
    /// [`max_age`](crate::cache::LocalTier::max_age).
    pub fn not_older_than(mut self, fence: u64) -> Self {
        self.options_mut().rules.least_fence = fence;
        self
    }

    pub(super) fn options_mut(&mut self) -> &mut Options {
        Arc::make_mut(&mut self.options)
    }
}

/// A caller that has joined a flight.
struct InFlight<V> {
    follower: Follower<Outcome<V>>,
    leads: bool,
    /// The wait of the caller in the graph of waits, if the caller is a loader.
    _edge: Option<Edge>,
}

impl<V: Clone + Send + Sync + 'static> InFlight<V> {
    /// Joins the flight of a key. A caller that leads gives its work and its options to a task.
    /// Returns `None` if the caller is to load alone: the cache is shut down, or the caller is a
    /// loader that would wait for itself.
    ///
    /// A plain function, so that the future of the caller does not hold these variables.
    fn join<F, Fut>(
        core: &Arc<Core<V>>,
        key: &Key,
        options: &mut Arc<Options>,
        work: &mut Option<F>,
        looked: Option<Box<Looked<V>>>,
    ) -> Result<Option<Self>, Error>
    where
        F: FnOnce(Lead<V>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Produced<V>, Error>> + Send + 'static,
    {
        let Joined { follower, leader } =
            match core.loads.flights.join(key, options.rules.accepted()) {
                Ok(joined) => joined,
                Err(Refused::Closed) => return Ok(None),
                Err(full) => return Err(overloaded(full)),
            };
        let Ok(edge) = add_wait(flight::current(), &follower) else { return Ok(None) };
        let leads = leader.is_some();
        match leader {
            Some(leader) => {
                // The run takes the options, because a key of a batch is decided when its run ends,
                // and not when its caller is polled. This caller needs its options no more.
                let options = mem::replace(options, core.settings.options.clone());
                // Fails if the key is invalid. The followers join anew, and get the same error.
                let run = Run::new(core, key, options, leader, RunStart::Look)?;
                let work = work.take().ok_or_else(cut_off)?;
                tokio::spawn(run.run(loader::boxed(work), looked));
            }
            None => options.will_wait(),
        }
        Ok(Some(Self { follower, leads, _edge: edge }))
    }
}

/// How long a caller waits for a load, if an old value may be served after that time.
struct Patience {
    until: Instant,
    /// Which stored values the caller accepts after that time.
    rules: Rules,
}

impl Patience {
    /// Returns `None` for a request without such a limit. The box keeps the future of its caller
    /// small.
    fn new(options: &Options) -> Option<Box<Self>> {
        let limit = options.serve_stale_after?;
        Some(Box::new(Self { until: after(Instant::now(), limit), rules: options.rules }))
    }
}

/// Waits for the end of a flight, for as long as the caller has patience. The wait of a leader has
/// no span, because its load has one.
fn wait<V: Clone + Send + Sync + 'static>(
    patience: Option<&Patience>,
    core: &Arc<Core<V>>,
    key: &Key,
    caller: &mut InFlight<V>,
    takes_heads: bool,
) -> impl Future<Output = Landing<Outcome<V>>> {
    let span = if caller.leads { Span::none() } else { spans::load(key) };
    let follower = &mut caller.follower;
    if patience.is_none() && span.is_disabled() {
        return Either::Left(follower.wait(takes_heads));
    }
    // The box keeps the future of most callers small.
    Either::Right(Box::pin(async move {
        let waiting = async {
            match patience {
                None => follower.wait(takes_heads).await,
                Some(patience) => wait_until(patience, core, key, follower, takes_heads).await,
            }
        };
        let landing = waiting.instrument(span.clone()).await;
        if let Landing::Outcome(outcome) = &landing {
            spans::ended(&span, result(outcome, false), outcome.as_ref().err());
        }
        landing
    }))
}

/// Waits for a flight. After the limit, serves the stored value if it may be served.
async fn wait_until<V: Clone + Send + Sync + 'static>(
    patience: &Patience,
    core: &Arc<Core<V>>,
    key: &Key,
    follower: &mut Follower<Outcome<V>>,
    takes_heads: bool,
) -> Landing<Outcome<V>> {
    if let Ok(landing) = timeout_at(patience.until, follower.wait(takes_heads)).await {
        return landing;
    }
    let old: Option<Loaded<V>> = tokio::select! {
        biased;
        landing = follower.wait(takes_heads) => return landing,
        old = async {
            let options = core.settings.options.clone();
            let run = Run::alone(core, key, options, RunStart::Look).ok()?;
            run.in_place_of_slow_load(&patience.rules).await
        } => old,
    };
    let Some(old) = old else { return follower.wait(takes_heads).await };
    tracing::debug!("the stale value is served, because the load is slow");
    follower.leave_behind();
    core.counters.slow.add();
    Landing::Outcome(Ok(FlightResult::Loaded(old)))
}

/// If the caller is a loader, adds its wait for a flight to the graph of waits, and notifies the
/// leader of that flight. Fails if the loader and the flight would wait for each other.
fn add_wait<T>(loader: Option<u64>, follower: &Follower<T>) -> Result<Option<Edge>, ()> {
    let Some(from) = loader else { return Ok(None) };
    let Some(edge) = flight::nested(from, follower.flight_id()) else {
        tracing::debug!("a loader asked for a key that waits for it");
        return Err(());
    };
    follower.notify_of_loader();
    Ok(Some(edge))
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
