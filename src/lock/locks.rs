//! The entry point to the locks over one backend.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    builder::Lock,
    jobs::{Job, Ticks},
    latch::Latch,
    leader::Candidate,
    listing::{self, ListedLock, LockSearch},
    mutex::{Exclusive, Mutex},
    read_write::{ReadWrite, RwLock},
    reentrant::{Reentrant, ReentrantMutex},
    semaphore::{Counted, Permits, Semaphore},
    several::Several,
    space::{LockSpace, OneServer},
    waiting_callers,
};
use crate::{
    backend::{SemaphoreKind, Store},
    error::Error,
    key::{Family, Key},
    observe::LockStats,
};

/// The locks of a namespace over one backend.
///
/// Clones share the engine: local queues, renewals, and the [shutdown](Self::shutdown). So create
/// the locks once for the process, and clone them. The methods that return a lock do no I/O.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend};
///
/// # async fn change_stock(fence: u64) {}
/// let locks = Locks::new(MemoryBackend::new(), "shop").max_name(100);
///
/// let guard = locks.mutex("stock:42").lease(Duration::from_secs(5)).lock().await?;
/// // If the lock is lost, the work is dropped.
/// guard.run(change_stock(guard.fence())).await?;
/// guard.unlock().await?;
///
/// locks.shutdown(Duration::from_secs(1)).await;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Locks<Servers = OneServer> {
    pub(super) space: LockSpace,
    pub(super) servers: Servers,
}

impl Locks {
    /// Creates the locks of a namespace over a backend.
    ///
    /// The namespace is the first part of all names: 1 to 64 letters, digits, `.`, `_` or `-`. With
    /// another namespace, every call to a lock is an error.
    pub fn new<B: Store>(backend: B, namespace: impl Into<String>) -> Self {
        let backend = Arc::new(backend);
        let space = LockSpace::new(backend.clone(), Family::Lock, &namespace.into());
        Self { space, servers: OneServer { latches: backend, answering: Arc::default() } }
    }
}

impl<Servers> Locks<Servers> {
    /// Returns a lock that one holder has at a time.
    ///
    /// Over one backend, a free lock goes to the first caller that asks. A released lock is handed
    /// over: to the next waiter of this process, up to 16 times or for 50 ms in all, the holds
    /// included, and then to the process that has waited longest. A caller that comes while other
    /// processes wait is behind them in the queue.
    ///
    /// If no other process waits after these 50 ms, the lock is free until the next waiter of this
    /// process has asked the server, which takes one round trip. A caller of another process that
    /// asks meanwhile may come first, also by [`try_lock`](Mutex::try_lock). The waiters of a [fair
    /// mutex](Mutex::fair) are all in the queue of the server, so no caller comes before them.
    ///
    /// - A push notifies the next waiter. If the push is lost, the waiter notices within 0.7 s.
    /// - A process that died, or whose connection for pushes is broken, is passed over at once.
    /// - Processes that stand still at that moment cost the others 2 s, once, however many they
    ///   are. A lease that was handed over lasts no longer than 2 s until its first renewal, which
    ///   comes after a tenth of a second. A caller with a fixed lease sends one more request
    ///   instead, to get the full lease.
    ///
    /// The shares are uneven if each process has two or three callers that lock again at once. A
    /// [fair mutex](Mutex::fair) has even shares, and with so few callers it is as fast.
    ///
    /// A [`Redlock`](super::Redlock) [waits otherwise](super::Redlock#waiting).
    pub fn mutex(&self, name: impl Into<Key>) -> Mutex<Servers> {
        Lock::with_kind(&self.space, name.into(), Exclusive::new(false))
    }
}

impl Locks {
    /// Returns a lock that many readers or one writer have at a time.
    pub fn rw_lock(&self, name: impl Into<Key>) -> RwLock {
        Lock::with_kind(&self.space, name.into(), ReadWrite)
    }

    /// Returns a number of permits, each with a lease that is renewed while the permit is held.
    pub fn semaphore(&self, name: impl Into<Key>, permits: u32) -> Semaphore {
        Lock::with_kind(&self.space, name.into(), Counted(permits))
    }

    /// Returns a number of permits that each have an id and end by themselves.
    pub fn permits(&self, name: impl Into<Key>, permits: u32) -> Permits {
        Permits::new(&self.space, name.into(), permits)
    }

