//! Many keys in one call: their values are looked up together, and those that are missing are
//! gathered into calls of one loader.
//!
//! Each key has a flight, a lease and a commit of its own, and only the loader is shared. It is
//! called as soon as each key of the call is decided: loaded here, or waited for, or done. So calls
//! that overlap cannot wait for each other.

use std::{
    fmt,
    hash::Hash,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, atomic::Ordering},
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{BoxFuture, join_all},
    stream,
};
use tokio::{sync::oneshot, time::timeout};
use tracing::Instrument;

use super::{
    Cache, Lead, Loaded,
    breaker::Shard,
    core::Core,
    loader::{self, Produced},
    member::{Member, Shared},
    outcome::{cut_off, value_of},
    read::Decision,
};
use crate::{
    error::{BoxError, Error, ErrorKind},
    flight::{self, Edge},
    key::Key,
    random::HashMap,
    sync::lock,
};

const MOST_KEYS: usize = 10_000;
/// How many keys of a call are asked for, written or invalidated at once.
const AT_ONCE: usize = 128;
/// How long keys that are led wait for the next decision about another, unless an operation of the
/// backend may take longer. A caller that no longer polls decides nothing.
const DECISION_LIMIT: Duration = Duration::from_millis(50);
/// The limit is waited for in so many parts. Where the runtime is late, the other tasks run between
/// two of the parts, and so decide.
const LOOKS: u32 = 10;

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Returns the values of many keys, and loads those that are missing together.
    ///
    /// `key_of` returns the key of an id. 128 keys are looked up in one round trip. The loader is
    /// called once for the ids that this process leads, with one of the [permits to
    /// load](super::Builder::max_loads), and again for a key whose other process died. So clone
    /// what it uses inside the closure: `move |batch| { let db = db.clone(); async move { … } }`.
    ///
    /// Each key has its own flight, lease, windows and back-off, so it shares its load with single
    /// calls and with batches that overlap.
    ///
    /// The answers have the order of the ids, and the values of the loader need none. An id to
    /// which the loader returns no value has failed. If there may be none, make `V` an `Option`.
    /// Values for other ids are [counted](super::Stats::unasked), and otherwise ignored.
    ///
    /// # Errors
    ///
    /// [`Overloaded`](ErrorKind::Overloaded) if there are more than 10,000 ids. Each answer has an
    /// error of its own, as [`get_or_load`](Self::get_or_load) returns it. A loader that fails does
    /// so for all the ids that it was called for. By [`Batch::fail`] it fails some of them.
    ///
    /// # Cancel safety
    ///
    /// As [`get_or_load`](Self::get_or_load), for each key.
    ///
    /// # Examples
    ///
    /// The [guide](crate::guide) has one.
    pub fn get_or_load_many<I, K, L, Fut, R, E>(
        &self,
        ids: impl IntoIterator<Item = I>,
        key_of: impl Fn(&I) -> K,
        loader: L,
    ) -> impl Future<Output = Result<Vec<Result<Loaded<V>, Error>>, Error>> + Send + 'static
    where
        I: Clone + Eq + Hash + Send + Sync + 'static,
        K: Into<Key>,
        L: Fn(Batch<I, V>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: IntoIterator<Item = (I, V)>,
        E: Into<BoxError> + 'static,
    {
        let cache = self.clone();
        let ids: Vec<I> = ids.into_iter().take(MOST_KEYS + 1).collect();
        let keys: Vec<Key> = ids.iter().map(|id| key_of(id).into()).collect();
        async move {
            if ids.len() > MOST_KEYS {
                let words = format!("more than {MOST_KEYS} ids in one call: ask for fewer at once");
                return Err(Error::new(ErrorKind::Overloaded, words));
            }
            let looks = if cache.core.loads.begun.is_closed() {
                keys.iter().map(|_| None).collect()
            } else {
                read_many(&cache.core, &keys).await
            };
            let mut answers = Vec::with_capacity(keys.len());
            for (key, look) in keys.iter().zip(looks) {
                answers.push(match look {
                    Some(Decision::Served(loaded, None)) => {
                        cache.core.activity.note(key);
                        cache.core.counters.served(loaded.source);
                        Ok(Ok(loaded))
                    }
                    // The request for a key that has a flight notes the key.
                    Some(Decision::Miss { seen }) => Err(Some(seen)),
                    _ => Err(None),
                });
            }
            let gathering = Gathering::new(&cache.core, loader);
            let shared = Shared::of(answers.iter().filter(|answer| answer.is_err()).count());
            let load = |at: usize, missed| {
                let gathering = gathering.clone();
                let id = ids[at].clone();
                let mut request = cache.request(keys[at].clone());
                let member = shared.member(missed);
                request.options_mut().batch = Some(member.clone());
                let flown = request.fly(move |lead| gathering.load(id, lead, member));
                let counters = &cache.core.counters;
                async move { value_of(flown.await, counters) }
            };
            Ok(fill_gaps(answers, load).await)
        }
    }

    /// Returns the stored values of many keys, in their order, each as [`get`](Self::get) returns
    /// it. 128 of them are looked up in one round trip.
    ///
    /// # Errors
    ///
    /// Each answer has its own, as with [`get`](Self::get).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn get_many<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<Option<V>, Error>> {
        let keys: Vec<Key> = keys.into_iter().map(Into::into).collect();
        let mut answers = Vec::with_capacity(keys.len());
        for (key, decision) in keys.iter().zip(read_many(&self.core, &keys).await) {
            answers.push(match decision {
                Some(decision) => {
                    self.core.activity.note(key);
                    Ok(decision.found(&self.core.counters))
                }
                None => Err(()),
            });
        }
        // The others learn what is wrong.
        fill_gaps(answers, |at, ()| self.get(&keys[at])).await
    }

    /// Stores many values, each as [`insert`](Self::insert) does, in few round trips.
    ///
    /// # Errors
    ///
    /// Each answer has its own, as with [`insert`](Self::insert).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, each value may or may not be stored.
    pub async fn insert_many<K: Into<Key>>(
        &self,
        entries: impl IntoIterator<Item = (K, V)>,
    ) -> Vec<Result<u64, Error>> {
        let entries: Vec<(Key, V)> =
            entries.into_iter().map(|(key, value)| (key.into(), value)).collect();
        let insert = |(key, value)| async move { self.insert(key, &value).await };
        stream::iter(entries.into_iter().map(insert)).buffered(AT_ONCE).collect().await
    }

    /// Removes many values, each as [`invalidate`](Self::invalidate) does, in few round trips.
    ///
    /// # Errors
    ///
    /// Each answer has its own, as with [`invalidate`](Self::invalidate).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, each value may or may not be removed.
    pub async fn invalidate_many<K: Into<Key>>(
        &self,
        keys: impl IntoIterator<Item = K>,
    ) -> Vec<Result<u64, Error>> {
        let keys: Vec<Key> = keys.into_iter().map(Into::into).collect();
        let invalidate = |key| self.invalidate(key);
        stream::iter(keys.into_iter().map(invalidate)).buffered(AT_ONCE).collect().await
    }
}

