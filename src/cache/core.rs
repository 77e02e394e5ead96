//! The parts that the clones of a cache share.

use std::{error::Error as StdError, mem, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Codec, EarlyRefresh, Loaded, Source,
    activity::Activity,
    acts::Invalidations,
    breaker::{Outage, Shard},
    failures::Failures,
    freshness::{self, RefreshDelay, Rules, Window},
    lead::Keeping,
    local::{Fill, LocalRow, LocalStore, Watches},
    many,
    outcome::{Made, Outcome, Record},
    previous::Previous,
    refresh::Refreshes,
    settings::{IsNegative, OnFull, Options, Settings},
    tags::{Answered, Tags},
};
use crate::{
    backend::{Entry, EntryKind, Store, Tagged, Windows, answered_by},
    error::{BackendError, BackendErrorKind, BoxError, Chain, Error, ErrorKind},
    flight::Group,
    key::{Family, Key, Name},
    lease::Engine,
    meter::Meter,
    observe::{Counters, Once, Stats},
    shards::Shards,
};

/// A permit to load, which the keys of one call share.
pub(super) type Permit = Arc<OwnedSemaphorePermit>;

pub(super) struct Core<V> {
    pub(super) store: Arc<dyn Store>,
    pub(super) engine: Arc<Engine>,
    pub(super) codec: Arc<dyn Codec<V>>,
    /// The tag of the entries of this schema and codec.
    pub(super) tag: u32,
    pub(super) settings: Settings,
    /// How long one try of a claim or a write may take.
    pub(super) try_limit: Duration,
    pub(super) flights: Group<Outcome<V>>,
    /// Cancelled when the loads under way are to end.
    pub(super) abort: CancellationToken,
    /// The loads under way that their callers make themselves.
    pub(super) begun: TaskTracker,
    /// The permits of loads under way.
    pub(super) loads: Arc<Semaphore>,
    pub(super) counters: Arc<Counters>,
    pub(super) meter: Meter,
    pub(super) activity: Activity,
    pub(super) shards: Shards<Shard>,
    pub(super) refreshes: Refreshes,
    pub(super) failures: Failures,
    pub(super) copies: Option<Arc<LocalStore<V>>>,
    pub(super) tags: Arc<Tags>,
    pub(super) watches: Watches,
    pub(super) invalidations: Invalidations,
    pub(super) is_negative: Option<Box<IsNegative<V>>>,
    /// Warned of once, and counted from then on.
    pub(super) undecodable: Once,
    pub(super) unstorable: Once,
    pub(super) short_lived: Once,
}

/// The use of an answer of the backend.
pub(super) enum Decision<V> {
    /// The value is served.
    Served(Loaded<V>),
    /// The value is served, and it is time to refresh it. It is still fresh, or stale.
    Refresh(Loaded<V>, Arc<Previous<V>>),
    /// The value is loaded under the lease. This entry may be served if the load fails.
    Old(Arc<Previous<V>>),
    /// There is no entry that can be read, so the value is loaded under the lease. `seen` is the
    /// fence of the entry, or 0 if there is none.
    Miss { seen: u64 },
    /// The load cannot be shared, so no caller waits for another. `seen` is the fence of the mark.
    Uncacheable { seen: u64 },
    /// There is no answer.
    Unanswered(BackendError),
}

impl<V> Decision<V> {
    /// Returns the value that is served, if there is one.
    pub(super) fn value(self) -> Option<Loaded<V>> {
        match self {
            Self::Served(loaded) | Self::Refresh(loaded, _) => Some(loaded),
            _ => None,
        }
    }

    /// Returns the value that is served, also one that is kept for failures only.
    pub(super) fn value_or_fallback(self) -> Option<Loaded<V>>
    where
        V: Clone + 'static,
    {
        match self {
            Self::Old(previous) => previous.fallback(),
            decision => decision.value(),
        }
    }
}