    /// Returns the [mutexes](Self::mutex) of several names, from 1 to 64, to acquire them together.
    ///
    /// An acquisition takes the locks in the order of their names, so two callers never wait for
    /// each other. While the caller waits for one name, it holds the names before that name. If one
    /// lock is not acquired, the other locks are released.
    pub fn several<K: Into<Key>>(&self, names: impl IntoIterator<Item = K>) -> Several {
        Several::new(&self.space, names.into_iter().map(Into::into).collect())
    }
}

impl<Servers> Locks<Servers> {
    /// Returns a new holder of the [mutex](Self::mutex) of that name, which may lock it again. Pass
    /// the holder on, or clone it: another call returns another holder.
    ///
    /// The mutex of that name also shows this [holder](Lock::holder), and ends its hold [by
    /// force](Lock::force_unlock).
    pub fn reentrant_mutex(&self, name: impl Into<Key>) -> ReentrantMutex {
        Lock::with_kind(&self.space, name.into(), Reentrant::default())
    }

    /// Returns a candidate for work that one process does at a time, for as long as it can.
    ///
    /// A candidate is the [mutex](Self::mutex) of that name with a loop around it, and over one
    /// backend the [fair](Mutex::fair) mutex.
    pub fn leader(&self, name: impl Into<Key>) -> Candidate {
        Candidate::new(&self.space, name.into())
    }
}

impl Locks {
    /// Returns a job for a tick, for which one process of the fleet gets a turn.
    ///
    /// The tick is the instant in the schedule, and not the time at which a process asks, so clocks
    /// may differ. The server remembers the last tick of the job for 30 days, and gives no turn for
    /// a tick that is not greater. If the server loses that memory, a tick may run once more. A
    /// tick that lies [too far ahead](Job::max_ahead) of the server's time is refused.
    pub fn once(&self, name: impl Into<Key>, tick: impl Into<SystemTime>) -> Job {
        Job::for_tick(&self.space, name.into(), tick.into())
    }

    /// Returns a job for an id that has no place in an order, such as the id of an event.
    ///
    /// The server remembers the id for `keep` from the beginning of its turn, and for `keep` from
    /// its end. So `keep` must be longer than the work. Turns of different ids run beside each
    /// other, because each turn holds the mutex of the name and the id, joined by a colon.
    pub fn once_id(&self, name: impl Into<Key>, id: impl Into<Key>, keep: Duration) -> Job {
        Job::for_id(&self.space, &name.into(), &id.into(), keep)
    }

    /// Returns the turns of a job that runs once in each period, in one process of the fleet. At
    /// its first start in the fleet, the job runs at once, for the current period.
    pub fn every(&self, name: impl Into<Key>, period: Duration) -> Ticks {
        Ticks::new(&self.space, name.into(), period)
    }

    /// Returns a count-down latch: set once, counted down by many, waited for by many.
    pub fn latch(&self, name: impl Into<Key>) -> Latch {
        Latch::new(&self.space, &self.servers, name.into())
    }

    /// Sets a label for this process, such as the name of its pod.
    ///
    /// [`Lock::holder`] shows the label of the holder to any process. A
    /// [`NotAcquired`](crate::ErrorKind::NotAcquired) error of one lock shows the label of the
    /// holder too, if these locks have a label themselves. Each lease contains the label, so a
    /// short label is best.
    pub fn owner(mut self, label: impl Into<String>) -> Self {
        self.space.label = Some(label.into().into());
        self
    }
}

impl<Servers> Locks<Servers> {
    /// Sets the longest name, in bytes. Defaults to 512.
    ///
    /// A longer name is [`InvalidKey`](crate::ErrorKind::InvalidKey).
    pub fn max_name(mut self, bytes: usize) -> Self {
        self.space.max_name = bytes;
        self
    }

    /// Shuts these locks and their clones down.
    ///
    /// No acquisition starts any more, and acquisitions that wait fail as
    /// [`ShutDown`](crate::ErrorKind::ShutDown). Releases that are under way may end until the
    /// deadline passes. Guards keep their leases until the guards are dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, call the method again to wait.
    pub async fn shutdown(&self, deadline: Duration) {
        self.space.engine.shutdown(deadline).await;
    }
}

