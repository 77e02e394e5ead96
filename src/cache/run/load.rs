//! The load: the loader runs, under the lease or without one. Its value is committed, or its
//! failure. Either ends the lease.

use std::{
    convert::Infallible,
    fmt,
    future::pending,
    mem,
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
    time::Duration,
};

use tokio::time::{Instant, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, warn};

use super::{AskedKey, FlightEnd, ForLate, Held, Run, silence};
use crate::{
    advice,
    backend::{BackOff, Committed, Entry, EntryKind, Grant, Tagged, Windows, answered_by},
    cache::{
        AfterFailure, Lead, Loaded, Source,
        failures::whole_millis,
        loader::{self, Produced, Work},
        local::Fill,
        member::Permit,
        notes::EntryNote,
        outage::Outage,
        outcome::{Alone, FlightResult, Record},
        settings::UNCACHEABLE_LIFE,
    },
    error::{BackendError, BoxError, Chain, Error, ErrorKind},
    flight::{self, Epoch},
    lease::LeaseGuard,
    random,
};

/// A load under its lease, which [`Request::begin`] returns. Its caller makes the value, and
/// [commits](Self::commit) it. Dropped, it releases the lease in a task, and the next process
/// loads.
///
/// Its [`Lead`] has the fence, and sets how the value is kept. It is [lost](Lead::lost) at the
/// [load limit](crate::cache::Builder::load_limit). Until it ends it holds one of the
/// [permits](crate::cache::Builder::max_loads).
///
/// ```
/// # let mut builder = tokio::runtime::Builder::new_current_thread();
/// # builder.enable_time().build().unwrap().block_on(async {
/// use bellwether::{Cache, MemoryBackend, cache::Begun};
///
/// /// Stands for an origin that is asked by hand.
/// async fn fetch() -> Result<u64, std::io::Error> {
///     Ok(17)
/// }
///
/// let cache: Cache<u64> = Cache::builder(MemoryBackend::new(), "shop").build()?;
/// let stock = match cache.request("stock:42").begin().await? {
///     Begun::Ready(loaded) | Begun::Stale(loaded, _) => loaded.value,
///     Begun::Load(load) => {
///         let fetched = tokio::select! {
///             fetched = load.scope(fetch()) => fetched,
///             () = load.lost() => Err(std::io::Error::other("the lease was lost")),
///         };
///         // Asks whether the lease is still held, such as before a step that costs much.
///         load.confirm().await?;
///         match fetched {
///             Ok(stock) => load.commit(stock).await.value,
///             Err(error) => return Err(load.fail(error).await),
///         }
///     }
///     Begun::Alone => fetch().await.unwrap(),
/// };
/// assert_eq!(stock, 17);
/// assert_eq!(cache.get("stock:42").await?, Some(17));
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
///
/// [`Request::begin`]: crate::cache::Request::begin
#[must_use = "a load that is dropped lets the next process load"]
pub struct Load<V> {
    asked: AskedKey<V>,
    lead: Lead<V>,
    guard: LeaseGuard,
    /// The epoch in which the lease was granted.
    granted: Epoch,
    /// The number of its flight, or its own.
    number: u64,
    grant: Grant,
    begun: LoadBegun,
    /// Held to the end of the load.
    _permit: Option<Permit>,
    /// Lets a shutdown wait for it.
    _token: TaskTrackerToken,
}

/// The answer of [`Request::begin`](crate::cache::Request::begin).
#[derive(Debug)]
#[must_use = "a load that is dropped lets the next process load"]
pub enum Begun<V> {
    /// The value is fresh, or another process has just loaded it. Or the backend does not answer,
    /// and this process [remembered](crate::cache::Builder::outage_memory) the value.
    Ready(Loaded<V>),
    /// The value is stale, or it is time to refresh it
    /// [early](crate::cache::Builder::early_refresh). With a load if this process is the one that
    /// refreshes.
    Stale(Loaded<V>, Option<Load<V>>),
    /// There is no value that may be served, and this process loads it.
    Load(Load<V>),
    /// The caller loads for itself, without a lease, and nothing is stored.
    /// [`Source::Degraded`] lists the reasons.
    Alone,
}

