//! Many keys in one call. The values are read together, and one loader makes the missing values.
//!
//! Each key has a flight, a lease and a commit of its own, and only the loader is shared. The
//! loader is called as soon as each key of the call is decided: loaded here, waited for, or done.
//! So calls that overlap cannot wait for each other.

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
/// How many keys of a call are read, written or invalidated at once.
const AT_ONCE: usize = 128;
/// How long the loader waits for the decision about the next key, if the backend sets no limit of
/// its own. The wait must end, because a caller that is not polled decides nothing.
const DECISION_LIMIT: Duration = Duration::from_millis(50);
/// The limit is divided into this many waits. On a slow runtime, one long wait could end before the
/// tasks of the other keys have run. Between two short waits, these tasks run and decide.
const LOOKS: u32 = 10;

impl<V: Clone + Send + Sync + 'static> Cache<V> {
    /// Returns the values of many keys, and loads the missing values together.
    ///
    /// `key_of` returns the key of an id. One round trip reads 128 keys. The loader is called once
    /// for the ids that this process leads, with one of the [permits to
    /// load](super::Builder::max_loads). The loader is called again for keys that are decided late,
    /// and for a key whose load in another process died. So clone what the loader uses inside the
    /// closure: `move |batch| { let db = db.clone(); async move { … } }`.
    ///
    /// Each key has its own flight, lease, windows and back-off. So a key shares its load with
    /// single calls and with other calls for many keys.
    ///
    /// The answers have the order of the ids. The loader may return its values in any order. An id
    /// without a value has failed. If a value may be absent, make `V` an `Option`. Values for other
    /// ids, and second values for an id, are [counted](super::Stats::unasked), and otherwise
    /// ignored.
    ///
    /// # Errors
    ///
    /// [`Overloaded`](ErrorKind::Overloaded) if there are more than 10,000 ids. Each answer has an
    /// error of its own, as [`get_or_load`](Self::get_or_load) returns it. If the loader fails, all
    /// ids of its [`Batch`] fail. [`Batch::fail`] fails one id.
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
            let core = &cache.core;
            let mut decisions = Vec::new();
            if !core.loads.begun.is_closed() {
                decisions = read_many(core, &keys).await;
            }
            let mut decisions = decisions.into_iter();
            let mut answers = Vec::with_capacity(keys.len());
            let mut unserved = Vec::new();
            for (at, key) in keys.iter().enumerate() {
                let mut missed = None;
                match decisions.next().flatten() {
                    Some(Decision::Served(loaded, None)) => {
                        core.activity.note(key);
                        core.counters.served(loaded.source);
                        answers.push(Some(Ok(loaded)));
                        continue;
                    }
                    Some(Decision::Miss { seen }) => missed = Some(seen),
                    _ => {}
                }
                answers.push(None);
                unserved.push(Unserved { at, missed });
            }
            let gathering = Gathering::new(core, loader);
            let shared = Shared::new(unserved.len());
            let mut loads = Vec::with_capacity(unserved.len());
            for Unserved { at, missed } in unserved {
                let gathering = gathering.clone();
                let id = ids[at].clone();
                let member = shared.member(missed);
                // The request for a key that has a flight notes the key.
                let mut request = cache.request(keys[at].clone());
                request.options_mut().batch = Some(member.clone());
                let outcome = request.fly(move |lead| gathering.load(id, lead, member));
                loads.push(async move { value_of(outcome.await, &core.counters) });
            }
            Ok(with_gaps_filled(answers, join_all(loads).await))
        }
    }

    /// Returns the stored values of many keys, in the order of the keys, each as
    /// [`get`](Self::get) returns it. One round trip reads 128 keys.
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
        let keys = to_keys(keys);
        let decisions = read_many(&self.core, &keys).await;
        let mut answers = Vec::with_capacity(keys.len());
        let mut single_reads = Vec::new();
        for (key, decision) in keys.iter().zip(decisions) {
            if let Some(decision) = decision {
                self.core.activity.note(key);
                answers.push(Some(decision.found(&self.core.counters)));
            } else {
                // A read of its own returns the error of the key or of its shard.
                answers.push(None);
                single_reads.push(self.get(key));
            }
        }
        with_gaps_filled(answers, join_all(single_reads).await)
    }

    /// Stores many values, each as [`insert`](Self::insert) does, in few round trips. Give each key
    /// once: of two values for one key, either may be the one that stays.
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
        let mut inserts = Vec::new();
        for (key, value) in entries {
            let key: Key = key.into();
            inserts.push(async move { self.insert(key, &value).await });
        }
        stream::iter(inserts).buffered(AT_ONCE).collect().await
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
        let mut invalidations = Vec::new();
        for key in keys {
            invalidations.push(self.invalidate(key.into()));
        }
        stream::iter(invalidations).buffered(AT_ONCE).collect().await
    }
}