/// Lets go of what this process has of a key, when a change of it ends. Also after an error or if
/// the caller goes away, because the change may have happened.
struct Changed<'a, V> {
    core: &'a Core<V>,
    key: &'a Key,
}

impl<V> Drop for Changed<'_, V> {
    fn drop(&mut self) {
        self.core.flights.detach(self.key);
        self.core.failures.forget(self.key);
        self.core.forget_local(self.key);
    }
}

impl<V> Core<V> {
    pub(super) fn name(&self, key: &Key) -> Result<Name, Error> {
        let settings = &self.settings;
        let name = Name::new(&settings.namespace, Family::Cache, key, settings.max_key)?;
        Ok(name.with_schema(settings.schema))
    }

    /// Returns what is published of the cache.
    #[cfg(feature = "metrics")]
    pub(super) fn reading(&self) -> crate::meter::Reading {
        let open = self.shards.count(|shard| shard.breaker.is_open());
        let mut gauges = vec![
            ("bellwether_leases", self.engine.stats().held as f64),
            ("bellwether_breaker_open", open as f64),
        ];
        let trust = self.copies.as_ref().and_then(|copies| copies.trust());
        if let Some((lag, is_trusted)) = trust {
            gauges.push(("bellwether_local_trusted", f64::from(u8::from(is_trusted))));
            gauges.extend(lag.map(|lag| ("bellwether_local_staleness_seconds", lag.as_secs_f64())));
        }
        (serde_json::json!(self.stats()), gauges)
    }

    pub(super) fn stats(&self) -> Stats {
        self.copies.iter().for_each(|copies| copies.count_trust());
        self.counters.snapshot(self.flights.len())
    }

    /// Returns the options of a request: its own, or those of the cache.
    pub(super) fn options<'a>(&'a self, own: Option<&'a Options>) -> &'a Options {
        own.unwrap_or(&self.settings.options)
    }

    /// Lets go of the copy of a value, because there is a newer entry.
    pub(super) fn drop_copy(&self, key: &Key) {
        self.copies.iter().for_each(|copies| copies.remove(key));
    }

