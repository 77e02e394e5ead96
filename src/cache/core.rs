//! The parts that the clones of a cache share.

use std::{
    sync::{Arc, Once, atomic::AtomicBool},
    time::Duration,
};

use tokio::{sync::Semaphore, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

#[cfg(feature = "http")]
use super::AfterFailure;
use super::{
    Codec,
    activity::Activity,
    breaker::Shard,
    failures::Failures,
    lead::Keeping,
    local::{LocalStore, Watches},
    member::Permit,
    notes::{EntryNote, Invalidations, Refreshes},
    outage::{Deferral, DeferredWrites, WriteTarget},
    outcome::Outcome,
    settings::{IsNegative, Options, Settings},
    tags::Tags,
    unencoded::FreshValues,
};
use crate::{
    backend::{Edit, Entry, Store, TagEnd, Tagged, Tap, Windows, answered_by},
    error::{BackendError, Error, ErrorKind},
    flight::Flights,
    key::{Family, Key, Name},
    lease::Engine,
    meter::Meter,
    observe::{Counters, Rarely, Stats},
    random,
    shards::Shards,
};

pub(crate) struct Core<V> {
    pub(super) store: Arc<dyn Store>,
    pub(super) engine: Arc<Engine>,
    pub(super) codec: Arc<dyn Codec<V>>,
    /// The tag of the entries of this schema and codec.
    pub(super) tag: u32,
    pub(crate) settings: Settings,
    /// How long one try of a claim or a write may take.
    pub(super) try_limit: Duration,
    /// How long a fence is kept. It outlives the lease by a grace: a load whose lease ended
    /// unnoticed may still be committed in it, if no other load began.
    pub(super) fence_life: Duration,
    pub(super) flights: Arc<Flights<Outcome<V>>>,
    /// Cancelled when the loads under way are to end.
    pub(super) abort: CancellationToken,
    /// The flights, refreshes and loads that are under way.
    pub(super) begun: TaskTracker,
    pub(super) loads: Arc<Semaphore>,
    pub(crate) counters: Arc<Counters>,
    pub(super) meter: Meter,
    pub(super) activity: Activity,
    pub(super) shards: Shards<Shard>,
    pub(super) refreshes: Refreshes,
    pub(super) failures: Failures,
    pub(super) copies: Option<Arc<LocalStore<V>>>,
    /// The values of a cache for one process.
    pub(super) fresh_values: Option<FreshValues<V>>,
    pub(super) tags: Arc<Tags>,
    /// The writes that failed while the backend was away.
    pub(super) writes: Arc<DeferredWrites>,
    pub(super) watches: Watches,
    pub(super) invalidations: Invalidations,
    pub(super) is_negative: Option<Box<IsNegative<V>>>,
    /// All reads ask for the age: there is a tier, or an entry with windows was read.
    pub(super) asks_age: AtomicBool,
    /// Counted, and warned of now and then.
    pub(super) undecodable: Rarely,
    pub(super) unstorable: Rarely,
    pub(super) short_lived: Once,
}

/// Lets go of what this process has of a key, when a change of it ends, however it does.
pub(super) struct Changed<'a, V> {
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
        let mut name = Name::new(&settings.namespace, Family::Cache, key, settings.max_key)?;
        name.schema = settings.schema;
        Ok(name)
    }

    /// Returns what is published of the cache.
    #[cfg(feature = "metrics")]
    pub(super) fn reading(&self) -> crate::meter::Reading {
        let open = self.shards.count(|shard| shard.breaker.is_open());
        let mut gauges = vec![
            ("bellwether_leases", self.engine.stats().held as f64),
            ("bellwether_breaker_open", open as f64),
        ];
        gauges.extend(self.engine.connection_gauges());
        if let Some(copies) = &self.copies {
            let (bytes, capacity) = copies.fill();
            gauges.push(("bellwether_local_bytes", bytes as f64));
            gauges.push(("bellwether_local_capacity_bytes", capacity as f64));
        }
        let trust = self.copies.as_ref().and_then(|copies| copies.trust());
        if let Some((lag, is_trusted)) = trust {
            gauges.push(("bellwether_local_trusted", f64::from(u8::from(is_trusted))));
            gauges.extend(lag.map(|lag| ("bellwether_local_staleness_seconds", lag.as_secs_f64())));
        }
        (serde_json::json!(self.stats()), gauges)
    }

    pub(super) fn stats(&self) -> Stats {
        self.copies.iter().for_each(|copies| copies.count_trust());
        self.counters.snapshot(self.flights.len(), self.writes.len())
    }

    /// Returns the rule by which a key backs off after this error, if the cache has one.
    #[cfg(feature = "http")]
    pub(crate) fn backs_off_after(&self, error: &Error) -> Option<AfterFailure> {
        self.failures.policy(error).filter(|rule| *rule != AfterFailure::LoadAgain)
    }

    /// Lets go of the copy of a value, because there is a newer entry.
    pub(super) fn drop_copy(&self, key: &Key) {
        self.copies.iter().for_each(|copies| copies.remove(key));
    }

    /// Lets go of the copies of a value in this process.
    pub(super) fn forget_local(&self, key: &Key) {
        if self.copies.is_none() && self.fresh_values.is_none() && self.watches.are_none() {
            return;
        }
        if let Ok(name) = self.name(key) {
            if let Some(values) = &self.fresh_values {
                values.forget(key, &name);
            }
            self.copies.iter().for_each(|copies| copies.forget(key, &name));
            self.watches.each(|watch| watch.acted(key, &name));
        }
    }
}