/// When a load began, by the clock and by the acts of this process, and in which outage.
#[derive(Clone, Copy)]
struct LoadBegun {
    at: Instant,
    mark: Option<Fill>,
    outage: Option<Outage>,
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Begins a load under the lease that was granted for it.
    pub(super) async fn granted(
        run: &Run<V>,
        held: &mut Held<V>,
        guard: LeaseGuard,
        grant: Grant,
        granted: Epoch,
    ) -> Self {
        debug!(fence = grant.fence(), "lease taken");
        let asked = run.asked.clone();
        let core = &asked.core;
        // A tag that ends from here on ends the value.
        let tagged = core.begin_tags(&asked.options).await;
        let previous = held.previous.as_ref().map(|(previous, _)| previous.clone());
        let lead = Lead::new(Some(guard.lease.clone()), previous, run.wants_new(), tagged);
        Self {
            lead,
            guard,
            granted,
            number: run.leader.id,
            grant,
            begun: asked.begin_load(),
            _permit: held.permit.take(),
            _token: core.begun.token(),
            asked,
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Completes when the lease is lost, at the [load
    /// limit](crate::cache::Builder::load_limit), or when a shutdown ends the loads. Another
    /// process may then load, and this value is most likely not stored.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing. The method can be called again.
    pub async fn lost(&self) {
        tokio::select! {
            () = self.guard.lost() => {}
            () = self.asked.core.abort.cancelled() => {}
        }
    }

    /// Renews the lease now, and so asks whether it is still held. Each act that changes the value
    /// ends the lease. So a caller that asked before this call may be given what the load has made
    /// so far.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if the lease is lost, or if an act of this process on the
    /// key is [deferred](Error::is_deferred). [`Backend`](crate::ErrorKind::Backend) if the backend
    /// did not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn confirm(&self) -> Result<(), Error> {
        let AskedKey { core, key, name, .. } = &self.asked;
        if core.writes.holds_back(name, self.guard.granted.fence) {
            return Err(Error::lost(&key.text));
        }
        self.guard.renew().await
    }

    /// Runs a future as a part of this load: loads that it asks for need no
    /// [permit](crate::cache::Builder::max_loads), so loads cannot wait for each other's permits.
    pub fn scope<F: Future>(&self, part: F) -> impl Future<Output = F::Output> {
        flight::within(self.number, part)
    }

    /// Stores the value, ends the lease, and pushes the value to the processes that wait. Returns
    /// what a caller of [`get_or_load`](crate::Cache::get_or_load) would get: if a newer value was
    /// stored meanwhile, that one.
    ///
    /// A value that is not stored is returned as well. Then it has [no time to
    /// live](Loaded::expires_in).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the value may or may not be stored.
    pub async fn commit(self, value: V) -> Loaded<V> {
        let core = self.asked.core.clone();
        core.failures.forget(&self.asked.key);
        let made = self.asked.made(value, self.begun, &self.lead);
        let (loaded, _) = Box::pin(self.commit_value(made)).await;
        core.counters.served(loaded.source());
        loaded
    }

    /// Ends the lease with a failure, and tells the processes that wait. Returns the error for the
    /// callers, with the time for which the key [backs off](crate::cache::Builder::after_failure).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease is released, and the others may not be told.
    pub async fn fail(self, error: impl Into<BoxError>) -> Error {
        let core = self.asked.core.clone();
        core.counters.failures.add();
        core.counters.failed.add();
        Box::pin(self.fail_with(Error::load(error))).await
    }
}

impl<V> Deref for Load<V> {
    type Target = Lead<V>;

    fn deref(&self) -> &Lead<V> {
        &self.lead
    }
}

impl<V> fmt::Debug for Load<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Load").field("key", &self.asked.key).finish_non_exhaustive()
    }
}

/// A loaded value as a hit gets it, its entry, and how long that is kept. `None` stores nothing.
type MadeValue<V> = (V, Entry, Option<Duration>);

