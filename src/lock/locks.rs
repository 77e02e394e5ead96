//! The entry point to the locks over one backend.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use super::{
    Candidate, Job, Latch, Mutex, Permits, ReentrantMutex, RwLock, Semaphore, Several, Ticks,
    front::{Lock, LockSpace},
    leader::Elected,
    mutex::Exclusive,
    reentrant::Reentrant,
    rw::ReadWrite,
    semaphore::Counted,
};
use crate::{
    backend::{Mode, Store},
    key::{Family, Key},
    observe::LockStats,
};

/// The locks of a namespace over one backend.
///
/// Clones share the engine: local queues, renewals, and the [end](Self::shutdown). So create one
/// for the process, and clone it. The methods that return a lock do no I/O.
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
/// // One holder at a time.
/// let guard = locks.mutex("stock:42").lease(Duration::from_secs(5)).lock().await?;
/// // If the lock is lost, the work is dropped.
/// guard.run(change_stock(guard.fence())).await?;
/// guard.unlock().await?;
///
/// // The other kinds.
/// locks.mutex("printer").fair().lock().await?.unlock().await?;
/// locks.reentrant_mutex("account:7").holder().lock().await?.unlock().await?;
/// locks.several(["account:7", "account:9"]).lock().await?.unlock().await?;
/// locks.rw_lock("prices").read().await?.unlock().await?;
/// locks.semaphore("exports", 3).acquire().await?.release().await?;
/// let id = locks.permits("exports", 3).acquire().await?;
/// assert!(locks.permits("exports", 3).release(id).await?);
/// locks.latch("import:7").set(2).await?;
///
/// locks.shutdown(Duration::from_secs(1)).await;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Locks<Servers = OneServer> {
    pub(super) space: LockSpace,
    pub(super) servers: Servers,
}

/// The locks over one backend, with the kinds that a [`Redlock`](super::Redlock) lacks.
#[derive(Clone)]
pub struct OneServer {
    latches: Arc<dyn Store>,
}

impl Locks {
    /// Creates the locks of a namespace over a backend.
    ///
    /// The namespace is the first part of all names: 1 to 64 letters, digits, `.`, `_` or `-`. With
    /// another one, every call to a lock returns
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig).
    pub fn new<B: Store>(backend: B, namespace: impl Into<String>) -> Self {
        let (backend, namespace) = (Arc::new(backend), namespace.into());
        let space = LockSpace::over(backend.clone(), Family::Lock, &namespace);
        Self { space, servers: OneServer { latches: backend } }
    }

    /// Returns a lock that many readers or one writer have at a time.
    pub fn rw_lock(&self, name: impl Into<Key>) -> RwLock {
        Lock::new(&self.space, name.into(), ReadWrite)
    }

    /// Returns a number of permits, each with a lease that is renewed while it is held.
    pub fn semaphore(&self, name: impl Into<Key>, permits: u32) -> Semaphore {
        Lock::new(&self.space, name.into(), Counted(permits))
    }

    /// Returns a number of permits that each have an id and end by themselves.
    pub fn permits(&self, name: impl Into<Key>, permits: u32) -> Permits {
        Permits::with_ids(&self.space, name.into(), permits)
    }

    /// Returns the [mutexes](Self::mutex) of several names, from 1 to 64, to acquire them together.
    ///
    /// They are acquired in the order of their names, so two callers never wait for each other.
    /// While the caller waits for one name, it holds the names before it. If one lock is not
    /// acquired, the others are released.
    pub fn several<K: Into<Key>>(&self, names: impl IntoIterator<Item = K>) -> Several {
        Lock::of_names(&self.space, names.into_iter().map(Into::into).collect())
    }

    /// Returns a count-down latch: set once, counted down by many, waited for by many.
    pub fn latch(&self, name: impl Into<Key>) -> Latch {
        Latch::new(self.space.clone(), self.servers.latches.clone(), name.into())
    }

    /// Returns a job for a tick, for which one process of the fleet gets a turn.
    ///
    /// The tick is the instant in the schedule, and not the time at which a process asks, so clocks
    /// may differ. The server remembers the last tick begun for 30 days, and gives no turn for one
    /// that is not greater. If it loses that, a tick may run once more.
    pub fn once(&self, name: impl Into<Key>, tick: impl Into<SystemTime>) -> Job {
        Lock::of_tick(&self.space, name.into(), tick.into())
    }

    /// Returns a job for an id that has no place in an order, such as that of an event.
    ///
    /// The id is remembered for `keep` after its turn. Turns of different ids run beside each
    /// other: each is the mutex of the name and the id, joined by a colon.
    pub fn once_id(&self, name: impl Into<Key>, id: impl Into<Key>, keep: Duration) -> Job {
        Lock::of_id(&self.space, &name.into(), &id.into(), keep)
    }

    /// Returns the turns of a job that runs once in each period, in one process of the fleet.
    ///
    /// It is a [`once`](Self::once) whose tick is computed from the clock of the server. At its
    /// first start in the fleet it runs at once, for the period that has begun.
    pub fn every(&self, name: impl Into<Key>, period: Duration) -> Ticks {
        Ticks::of_period(&self.space, name.into(), period)
    }

    /// Sets a label for this process, such as the name of its pod.
    ///
    /// [`Mutex::holder`] tells any process the label of the holder. So does a
    /// [`NotAcquired`](crate::ErrorKind::NotAcquired) error of one lock, if these locks have a
    /// label themselves. The label stands in the lease, so a short one is best.
    pub fn owner(mut self, label: impl Into<String>) -> Self {
        self.space.label = Some(label.into().into());
        self
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
    /// published. Call this again to go on.
    #[cfg(feature = "metrics")]
    #[cfg_attr(docsrs, doc(cfg(feature = "metrics")))]
    pub fn publish_metrics<N: Into<String>>(
        &self,
        name: N,
    ) -> impl Future<Output = ()> + Send + 'static + use<N> {
        let engine = &self.space.engine;
        crate::meter::publish(&engine.meter, "locks", name.into(), engine, |engine| {
            engine.reading()
        })
    }
}