    /// Lets go of the copies of a value in this process.
    pub(super) fn forget_local(&self, key: &Key) {
        if self.copies.is_none() && self.watches.are_none() {
            return;
        }
        if let Ok(name) = self.name(key) {
            self.copies.iter().for_each(|copies| copies.forget(key, &name));
            self.watches.tell_act(key, &name);
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Returns the part of the backend that keeps a name.
    pub(super) fn shard(&self, name: &Name) -> Arc<Shard> {
        self.shards.of(self.store.shard(name))
    }

    /// Decides what an answer about a name is good for, with the schema and the codec of this
    /// process, and the rules of the caller.
    pub(super) fn decide(&self, name: &Name, rules: &Rules, answer: Answered) -> Decision<V> {
        match answer {
            Ok(Some(entry)) => self.decide_on(name, rules, entry),
            Ok(None) => Decision::Miss { seen: 0 },
            Err(error) => self.no_entry(name, error),
        }
    }

    /// Decides what an entry is good for.
    fn decide_on(&self, name: &Name, rules: &Rules, mut entry: Entry) -> Decision<V> {
        match entry.kind {
            EntryKind::Value => {}
            EntryKind::Uncacheable => return Decision::Uncacheable { seen: entry.fence },
            EntryKind::Ended => return Decision::Miss { seen: entry.fence },
        }
        let is_ours = entry.tag == self.tag;
        let is_for_loader_only = is_ours && self.codec.is_for_loader_only(&entry.payload);
        let rules = if is_for_loader_only { &rules.without_stale() } else { rules };
        let delay = || self.refreshes.delay(name, entry.fence);
        let window = freshness::decide(&entry, rules, delay);
        if is_ours && matches!(window, Window::OnError | Window::Over) {
            let previous = Previous::new(entry, rules, &self.codec, None, Source::Stale);
            return Decision::Old(Arc::new(previous));
        }
        if let Some(value) = self.decoded(name, &mut entry) {
            let is_stale = matches!(window, Window::Stale | Window::Deferred);
            let source = if is_stale { Source::Stale } else { Source::Hit };
            let loaded = Loaded { value, source, record: Record::of(&entry) };
            if !matches!(window, Window::Early | Window::Stale) {
                return Decision::Served(loaded);
            }
            let value = Some(loaded.value.clone());
            let previous = Previous::new(entry, rules, &self.codec, value, Source::Stale);
            return Decision::Refresh(loaded, Arc::new(previous));
        }
        Decision::Miss { seen: entry.fence }
    }

    /// Takes the value out of an entry. Returns `None` if it cannot be decoded.
    fn decoded(&self, name: &Name, entry: &mut Entry) -> Option<V> {
        let decoded = match entry.tag == self.tag {
            true => self.codec.decode(mem::take(&mut entry.payload)),
            false => Err("it has another schema or codec; give each type its own namespace".into()),
        };
        let warn = |error: &BoxError| {
            self.undecodable(name, &**error, "an entry cannot be decoded and counts as missing");
        };
        decoded.inspect_err(warn).ok()
    }

    /// Decides about an error. Stored bytes that are no entry count as missing.
    fn no_entry(&self, name: &Name, error: BackendError) -> Decision<V> {
        self.counters.backend_errors.add();
        if error.kind() != BackendErrorKind::Foreign {
            return Decision::Unanswered(error);
        }
        self.undecodable(name, &error, "the stored bytes are no entry and count as missing");
        Decision::Miss { seen: 0 }
    }

    /// Counts stored bytes that are of no use. The first time, the log warns of them.
    fn undecodable(&self, name: &Name, error: &(dyn StdError + 'static), words: &str) {
        let error = Chain(error);
        match self.undecodable.first() {
            true => tracing::warn!(?name, %error, "{words}"),
            false => tracing::debug!(?name, %error, "{words}"),
        }
        self.counters.undecodable.add();
    }

    /// Returns a loaded value as a hit gets it. One without an encoding stays as it is.
    pub(super) fn made(&self, value: V) -> Made<V> {
        match self.round_trip(&value) {
            Ok((value, payload)) => Made { value, payload: Some(Ok(payload)) },
            Err(error) => Made { value, payload: Some(Err(error)) },
        }
    }

    /// Returns a value as a hit gets it, and its bytes.
    pub(super) fn round_trip(&self, value: &V) -> Result<(V, Bytes), Error> {
        let payload = self.payload(value)?;
        let decoded = self.codec.decode(payload.clone()).map_err(|error| {
            let words = "the codec could not decode the value that it had encoded";
            Error::with_source(ErrorKind::Codec, words, error)
        })?;
        Ok((decoded, payload))
    }

    pub(super) fn entry(
        &self,
        made: &Made<V>,
        cost: Duration,
        tagged: Tagged,
    ) -> Result<Entry, Error> {
        let payload = made.payload.clone().unwrap_or_else(|| self.payload(&made.value))?;
        self.tagged(Entry::value(self.tag, cost, payload), tagged)
    }

    pub(super) fn tagged(&self, entry: Entry, mut tagged: Tagged) -> Result<Entry, Error> {
        if !self.tags.is_on && tagged.tags.is_empty() {
            return Ok(entry);
        }
        tagged.tags.sort_unstable();
        tagged.tags.dedup();
        self.tags.check(&tagged.tags)?;
        Ok(entry.with_tags(tagged))
    }

    fn payload(&self, value: &V) -> Result<Bytes, Error> {
        let payload = self.codec.encode(value).map_err(|error| {
            Error::with_source(ErrorKind::Codec, "the codec could not encode the value", error)
        })?;
        let (size, limit) = (payload.len(), self.settings.max_value);
        if size > limit {
            let words =
                format!("value of {size} bytes: shorten it, or raise the limit of {limit} bytes");
            return Err(Error::new(ErrorKind::Codec, words));
        }
        Ok(payload)
    }

    /// Counts an answer of the backend that is an error.
    pub(super) fn counted<T>(&self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        if answer.is_err() {
            self.counters.backend_errors.add();
        }
        answer
    }

    /// Awaits a change of what is stored, no longer than one try may take.
    pub(super) async fn change<T>(
        &self,
        key: &Key,
        change: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let (backend, limit) = (self.engine.backend().as_ref(), self.try_limit);
        let _changed = Changed { core: self, key };
        // Its outcome may stay unknown.
        self.forget_local(key);
        self.counted(answered_by(backend, limit, change).await)
    }

    pub(super) fn local(&self, key: &str, options: &Options) -> Option<Loaded<V>> {
        let row = self.local_row(key, options)?;
        Some(Loaded { value: row.value.clone(), source: Source::Local, record: row.record })
    }

    #[inline]
    pub(super) fn local_row(&self, key: &str, options: &Options) -> Option<Arc<LocalRow<V>>> {
        let copies = self.copies.as_ref()?;
        let delay = |fence| match self.name(&key.into()) {
            Ok(name) => self.refreshes.delay(&name, fence),
            Err(_) => RefreshDelay::NONE,
        };
        let row = copies.get(key, &options.rules, delay)?;
        if row.fence() < options.least_fence {
            return None;
        }
        self.meter.sample_local_age(|| copies.age_of_copy(&row));
        Some(row)
    }

    /// Lets go of what the copies in this process have from before a commit under this fence.
    pub(super) fn committed_local(&self, name: &Name, fence: u64) {
        if let Some(copies) = &self.copies {
            copies.drop_older(name.prefix(), fence);
        }
        self.watches.tell_commit(name, fence);
    }

    /// Asks the backend for an entry, and decides what it is good for. Keeps a copy of it.
    pub(super) async fn read(&self, key: &Key, name: &Name, rules: &Rules) -> Decision<V> {
        let asked = self.begin_read(name, Instant::now());
        let mut answer = self.store.read(name, self.needs_age(rules)).await;
        self.judge(key, &mut answer).await;
        self.end_read((key, name), rules, asked, answer)
    }

    /// Reads some entries with one question, as [`read`](Self::read) does.
    pub(super) async fn read_many<'a>(
        &'a self,
        keys: &'a [&'a Key],
        names: &'a [Name],
        rules: &'a Rules,
    ) -> impl Iterator<Item = Decision<V>> + 'a {
        let now = Instant::now();
        let asked: Vec<_> = names.iter().map(|name| self.begin_read(name, now)).collect();
        let mut answers = match self.store.get_many(names, self.needs_age(rules)).await {
            Ok(answers) => answers,
            Err(error) => names.iter().map(|_| Err(error.clone())).collect(),
        };
        self.judge_all(keys, &mut answers).await;
        let each = keys.iter().copied().zip(names).zip(asked).zip(answers);
        let decide =
            |(((key, name), asked), answer)| self.end_read((key, name), rules, asked, answer);
        each.map(decide)
    }