/// What a load has made, if others may have it.
type Made<V> = Result<MadeValue<V>, Alone>;

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Loads under the lease, and commits.
    pub(super) async fn load_leased(&self, work: Work<V>, load: Box<Load<V>>) -> FlightEnd<V> {
        let granted = load.granted;
        let produced = self.produce(work, load.begun, &load.lead, Some(&load.guard), granted).await;
        // Before `close` stops the renewals: the lease is renewed until this turn has come.
        let _turn = self.turn().await;
        // In boxes, which do not stay during the load.
        match produced {
            Ok(Ok(made)) => {
                // Callers that join from here on get a look of their own.
                let committed = self.leader.begin_epoch();
                let (loaded, late) = Box::pin(load.commit_value(made)).await;
                let (epoch, late) = match late {
                    None => (committed, ForLate::Look),
                    Some(late) => (granted, late),
                };
                FlightEnd { late, ..FlightEnd::found(loaded, epoch) }
            }
            Ok(Err(why)) => {
                Box::pin(load.end_alone(why)).await;
                FlightEnd::alone(why)
            }
            Err(error) => FlightEnd::failed(Box::pin(load.fail_with(error)).await),
        }
    }

    /// Loads without a lease, for all callers of this process that wait, or for one without a
    /// flight. In an outage, the value is remembered until its end.
    pub(super) async fn load_unleased(&self, work: Work<V>, held: &mut Held<V>) -> FlightEnd<V> {
        let AskedKey { core, key, .. } = &self.asked;
        if let Some(error) = core.failures.backs_off_here(key) {
            core.counters.backed_off.add();
            return FlightEnd::failed(error);
        }
        if held.permit.is_none() {
            match Box::pin(self.permit()).await {
                Ok(permit) => held.permit = permit,
                Err(end) => return end,
            }
        }
        let previous = held.previous.as_ref().map(|(previous, _)| previous.clone());
        let begun = self.asked.begin_load();
        let number = core.tags.greatest.load(Ordering::Acquire);
        let tagged = Tagged { number, ..self.asked.options.tagged.clone() };
        let lead = Lead::new(None, previous, self.wants_new(), tagged);
        let produced = self.produce(work, begun, &lead, None, Epoch::END).await;
        match produced {
            Ok(Ok((value, entry, _))) => {
                // A load for its caller alone is of no use to others.
                let outage = begun.outage.filter(|_| !self.leader.is_alone());
                self.asked.remember(&value, entry, begun, &lead, outage);
                FlightEnd::for_all(Ok(FlightResult::Loaded(Loaded::degraded(value))))
            }
            Ok(Err(why)) => FlightEnd::alone(why),
            Err(error) => {
                let back_off = self.asked.back_off(&error, &lead, 0);
                FlightEnd::failed(self.asked.fails_alone(error, back_off, &lead))
            }
        }
    }

    /// Runs the loader, under this lease if there is one, and lands its head for the callers that
    /// joined before the epoch.
    async fn produce(
        &self,
        work: Work<V>,
        begun: LoadBegun,
        lead: &Lead<V>,
        guard: Option<&LeaseGuard>,
        epoch: Epoch,
    ) -> Result<Made<V>, Error> {
        let AskedKey { core, key, .. } = &self.asked;
        let is_counted = !self.asked.options.sharing.is_uncounted;
        if is_counted {
            core.counters.loads.add();
        }
        let produced = tokio::select! {
            biased;
            produced = loader::run(core, work, lead.clone(), self.leader.id) => {
                // The value may be whole at once. Its callers do not wait for the commit.
                if let (Ok(Produced::Value(_)), Some(head)) = (&produced, lead.0.head.get()) {
                    self.leader.land_head(Ok(head.clone()), epoch);
                }
                produced
            }
            // In a box, so that the future of a load stays small.
            never = Box::pin(self.serve_head(lead, guard, epoch)) => match never {},
        };
        let made = match produced {
            // A codec that panics fails the load.
            Ok(Produced::Value(value)) => {
                let made = AssertUnwindSafe(|| Ok(self.asked.made(value, begun, lead)));
                catch_unwind(made).map_err(|panic| loader::panicked(panic.as_ref()))
            }
            Ok(Produced::Alone(why)) => Ok(Err(why)),
            Err(error) => Err(error),
        };
        match &made {
            // It says nothing to others.
            Ok(Err(Alone::Reserved)) => {}
            Ok(_) => core.failures.forget(key),
            Err(_) => {
                core.counters.failures.add();
                // No more callers take the head of a value that will never be whole.
                if lead.0.head.get().is_some() {
                    self.leader.close_head();
                }
            }
        }
        made
    }

    /// Lands the head when it is announced, and admits the callers that join later.
    ///
    /// A late joiner may know of a change since the load began. Each act that changes the value
    /// ends the lease, so a lease that is held says that there was none.
    async fn serve_head(
        &self,
        lead: &Lead<V>,
        guard: Option<&LeaseGuard>,
        epoch: Epoch,
    ) -> Infallible {
        let head = lead.0.head.wait().await;
        let (asked, leader) = (&self.asked, &self.leader);
        leader.land_head(Ok(head.clone()), epoch);
        let Some(guard) = guard else { return pending().await };
        loop {
            leader.late_joiner().await;
            let (epoch, tagged) = (leader.begin_epoch(), lead.keeping().tagged.clone());
            let is_silent = asked.shard.breaker.is_open();
            let held = if is_silent { Ok(()) } else { Box::pin(guard.renew()).await };
            match held {
                Err(error) if error.kind() == ErrorKind::Lost => break,
                // The end of a tag takes no lease away.
                Ok(()) if !is_silent && !Box::pin(asked.core.are_current(&tagged)).await => break,
                // Without an answer, they are served as all callers are without a lease.
                Ok(()) | Err(_) => leader.land_head(Ok(head.clone()), epoch),
            }
        }
        debug!("the lease is lost or a tag has ended, so no more callers are served this load");
        leader.close_head();
        pending().await
    }
}