/// Asks for the answers that are missing, at once.
async fn fill_gaps<T, M, Fut: Future<Output = T>>(
    answers: Vec<Result<T, M>>,
    mut ask: impl FnMut(usize, M) -> Fut,
) -> Vec<T> {
    let mut asked = Vec::new();
    let mut known = Vec::with_capacity(answers.len());
    for (at, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(answer) => known.push(Some(answer)),
            Err(gap) => {
                asked.push(ask(at, gap));
                known.push(None);
            }
        }
    }
    let mut asked = join_all(asked).await.into_iter();
    let filled = known.into_iter().filter_map(|answer| answer.or_else(|| asked.next()));
    filled.collect()
}

/// Reads many keys, with few questions to the backend. A key is `None` if it is invalid, or if its
/// shard does not answer of late.
async fn read_many<V: Clone + Send + Sync + 'static>(
    core: &Arc<Core<V>>,
    keys: &[Key],
) -> Vec<Option<Decision<V>>> {
    let options = &core.settings.options;
    let mut answers: Vec<_> = keys.iter().map(|_| None).collect();
    for (keys, answers) in keys.chunks(AT_ONCE).zip(answers.chunks_mut(AT_ONCE)) {
        let mut places = Vec::with_capacity(keys.len());
        let mut asked = Vec::with_capacity(keys.len());
        let mut names = Vec::with_capacity(keys.len());
        for (key, answer) in keys.iter().zip(answers) {
            if let Some(copy) = core.local_value(&key.text, options) {
                *answer = Some(Decision::Served(copy, None));
            } else if let Ok(name) = core.name(key)
                && !core.backend.shard_of(&name).breaker.is_troubled()
            {
                places.push(answer);
                asked.push(key);
                names.push(name);
            }
        }
        let decisions = core.read_many(&asked, &names, &options.rules).await;
        let mut failed: Vec<Arc<Shard>> = Vec::new();
        for ((answer, decision), name) in places.into_iter().zip(decisions).zip(&names) {
            let shard = core.backend.shard_of(name);
            // One silence is one failure, for however many keys.
            if let Decision::Unanswered(error) = &decision
                && !failed.iter().any(|known| Arc::ptr_eq(known, &shard))
            {
                shard.breaker.failed(error, &core.counters);
                failed.push(shard);
            }
            *answer = Some(decision);
        }
    }
    answers
}

