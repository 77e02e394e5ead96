//! The loads of the keys of one call, gathered into calls of one loader.
//!
//! Each key has a flight, a lease and a commit of its own, as if it were asked for alone. Its
//! loader waits here for those of the other keys. The keys that this process leads are loaded
//! together as soon as each key of the call is decided: it is loaded here, or waited for, or done.
//! So own keys load before the call waits for those of others, and calls that overlap cannot wait
//! for each other. A key that is led later, such as when another process dies, is loaded then.

use std::{
    collections::HashMap,
    fmt,
    hash::Hash,
    panic::AssertUnwindSafe,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{
    sync::{Mutex as AsyncMutex, Notify, OwnedSemaphorePermit, oneshot},
    time::timeout,
};
use tracing::Instrument;

use super::{
    Lead,
    core::{Core, Permit},
    loader::{self, Produced},
    outcome::cut_off,
};
use crate::{
    error::{BoxError, Error, ErrorKind},
    flight::{self, Edge},
    sync::lock,
};

/// How long keys that are led wait for the next decision about another, unless an operation of the
/// backend may take longer. A caller that no longer polls decides nothing.
const DECISION_LIMIT: Duration = Duration::from_millis(50);

/// The state that the keys of one call share.
pub(super) struct Shared {
    /// The number of keys that are neither loaded here, nor waited for, nor done.
    undecided: AtomicUsize,
    /// Notified when a key is decided.
    decided: Notify,
    /// The permit that the keys share while one of them has it.
    permit: AsyncMutex<Weak<OwnedSemaphorePermit>>,
}

impl Shared {
    /// Returns what a call for so many keys shares.
    pub(super) fn of(keys: usize) -> Arc<Self> {
        let (undecided, decided) = (AtomicUsize::new(keys), Notify::new());
        Arc::new(Self { undecided, decided, permit: AsyncMutex::default() })
    }

    /// Returns one of the keys. `missed` is the fence of the entry that was of no use, or zero if
    /// there was none.
    pub(super) fn member(self: &Arc<Self>, missed: Option<u64>) -> Arc<Member> {
        Arc::new(Member { all: self.clone(), missed, is_decided: AtomicBool::new(false) })
    }
}

/// One key of a call. The last owner to drop it decides it.
pub(super) struct Member {
    all: Arc<Shared>,
    /// The fence that the call missed: the claim returns any newer entry. `None` if the call did
    /// not miss.
    pub(super) missed: Option<u64>,
    is_decided: AtomicBool,
}

impl Member {
    /// Notes that the key is loaded here, or waited for, or done.
    pub(super) fn decided(&self) {
        if !self.is_decided.swap(true, Ordering::AcqRel) {
            self.all.undecided.fetch_sub(1, Ordering::AcqRel);
            self.all.decided.notify_one();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.decided();
    }
}

/// Returns the permit that the keys of a call have, or acquires one.
pub(super) async fn permit(
    member: Option<&Member>,
    acquire: impl Future<Output = Option<Permit>>,
) -> Option<Permit> {
    let Some(member) = member else { return acquire.await };
    let mut shared = member.all.permit.lock().await;
    if let Some(permit) = shared.upgrade() {
        return Some(permit);
    }
    let permit = acquire.await?;
    *shared = Arc::downgrade(&permit);
    Some(permit)
}

/// The ids that a loader of many is called for.
///
/// [`Cache::get_or_load_many`](super::Cache::get_or_load_many) has an example.
pub struct Batch<I, V> {
    ids: Vec<I>,
    leads: Vec<Lead<V>>,
    failures: Arc<Mutex<HashMap<I, Error>>>,
}

impl<I: Eq + Hash, V> Batch<I, V> {
    /// Returns the ids, at least one. Each has another key.
    pub fn ids(&self) -> &[I] {
        &self.ids
    }

    /// Returns the ids, each with the lease that it is loaded under.
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

/// Gathers the ids that are to be loaded.
pub(super) struct Gathering<I, V> {
    core: Arc<Core<V>>,
    loader: Box<Loader<I, V>>,
    waiting: Mutex<Vec<WaitingId<I, V>>>,
}

/// An id that waits for its load.
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
        let waits = WaitingId { id, lead: lead.clone(), flight: flight::current(), reply };
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
        let value = value.await.unwrap_or_else(|_| Err(cut_off()))?;
        Ok(Produced::Value(loader::made(&self.core, &lead, value)))
    }

    /// Loads the ids that wait when all keys of the call are decided.
    async fn load_together(self: Arc<Self>, all: Arc<Shared>) {
        let limit = self.core.engine.backend().time_limit().unwrap_or(DECISION_LIMIT);
        while all.undecided.load(Ordering::Acquire) > 0
            && timeout(limit, all.decided.notified()).await.is_ok()
        {}
        let number = flight::next_id();
        let (batch, mut replies, _edges) = self.take_all(number);
        let failures = batch.failures.clone();
        // It may also panic before it returns its future.
        let made = AssertUnwindSafe(async { (self.loader)(batch).await }).catch_unwind();
        let unwanted = async {
            for reply in replies.values_mut() {
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
        let (mut ids, mut leads, mut replies) = (Vec::new(), Vec::new(), HashMap::new());
        let mut edges = Vec::new();
        for WaitingId { id, lead, flight, reply } in std::mem::take(&mut *lock(&self.waiting)) {
            edges.extend(flight.and_then(|flight| flight::nested(flight, number)));
            ids.push(id.clone());
            leads.push(lead);
            replies.insert(id, reply);
        }
        (Batch { ids, leads, failures: Arc::default() }, replies, edges)
    }

    /// Gives each id its value, or its failure.
    fn answer(
        &self,
        mut replies: Replies<I, V>,
        made: Result<Vec<(I, V)>, Error>,
        mut failures: HashMap<I, Error>,
    ) {
        let missing = || Error::new(ErrorKind::Load, "the loader returned no value for this id");
        let (made, failed) = match made {
            Ok(made) => (made, missing()),
            Err(error) => (Vec::new(), error),
        };
        for (id, value) in made {
            match replies.remove(&id) {
                Some(reply) => drop(reply.send(Ok(value))),
                None => self.core.counters.unasked.add(),
            }
        }
        for (id, reply) in replies {
            let _ = reply.send(Err(failures.remove(&id).unwrap_or_else(|| failed.copied())));
        }
    }
}

type Replies<I, V> = HashMap<I, oneshot::Sender<Result<V, Error>>>;