    /// Returns whether entries are read with their age, if their windows do not ask for it.
    fn needs_age(&self, rules: &Rules) -> bool {
        let has_tier = self.copies.as_ref().is_some_and(|copies| copies.is_tier());
        has_tier || rules.replaces || rules.aged || !matches!(rules.early, EarlyRefresh::Off)
    }

    /// Notes what this process was told of a name before a load or a commit.
    pub(super) fn mark(&self, name: &Name) -> Option<Fill> {
        self.copies.as_ref().map(|copies| copies.mark(name))
    }

    fn begin_read(&self, name: &Name, now: Instant) -> Option<Fill> {
        self.copies.as_ref().map(|copies| copies.begin(self.store.as_ref(), name, now))
    }

    fn end_read(
        &self,
        (key, name): (&Key, &Name),
        rules: &Rules,
        asked: Option<Fill>,
        answer: Answered,
    ) -> Decision<V> {
        let Some((copies, asked)) = self.copies.as_ref().zip(asked) else {
            return self.decide(name, rules, answer);
        };
        let seen = answer.as_ref().ok().and_then(Option::as_ref).map(|entry| self.seen(entry));
        let decision = self.decide(name, rules, answer);
        match (seen, &decision) {
            (Some(seen), Decision::Served(loaded)) => {
                let is_hit = loaded.source == Source::Hit;
                copies.note(asked, key, seen, || Some(loaded.value.clone()), is_hit, rules);
            }
            (Some(seen), Decision::Refresh(loaded, _)) => {
                copies.note(asked, key, seen, || Some(loaded.value.clone()), false, rules);
            }
            (Some(seen), Decision::Old(previous)) => {
                copies.note(asked, key, seen, || previous.value(), false, rules);
            }
            (Some(_), _) => self.drop_copy(key),
            (None, Decision::Unanswered(_)) => {}
            (None, _) => copies.missed(key),
        }
        decision
    }