impl<V: Clone + Send + Sync + 'static> AskedKey<V> {
    fn begin_load(&self) -> LoadBegun {
        let at = Instant::now();
        let mark = self.core.copies.as_ref().map(|copies| copies.order.mark(&self.name, at));
        LoadBegun { at, mark, outage: self.shard.breaker.outage() }
    }

    /// Makes the entry of a loaded value. A value without an encoding stays as it is.
    fn made(&self, value: V, begun: LoadBegun, lead: &Lead<V>) -> MadeValue<V> {
        let (core, cost) = (&self.core, begun.at.elapsed());
        let mut keeping = lead.keeping().clone();
        let tagged = mem::take(&mut keeping.tagged);
        let (value, entry, windows) = match core.entry(&value, cost, tagged) {
            Ok((value, entry)) => {
                let windows = core.windows(&self.options, Some(&value), &keeping);
                (value, entry, windows)
            }
            Err(error) => {
                let words = "a value is returned and not stored";
                match core.unstorable.first() {
                    true => warn!(error = %Chain(&error), "{words}"),
                    false => debug!(error = %Chain(&error), "{words}"),
                }
                (value, Entry::uncacheable(cost), Windows::fresh(UNCACHEABLE_LIFE))
            }
        };
        let served = windows.fresh.saturating_add(windows.stale);
        advice::loaded(&core.short_lived, &core.settings.namespace, cost, served);
        let ttl = (!keeping.do_not_store).then(|| windows.kept());
        (value, entry.with_windows(windows), ttl)
    }

    /// Remembers a value for the later callers of this process, if the outage has not ended since
    /// its load began.
    fn remember(
        &self,
        value: &V,
        entry: Entry,
        begun: LoadBegun,
        lead: &Lead<V>,
        outage: Option<Outage>,
    ) {
        let (Some(outage), Some(mark)) = (outage, begun.mark) else { return };
        if lead.keeping().do_not_store {
            return;
        }
        // The value replaces the stored one, and its load began after its callers were told of
        // their fence.
        let replaced = lead.0.previous.as_ref().map_or(0, |previous| previous.fence);
        let entry = entry.with_fence(replaced.max(self.options.rules.least_fence));
        self.core.remember(&self.key, &self.shard, outage, mark, entry, value);
    }

    /// Notes a load that failed without a lease, or whose failure the backend may not know of.
    /// Returns the error for the callers.
    fn fails_alone(&self, error: Error, back_off: Option<BackOff>, lead: &Lead<V>) -> Error {
        let error = self.backing_off(error, back_off, lead);
        if let Some(back_off) = back_off {
            self.core.failures.fail_here(&self.key, &error, back_off);
        }
        error
    }

    /// Returns how the key backs off after one more failure, if it does. An outage may have hidden
    /// the failures of this process from the others.
    fn back_off(&self, error: &Error, lead: &Lead<V>, failed: u32) -> Option<BackOff> {
        let failed = failed.max(self.core.failures.failed_here(&self.key));
        let (failures, random) = (failed.saturating_add(1), random::fraction());
        let own_rule = lead.keeping().after_failure;
        let wait = match own_rule.or_else(|| self.core.failures.policy(error)) {
            Some(rule) => rule.wait(failures, random)?,
            None if self.options.sharing.fails_alone => return None,
            None => {
                // Without a rule or an old value, later callers do not get this failure.
                let left = lead.0.previous.as_ref()?.left_on_error()?;
                let wait = AfterFailure::BACK_OFF.wait(failures, random)?;
                whole_millis(wait.min(left))?
            }
        };
        Some(BackOff { wait, failures })
    }

    /// Notes that the key backs off after this error, if it does, and returns the error with that.
    fn backing_off(&self, error: Error, back_off: Option<BackOff>, lead: &Lead<V>) -> Error {
        let Some(BackOff { wait, failures }) = back_off else { return error };
        if let Some(previous) = &lead.0.previous {
            self.leave_alone(previous.fence, wait);
        }
        let (name, words) = (&self.name, "a load failed, and its key backs off");
        match self.core.failures.warned.first() {
            true => warn!(?name, ?wait, failures, error = %Chain(&error), "{words}"),
            false => debug!(?name, ?wait, failures, error = %Chain(&error), "{words}"),
        }
        error.with_retry_after(wait)
    }

    /// Lets this process serve the entry with this fence in place of a load for a time, without
    /// asking for it.
    pub(super) fn leave_alone(&self, fence: u64, wait: Duration) {
        for what in [EntryNote::BacksOff, EntryNote::Refreshed] {
            self.core.refreshes.note(what, &self.key, fence, wait);
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Load<V> {
    /// Commits a value that was loaded. Returns it for its callers. Callers that joined after the
    /// lease was granted may have to be served in another way.
    async fn commit_value(self, (value, entry, ttl): MadeValue<V>) -> (Loaded<V>, Option<ForLate>) {
        let ended = Instant::now();
        let Self { asked, lead, guard, begun, .. } = &self;
        let AskedKey { core, key, shard, .. } = asked;
        let mark = core.copies.as_ref().map(|copies| copies.order.mark(&asked.name, ended));
        let tagged = lead.keeping().tagged.clone();
        let (answer, are_current) =
            tokio::join!(self.commit_entry(&entry, ttl), core.are_current(&tagged));
        // A write that is deferred takes no lease away.
        let are_current = are_current && !core.writes.holds_back(&asked.name, guard.granted.fence);
        let is_value = entry.kind == EntryKind::Value;
        if !is_value {
            core.counters.unstorable.add();
        }
        let is_stored = matches!(answer, Ok(Committed::Stored)) && are_current && is_value;
        let record = Record::written(guard.granted.fence, &entry, ended, is_stored);
        let led = Loaded { value, source: Source::Led, record };
        // They may know of what has ended the value.
        let current = if are_current { None } else { Some(ForLate::Look) };
        match answer {
            Ok(Committed::Stored) => {
                self.stored(mark.filter(|_| are_current), entry, &led.value);
                self.guard.settled();
                (led, current)
            }
            Ok(Committed::Pushed) => {
                ttl.iter().for_each(|_| core.counters.unstored.add());
                core.drop_copy(key);
                self.guard.settled();
                (led, current)
            }
            Ok(refused @ (Committed::Newer(_) | Committed::Refused)) => {
                let newer = self.refused(refused).await;
                newer.map_or((led, Some(ForLate::Look)), |newer| (newer, current))
            }
            Err(error) => {
                core.counters.unstored.add();
                shard.breaker.failed(&error, &core.counters);
                asked.remember(&led.value, entry, *begun, lead, shard.breaker.outage());
                (led, Some(ForLate::Degraded))
            }
        }
    }

    /// Notes an entry that was stored, and keeps a copy of it in place of the last one.
    fn stored(&self, mark: Option<Fill>, entry: Entry, value: &V) {
        let AskedKey { core, key, .. } = &self.asked;
        if !self.asked.options.sharing.is_uncounted {
            core.counters.stored.add();
        }
        if self.lead.keeping().is_unchanged {
            core.counters.unchanged.add();
        }
        let (Some(copies), Some(mark)) = (&core.copies, mark) else { return core.drop_copy(key) };
        let mut entry =
            Entry { age: Some(Duration::ZERO), ..entry.with_fence(self.guard.granted.fence) };
        let size = core.take_payload(&mut entry).len();
        copies.note(mark, key, (entry, size), value, false, &self.asked.options.rules);
    }

    /// Notes a commit that was refused. Returns the value of the newer entry that it has found, if
    /// that may be served.
    async fn refused(&self, answer: Committed) -> Option<Loaded<V>> {
        let AskedKey { core, key, name, .. } = &self.asked;
        debug!("commit refused: the lease was lost, or the key invalidated or replaced");
        core.counters.refused.add();
        core.drop_copy(key);
        let Committed::Newer(entry) = answer else { return None };
        let mut answer = Ok(Some(entry));
        core.judge(key, &mut answer).await;
        let newer = core.decide(name, &self.asked.options.rules, &mut answer);
        Some(Loaded { source: Source::Received, ..newer.value()? })
    }

    /// Ends the lease of a load that cannot be shared. The next process leads, or the mark of an
    /// uncacheable name is committed.
    async fn end_alone(self, why: Alone) {
        if why != Alone::Uncacheable {
            // Without an answer, the lease is released late.
            let _ = self.guard.release().await;
            return;
        }
        let entry = Entry::uncacheable(self.begun.at.elapsed());
        let is_stored = !self.lead.keeping().do_not_store;
        let answer = self.commit_entry(&entry, is_stored.then_some(UNCACHEABLE_LIFE)).await;
        if let Ok(Committed::Stored | Committed::Pushed) = answer {
            self.guard.settled();
        }
    }

    async fn commit_entry(
        &self,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        self.guard.close();
        let AskedKey { core, key, shard, name, .. } = &self.asked;
        let fence = self.guard.granted.fence;
        let backend = core.engine.backend.as_ref();
        let commit = async |limit| {
            let committed = core.store.commit(&self.guard.release.claim, &self.grant, entry, ttl);
            core.counted(answered_by(backend, limit, committed).await)
        };
        let first = Instant::now();
        let mut answer = commit(core.try_limit).await;
        if let Some(limit) = self.asked.second_try(first, &answer) {
            answer = tokio::select! {
                biased;
                answer = commit(limit) => answer,
                () = shard.breaker.opened() => Err(silence()),
            };
        }
        core.committed_local(key, name, fence);
        if let Ok(committed) = &answer {
            let is_made = matches!(committed, Committed::Stored | Committed::Pushed);
            shard.breaker.answered(is_made, &core.counters);
            if matches!(committed, Committed::Stored) {
                core.refreshes.note(EntryNote::Stored, name, fence, Duration::MAX);
            }
        }
        answer
    }

    /// Ends a lease whose load failed. Tells the processes that wait, and lets the key back off.
    /// Returns the error for the callers.
    async fn fail_with(self, error: Error) -> Error {
        self.guard.close();
        let Self { asked, lead, guard, grant, .. } = self;
        let core = &asked.core;
        let back_off = asked.back_off(&error, &lead, grant.failures());
        let failure = core.failures.told(guard.granted.fence, &error, back_off);
        let told = core.store.fail(&guard.release.claim, &failure, back_off);
        let Ok(Ok(is_of_key)) = timeout(core.try_limit, told).await else {
            return asked.fails_alone(error, back_off, &lead);
        };
        guard.settled();
        // A failure whose lease was lost says nothing of the key.
        if !is_of_key {
            return error;
        }
        core.failures.forget(&asked.key);
        asked.backing_off(error, back_off, &lead)
    }
}