impl<V: Clone + Send + Sync + 'static> Core<V> {
    /// Returns a value as a hit gets it, and its entry.
    pub(super) fn entry(
        &self,
        value: &V,
        cost: Duration,
        mut tagged: Tagged,
    ) -> Result<(V, Entry), Error> {
        let payload = self.codec.encode(value).map_err(|error| {
            Error::with_source(ErrorKind::Codec, "the codec could not encode the value", error)
        })?;
        let (size, limit) = (payload.len(), self.settings.max_value);
        if size > limit {
            let words =
                format!("value of {size} bytes: shorten it, or raise the limit of {limit} bytes");
            return Err(Error::new(ErrorKind::Codec, words));
        }
        let decoded = self.codec.decode(payload.clone()).map_err(|error| {
            let words = "the codec could not decode the value that it had encoded";
            Error::with_source(ErrorKind::Codec, words, error)
        })?;
        let entry = Entry::value(self.tag, cost, payload);
        if !self.tags.is_on && tagged.tags.is_empty() {
            return Ok((decoded, entry));
        }
        tagged.tags.sort_unstable();
        tagged.tags.dedup();
        self.tags.check(&tagged.tags)?;
        Ok((decoded, entry.with_tags(tagged)))
    }

    pub(super) fn counted<T>(&self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        if answer.is_err() {
            self.counters.backend_errors.add();
        }
        answer
    }

    /// Awaits an operation of the backend, no longer than one try may take.
    pub(super) async fn in_time<T>(
        &self,
        operation: impl Future<Output = Result<T, BackendError>>,
    ) -> Result<T, BackendError> {
        let backend = self.engine.backend.as_ref();
        self.counted(answered_by(backend, self.try_limit, operation).await)
    }

    /// Begins a change of a key.
    pub(super) fn changing<'a>(&'a self, key: &'a Key) -> Changed<'a, V> {
        // Its outcome may stay unknown.
        self.forget_local(key);
        Changed { core: self, key }
    }

    /// Changes what is stored, behind what is deferred of the name. Returns the fence of the
    /// change, or 0 if there was none.
    pub(super) async fn edit(&self, key: &Key, name: &Name, edit: &Edit) -> Result<u64, Error> {
        let _changed = self.changing(key);
        let answer = match self.writes_repeated(name).await {
            Ok(()) => self.in_time(self.store.edit(name, edit, self.fence_life)).await,
            Err(error) => Err(error),
        };
        let fence = match answer {
            Ok(fence) => fence,
            Err(error) => {
                let Some(end) = deferred_as(edit) else { return Err(error.into()) };
                return Err(self.deferred(WriteTarget::Name(name.clone()), end, error));
            }
        };
        if fence > 0 && matches!(edit, Edit::Put(..) | Edit::Touch { .. }) {
            self.refreshes.note(EntryNote::Stored, name, fence, Duration::MAX);
        }
        Ok(fence)
    }

    /// Waits until the writes of a name are repeated that are deferred.
    ///
    /// # Errors
    ///
    /// The reason why that failed. The backend counts as away for the name.
    pub(super) async fn writes_repeated(&self, name: &Name) -> Result<(), BackendError> {
        if self.writes.is_empty() {
            return Ok(());
        }
        // In a box, which is rarely needed.
        Box::pin(self.writes.repeated(&WriteTarget::Name(name.clone()))).await
    }

    /// Defers a write that failed, if the backend is away. Returns the error for its caller.
    pub(super) fn deferred(&self, target: WriteTarget, end: TagEnd, error: BackendError) -> Error {
        match self.writes.defer(target, end, &error) {
            Deferral::Refused => error.into(),
            Deferral::Noted => Error::from(error).deferred(),
            Deferral::Full => {
                // All that is here may be older.
                self.copies.iter().for_each(|copies| copies.forget_all());
                self.flights.detach_all();
                self.watches.each(Tap::lost);
                error.into()
            }
        }
    }

    /// Lets go of what the copies in this process have from before a commit under this fence.
    pub(super) fn committed_local(&self, key: &Key, name: &Name, fence: u64) {
        if let Some(copies) = &self.copies {
            copies.drop_older(&key.text, &name.prefix, fence);
        }
        if let Some(values) = &self.fresh_values {
            values.forget(key, name);
        }
        self.watches.each(|watch| watch.changed(&name.prefix, fence));
    }

    /// Returns the windows of a value with these options, that its loader wants to be kept so. A
    /// `found` value that says that there is none may have its own.
    pub(super) fn windows(
        &self,
        options: &Options,
        found: Option<&V>,
        keeping: &Keeping,
    ) -> Windows {
        let (settings, jitter) = (&self.settings, self.settings.ttl_jitter);
        let is_negative = self.is_negative.as_ref().zip(found).is_some_and(|(it, value)| it(value));
        let windows = match is_negative {
            true => Windows::fresh(settings.negative_ttl),
            false => options.windows,
        };
        let ttl = keeping.ttl.unwrap_or(windows.fresh);
        let shortened = || {
            let seconds = ttl.as_secs_f64() * (1.0 - jitter * random::fraction());
            // The longest time is rounded up beyond itself.
            Duration::try_from_secs_f64(seconds).map_or(ttl, |shorter| shorter.min(ttl))
        };
        self.tags.limit(Windows {
            fresh: if jitter > 0.0 { shortened() } else { ttl },
            stale: keeping.stale_while_revalidate.unwrap_or(windows.stale),
            error: keeping.stale_if_error.unwrap_or(windows.error),
        })
    }

    /// Returns whether no tag of a value has ended since its number.
    pub(super) async fn are_current(&self, tagged: &Tagged) -> bool {
        if !self.tags.is_on {
            return true;
        }
        if self.writes.end_of(tagged).is_some() {
            return false;
        }
        let which: Vec<_> = tagged.all().collect();
        let ends = self.counted(self.store.tag_ends(&self.tags.name, &which).await);
        ends.is_ok_and(|ends| tagged.end(&mut ends.into_iter()).is_none())
    }

    /// Returns the tags that a caller gives a value that is read from now on, and the last tag
    /// number. Without an answer, any end of its tags ends the value.
    pub(super) async fn begin_tags(&self, options: &Options) -> Tagged {
        let mut tagged = options.tagged.clone();
        if self.tags.is_on && tagged.number == 0 {
            let asked = Box::pin(self.store.tag_number(&self.tags.name));
            tagged.number = self.counted(asked.await).unwrap_or_default();
        }
        tagged
    }

    /// Waits for a permit to load in this process, for as long as this limit. The keys of one call
    /// share a permit while one of them has it.
    pub(super) async fn permit(&self, options: &Options, limit: Duration) -> Option<Permit> {
        let permit = async {
            let mut shared = match &options.batch {
                Some(member) => Some(member.all.permit.lock().await),
                None => None,
            };
            if let Some(permit) = shared.as_ref().and_then(|shared| shared.upgrade()) {
                return Some(permit);
            }
            let loads = self.loads.clone();
            let permit = match limit.is_zero() {
                true => loads.try_acquire_owned().ok()?,
                false => loads.acquire_owned().await.ok()?,
            };
            let permit = Arc::new(permit);
            shared.iter_mut().for_each(|shared| **shared = Arc::downgrade(&permit));
            Some(permit)
        };
        timeout(limit, permit).await.ok().flatten()
    }
}

/// Returns how a change is repeated that failed while the backend was away, if it is. A value that
/// could not be inserted ends an older one. What leaves the value is not repeated: by then there
/// may be another one.
fn deferred_as(edit: &Edit) -> Option<TagEnd> {
    match edit {
        Edit::Put(..) | Edit::Invalidate => Some(TagEnd::Invalidated),
        Edit::Expire => Some(TagEnd::Expired),
        Edit::Touch { .. } | Edit::Supersede => None,
    }
}