/// The ids that a loader of [many](Cache::get_or_load_many) is called for.
pub struct Batch<I, V> {
    ids: Vec<I>,
    leads: Vec<Lead<V>>,
    failures: Arc<Mutex<HashMap<I, Error>>>,
}

impl<I: Eq + Hash, V> Batch<I, V> {
    /// Returns the ids, at least one, each once.
    pub fn ids(&self) -> &[I] {
        &self.ids
    }

    /// Returns the ids, each with the lease that it is loaded under, such as to
    /// [tag](Lead::tag) its value.
    pub fn leads(&self) -> impl Iterator<Item = (&I, &Lead<V>)> {
        self.ids.iter().zip(&self.leads)
    }

    /// Fails the load of one id. If the loader also returns a value for it, the value wins.
    pub fn fail(&self, id: I, error: impl Into<BoxError>) {
        lock(&self.failures).insert(id, Error::load(error));
    }
}

impl<I: fmt::Debug, V> fmt::Debug for Batch<I, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("ids", &self.ids).finish_non_exhaustive()
    }
}

type BatchValues<I, V> = BoxFuture<'static, Result<Vec<(I, V)>, Error>>;
type Loader<I, V> = dyn Fn(Batch<I, V>) -> BatchValues<I, V> + Send + Sync;

pub(super) struct Gathering<I, V> {
    core: Arc<Core<V>>,
    loader: Box<Loader<I, V>>,
    waiting: Mutex<Vec<WaitingId<I, V>>>,
}

struct WaitingId<I, V> {
    id: I,
    lead: Lead<V>,
    flight: Option<u64>,
    reply: oneshot::Sender<Result<V, Error>>,
}