impl<Servers> Locks<Servers> {
    /// Returns a lock that one holder has at a time.
    ///
    /// Over one backend, a free lock goes to the first caller that asks. A released lock is handed
    /// over: to the next waiter of this process, up to 16 times or for 50 ms, and then to the
    /// process that has waited longest. A caller that comes while others wait has its place behind
    /// them.
    ///
    /// - A push notifies the next waiter. If the push is lost, the waiter notices within 0.7 s.
    /// - A process that died, or whose connection for pushes is broken, is passed over at once.
    /// - Processes that stand still at that moment cost the others 2 s, once, however many they
    ///   are. A lease that was handed over lasts no longer than that until its first renewal, after
    ///   a tenth of a second. So [`remaining`](crate::lease::Lease::remaining) begins with less
    ///   than the lease. A lock that is not renewed asks once more, to get its full lease.
    ///
    /// The shares are uneven if each process has two or three callers that lock again at once. A
    /// [fair mutex](Mutex::fair) has even shares, and with so few callers it is as fast.
    ///
    /// A [`Redlock`](super::Redlock) [waits otherwise](super::Redlock#waiting).
    pub fn mutex(&self, name: impl Into<Key>) -> Mutex {
        Lock::new(&self.space, name.into(), Exclusive(Mode::Exclusive))
    }

    /// Returns the lock of the [mutex](Self::mutex) of that name, which its
    /// [holder](super::ReentrantHolder) may lock again. The mutex also tells its
    /// [holder](Mutex::holder), and ends it [by force](Mutex::force_unlock).
    pub fn reentrant_mutex(&self, name: impl Into<Key>) -> ReentrantMutex {
        Lock::new(&self.space, name.into(), Reentrant)
    }

    /// Returns a candidate for work that one process does at a time, for as long as it can.
    ///
    /// It is the [mutex](Self::mutex) of that name with a loop around it, and over one backend the
    /// [fair](Mutex::fair) one. A candidate waits without a limit, works, and waits again if the
    /// lease is lost.
    pub fn leader(&self, name: impl Into<Key>) -> Candidate {
        let mode = if self.space.has_queues() { Mode::Fair } else { Mode::Exclusive };
        Lock::unlimited(&self.space, name.into(), Elected(mode))
    }

    /// Sets the longest name, in bytes. Defaults to 512.
    ///
    /// A longer name is [`InvalidKey`](crate::ErrorKind::InvalidKey).
    pub fn max_name(mut self, bytes: usize) -> Self {
        self.space.max_name = bytes;
        self
    }

    /// Returns the counters of these locks and their clones, and the number of leases held now.
    ///
    /// A future that is dropped before its end is counted nowhere.
    pub fn stats(&self) -> LockStats {
        self.space.engine.stats()
    }

    /// Shuts these locks and their clones down.
    ///
    /// No acquisition starts any more, and those that wait fail as
    /// [`ShutDown`](crate::ErrorKind::ShutDown). Releases that are under way may end until the
    /// deadline passes. Guards keep their leases until they are dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, call it again to wait.
    pub async fn shutdown(&self, deadline: Duration) {
        self.space.engine.shutdown(deadline).await;
    }
}

impl<Servers> fmt::Debug for Locks<Servers> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Locks");
        match &self.space.namespace {
            Ok(namespace) => shown.field("namespace", &namespace.as_str()),
            Err(error) => shown.field("namespace", error),
        };
        shown.finish_non_exhaustive()
    }
}