    /// Returns what this process keeps of an entry beside its value, and the size of that.
    pub(super) fn seen(&self, entry: &Entry) -> (Entry, usize) {
        let is_for_loader_only = self.codec.is_for_loader_only(&entry.payload);
        let (mut entry, size) = entry.without_payload();
        if let Some(windows) = entry.windows.as_mut().filter(|_| is_for_loader_only) {
            *windows = Windows::fresh(windows.fresh);
        }
        (entry, size)
    }

    /// Decides what the value is good for that this process remembers in an outage, if it does.
    pub(super) fn recall(
        &self,
        key: &Key,
        name: &Name,
        rules: &Rules,
        outage: Outage,
    ) -> Option<Decision<V>> {
        let (row, entry) = self.copies.as_ref()?.recall(key, outage)?;
        let (value, delay) = (row.value.clone(), || self.refreshes.delay(name, entry.fence));
        let source = Source::Degraded;
        Some(match freshness::decide(&entry, rules, delay) {
            Window::OnError | Window::Over => {
                let old = Previous::new(entry, rules, &self.codec, Some(value), source);
                Decision::Old(Arc::new(old))
            }
            _ => Decision::Served(Loaded { value, source, record: Record::of(&entry) }),
        })
    }

    /// Returns the windows of a value with these options, that its loader wants to be kept so.
    pub(super) fn windows(
        &self,
        options: &Options,
        own: Option<Windows>,
        keeping: &Keeping,
    ) -> Windows {
        self.tags.limit(self.settings.windows(options, own, keeping))
    }

    pub(super) fn negative_windows(&self, value: &V) -> Option<Windows> {
        let is_negative = self.is_negative.as_ref()?;
        is_negative(value).then(|| Windows::fresh(self.settings.negative_ttl))
    }

    /// Waits for a permit to load in this process, as long as the options allow it.
    pub(super) async fn permit(&self, options: &Options) -> Result<Permit, Error> {
        let granted = match options.sharing.on_full {
            OnFull::Queue => {
                let acquired =
                    async { Some(Arc::new(self.loads.clone().acquire_owned().await.ok()?)) };
                let shared = many::permit(options.batch.as_deref(), acquired);
                timeout(options.wait_limit, shared).await.ok().flatten()
            }
            OnFull::Pass | OnFull::Refuse => self.try_permit(options),
        };
        granted.ok_or_else(|| {
            let loads = self.settings.max_loads;
            let words = format!("{loads} loads are under way: ask later, or raise `max_loads`");
            Error::new(ErrorKind::Overloaded, words)
        })
    }

    /// Returns a permit to load in this process, if there is one at once.
    pub(super) fn try_permit(&self, options: &Options) -> Option<Permit> {
        let acquired = async { Some(Arc::new(self.loads.clone().try_acquire_owned().ok()?)) };
        many::permit(options.batch.as_deref(), acquired).now_or_never().flatten()
    }
}