impl<I, V> Gathering<I, V>
where
    I: Clone + Eq + Hash + Send + Sync + 'static,
    V: Clone + Send + Sync + 'static,
{
    pub(super) fn new<L, Fut, R, E>(core: &Arc<Core<V>>, loader: L) -> Arc<Self>
    where
        L: Fn(Batch<I, V>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
        R: IntoIterator<Item = (I, V)>,
        E: Into<BoxError>,
    {
        let loader = move |batch| {
            let made = loader(batch);
            let made =
                async { made.await.map(|made| made.into_iter().collect()).map_err(Error::load) };
            made.boxed()
        };
        Arc::new(Self { core: core.clone(), loader: Box::new(loader), waiting: Mutex::default() })
    }

    /// The loader of one key. It loads the id together with the others of the call.
    pub(super) async fn load(
        self: Arc<Self>,
        id: I,
        lead: Lead<V>,
        member: Arc<Member>,
    ) -> Result<Produced<V>, Error> {
        let (reply, value) = oneshot::channel();
        let waits = WaitingId { id, lead, flight: flight::current(), reply };
        let is_first = {
            let mut waiting = lock(&self.waiting);
            waiting.push(waits);
            waiting.len() == 1
        };
        // After the push: the task takes all that wait once the last key is decided.
        member.decided();
        if is_first {
            let all = member.all.clone();
            tokio::spawn(self.clone().load_together(all).in_current_span());
        }
        value.await.unwrap_or_else(|_| Err(cut_off())).map(Produced::value)
    }

    /// Loads the ids that wait when all keys of the call are decided.
    async fn load_together(self: Arc<Self>, all: Arc<Shared>) {
        let limit = self.core.backend.store.time_limit().unwrap_or(DECISION_LIMIT);
        let mut looks = 0;
        while all.undecided.load(Ordering::Acquire) > 0 && looks < LOOKS {
            looks = match timeout(limit / LOOKS, all.decided.notified()).await {
                Ok(()) => 0,
                Err(_) => looks + 1,
            };
        }
        let number = flight::next_id();
        let (batch, mut replies, _edges) = self.take_all(number);
        let failures = batch.failures.clone();
        // It may also panic before it returns its future.
        let made = AssertUnwindSafe(async { (self.loader)(batch).await }).catch_unwind();
        let unwanted = async {
            for reply in replies.values_mut().flatten() {
                reply.closed().await;
            }
        };
        let made = tokio::select! {
            biased;
            made = flight::within(number, made) => made,
            () = unwanted => return,
        };
        let made = made.unwrap_or_else(|panic| Err(loader::panicked(panic.as_ref())));
        let failures = std::mem::take(&mut *lock(&failures));
        self.answer(replies, made, failures);
    }

    /// Takes the ids that wait. Their flights wait for the load of this number.
    fn take_all(&self, number: u64) -> (Batch<I, V>, Replies<I, V>, Vec<Edge>) {
        let mut ids = Vec::new();
        let mut leads = Vec::new();
        let mut replies = HashMap::default();
        let mut edges = Vec::new();
        for WaitingId { id, lead, flight, reply } in std::mem::take(&mut *lock(&self.waiting)) {
            edges.extend(flight.and_then(|flight| flight::nested(flight, number)));
            let same: &mut Vec<_> = replies.entry(id.clone()).or_default();
            // Without flights, an id that was given twice is loaded twice.
            if same.is_empty() {
                ids.push(id);
                leads.push(lead);
            }
            same.push(reply);
        }
        (Batch { ids, leads, failures: Arc::default() }, replies, edges)
    }

    fn answer(
        &self,
        mut replies: Replies<I, V>,
        made: Result<Vec<(I, V)>, Error>,
        mut failures: HashMap<I, Error>,
    ) {
        let mut failed = Error::new(ErrorKind::Load, "the loader returned no value for this id");
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                failed = error;
                Vec::new()
            }
        };
        for (id, value) in made {
            let Some(mut callers) = replies.remove(&id) else {
                self.core.counters.unasked.add();
                continue;
            };
            let last = callers.pop();
            // A caller may have gone.
            for caller in callers {
                let _ = caller.send(Ok(value.clone()));
            }
            if let Some(caller) = last {
                let _ = caller.send(Ok(value));
            }
        }
        for (id, callers) in replies {
            let error = failures.remove(&id).unwrap_or_else(|| failed.clone());
            for caller in callers {
                let _ = caller.send(Err(error.clone()));
            }
        }
    }
}

/// The callers that wait for each id.
type Replies<I, V> = HashMap<I, Vec<oneshot::Sender<Result<V, Error>>>>;