/// A key of a call that the first read did not serve.
struct Unserved {
    /// The position of the key in the call.
    at: usize,
    /// The fence of the entry that was of no use, if the first read has looked.
    missed: Option<u64>,
}

fn to_keys<K: Into<Key>>(keys: impl IntoIterator<Item = K>) -> Vec<Key> {
    keys.into_iter().map(Into::into).collect()
}

/// Puts the late answers into the gaps, in their order.
fn with_gaps_filled<T>(answers: Vec<Option<T>>, late: Vec<T>) -> Vec<T> {
    let mut late = late.into_iter();
    let mut filled = Vec::with_capacity(answers.len());
    for answer in answers {
        filled.extend(answer.or_else(|| late.next()));
    }
    filled
}

/// Reads many keys with few commands. The decision about a key is `None` if the key is invalid, or
/// if its shard has failed since its last answer.
async fn read_many<V: Clone + Send + Sync + 'static>(
    core: &Arc<Core<V>>,
    keys: &[Key],
) -> Vec<Option<Decision<V>>> {
    let mut decisions = Vec::with_capacity(keys.len());
    for chunk in keys.chunks(AT_ONCE) {
        decisions.extend(read_chunk(core, chunk).await);
    }
    decisions
}

/// Reads as many keys as one command may have.
async fn read_chunk<V: Clone + Send + Sync + 'static>(
    core: &Arc<Core<V>>,
    keys: &[Key],
) -> Vec<Option<Decision<V>>> {
    let options = &core.settings.options;
    let mut decisions = Vec::with_capacity(keys.len());
    let mut positions = Vec::with_capacity(keys.len());
    let mut read_keys = Vec::with_capacity(keys.len());
    let mut names = Vec::with_capacity(keys.len());
    for (at, key) in keys.iter().enumerate() {
        decisions.push(None);
        if let Some(copy) = core.local_value(&key.text, options) {
            decisions[at] = Some(Decision::Served(copy, None));
        } else if let Ok(name) = core.name(key)
            && !core.backend.shard_of(&name).breaker.is_troubled()
        {
            positions.push(at);
            read_keys.push(key);
            names.push(name);
        }
    }
    let read = core.read_many(&read_keys, &names, &options.rules).await;
    let mut failed: Vec<Arc<Shard>> = Vec::new();
    for (at, decision) in read.into_iter().enumerate() {
        if let Decision::Unanswered(error) = &decision {
            let shard = core.backend.shard_of(&names[at]);
            // A shard that did not answer has failed once, whatever the number of its keys.
            if !failed.iter().any(|known| Arc::ptr_eq(known, &shard)) {
                shard.breaker.failed(error, &core.counters);
                failed.push(shard);
            }
        }
        decisions[positions[at]] = Some(decision);
    }
    decisions
}

/// The ids that the loader of [`get_or_load_many`](Cache::get_or_load_many) is called for.
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

    /// Returns each id with the lead of its load, such as to [tag](Lead::tag) the value.
    pub fn leads(&self) -> impl Iterator<Item = (&I, &Lead<V>)> {
        self.ids.iter().zip(&self.leads)
    }

    /// Fails the load of one id. If the loader also returns a value for the id, the value wins.
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
        Arc::new(Self {
            core: core.clone(),
            loader: Box::new(move |batch| {
                let values = loader(batch);
                let collected = async {
                    match values.await {
                        Ok(values) => Ok(values.into_iter().collect()),
                        Err(error) => Err(Error::load(error)),
                    }
                };
                collected.boxed()
            }),
            waiting: Mutex::default(),
        })
    }

    /// The loader of one key, which loads the id together with the other ids of the call.
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
        // The decision comes after the push, because the task takes all waiting ids once the last
        // key is decided.
        member.decided();
        if is_first {
            let load = self.clone().load_together(member.all.clone());
            tokio::spawn(load.in_current_span());
        }
        value.await.unwrap_or_else(|_| Err(cut_off())).map(Produced::value)
    }

    /// Loads the waiting ids when all keys of the call are decided.
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
        // The loader may also panic before it returns its future.
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

    /// Takes the waiting ids. In the graph of waits, their flights now wait for the load of this
    /// number.
    fn take_all(&self, number: u64) -> (Batch<I, V>, Replies<I, V>, Vec<Edge>) {
        let mut ids = Vec::new();
        let mut leads = Vec::new();
        let mut replies = HashMap::default();
        let mut edges = Vec::new();
        // A statement of its own: code of the user runs below, without the lock.
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        for WaitingId { id, lead, flight, reply } in waiting {
            edges.extend(flight.and_then(|flight| flight::nested(flight, number)));
            let same: &mut Vec<_> = replies.entry(id.clone()).or_default();
            // After a shutdown there are no flights, and an id that the caller gave twice comes
            // twice.
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