impl Locks {
    /// Returns the locks of this namespace that are held or waited for. The lock with most
    /// [waiters](crate::backend::Holding::waiting) at the server comes first, and of equals the
    /// lock that is held for longest. The list has neither latches nor the locks of a
    /// [`Redlock`](super::Redlock).
    ///
    /// The call [searches](Self::search) all keys of the server. That takes about 1 s for 10,000
    /// keys, and a minute and a half for a million.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety). The user needs the right to `SCAN`.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn free(locks: bellwether::Locks) -> Result<(), bellwether::Error> {
    /// for lock in locks.list().await? {
    ///     println!("{lock}");
    /// }
    /// for lock in locks.explain("import").await? {
    ///     locks.end(&lock).await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn list(&self) -> Result<Vec<ListedLock>, Error> {
        let mut search = self.search();
        let mut listed = Vec::new();
        while let Some(found) = search.next().await? {
            listed.extend(found);
        }
        ListedLock::sort(&mut listed);
        Ok(listed)
    }

    /// Begins a search for the locks of this namespace that are held or waited for. Each step of
    /// the search returns the locks that it has found.
    ///
    /// The search reads all keys of the server, step by step. The server spends about 1 % of its
    /// time on the search, and up to a tenth if most of its keys are locks that are held.
    pub fn search(&self) -> LockSearch {
        LockSearch::new(&self.space)
    }

    /// Returns the locks of this name that are held or waited for: at most one of each kind. The
    /// lock of a [`Redlock`](super::Redlock) is not among them.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn explain(&self, name: impl Into<Key>) -> Result<Vec<ListedLock>, Error> {
        let name = self.space.name(&name.into())?;
        let locks = SemaphoreKind::ALL.map(|kind| (name.clone(), kind));
        listing::inspect(&self.space, &locks).await
    }

    /// Ends what is held of a lock, as [`force_unlock`](Lock::force_unlock) does, if its holder is
    /// still the listed holder. Returns `false` if another holder has the lock. Readers and permits
    /// have several holders, so all of them are ended.
    pub async fn end(&self, lock: &ListedLock) -> Result<bool, Error> {
        listing::end(&self.space, lock).await
    }
}

impl<Servers> Locks<Servers> {
    /// Returns the counters of these locks and their clones, and the number of leases held now.
    ///
    /// The counters omit a future that is dropped before its end.
    pub fn stats(&self) -> LockStats {
        self.space.engine.stats()
    }

    /// Publishes the [counters](Self::stats) of these locks and their clones, and the times of
    /// waits and holds, to the recorder of the crate [`metrics`]. `name` is their label `locks`.
    ///
    /// Spawn the future that this returns. It publishes once a second, and ends with the last
    /// clone. A second name for the same locks has no effect.
    ///
    /// ```
    /// # fn publish(locks: bellwether::Locks) {
    /// tokio::spawn(locks.publish_metrics("shop"));
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, counters stay as they were published, and times are still
    /// published. Call this method again to go on.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn publish_metrics<N: Into<String>>(
        &self,
        name: N,
    ) -> impl Future<Output = ()> + Send + 'static + use<N, Servers>
    where
        Servers: 'static,
    {
        let engine = &self.space.engine;
        let meter = &engine.renewals.meter;
        crate::meter::publish(meter, "locks", name.into(), engine, |engine| engine.reading())
    }
}

impl Locks {
    /// Answers the questions of `bellwether top`: how many callers of this process wait, and for
    /// which locks. The server does not know the callers that wait in the process of the holder.
    ///
    /// Spawn the future that this returns. It ends with the last clone, and subscribes to one
    /// channel of the namespace. While a `top` runs somewhere, the future answers once a second by
    /// one `PUBLISH`, which names the 20 locks with most callers. Otherwise nothing is counted. Of
    /// several such futures for one `Locks` and its clones, one future answers. If that future is
    /// dropped, another future goes on.
    ///
    /// Each client that may subscribe in the namespace sees the names.
    ///
    /// ```
    /// # fn answer(locks: bellwether::Locks) {
    /// tokio::spawn(locks.answer_top());
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, there are no more answers. Call this method again to go on.
    pub fn answer_top(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let engine = Arc::downgrade(&self.space.engine);
        let backend = self.space.engine.backend.clone();
        let namespace = self.space.namespace.clone();
        let answering = self.servers.answering.clone();
        async move {
            let _answers = answering.lock_owned().await;
            // With an invalid namespace, no caller waits.
            if let Ok(namespace) = namespace {
                waiting_callers::answer_questions(engine, backend, namespace).await;
            }
        }
    }
}

impl<Servers> fmt::Debug for Locks<Servers> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = &self.space.namespace;
        f.debug_struct("Locks").field("namespace", namespace).finish_non_exhaustive()
    }
}
