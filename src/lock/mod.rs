//! Distributed locks.
//!
//! [`Locks`] is the front door. A primitive is a typed front over the engine in [`lease`](crate::lease):
//! it says what to claim, and wraps what the engine holds in a guard.
//!
//! # What a lock promises
//!
//! While a guard's [`lost`](MutexGuard::lost) has not completed, nobody else holds the lock, as long as
//! this process runs and the server keeps its data and its clock. Otherwise (failover, restart without its
//! data, eviction, a [forced unlock](Mutex::force_unlock), a suspended process) the loss is told at the first
//! contact, and only the [fence](MutexGuard::fence) protects: hand it to whatever the lock guards, and have that
//! refuse a smaller one than the greatest it has seen.
//!
//! Why it takes more than `SETNX` to promise that is told step by step in [`ladder`].
//!
//! # One lock for each item
//!
//! A name is any text, made where the lock is taken: `locks.mutex(format!("order:{id}"))`. Nothing is
//! registered, and nothing is to be cleaned up: a lock that nobody holds is at most its last fence, a key of about
//! 140 bytes that ends by itself ([after a day](Mutex::fence_life) unless set). So lock the order, not the orders.
//! Names never share a lock by a hash, so two items never wait for each other by accident, and who holds one may
//! take another.
//!
//! What it saves is waiting. Of 32 tasks that work on one of 64 items at a time, for 1 ms, over 4 backends as 4
//! processes have them, about 430 get through in a second with one lock for all items, one after the other.
//! With one for each item 7,000 do, 16 times as many, and then it is the processor that limits them (`cargo
//! bench --bench fine_grained`, two busy cores; from 11 to 19 times in five runs). A lock that is free costs
//! two commands to Redis, however many names there are. Those that are held are renewed together, a hundred in
//! one command (in a cluster each by itself). What must change together is taken together, by
//! [`Locks::several`].
//!
//! # Which locks of one name are one
//!
//! In one namespace, the [mutex](Locks::mutex), the [fair](Locks::fair_mutex) and the
//! [reentrant](Locks::reentrant_mutex) one of a name, and [several](Locks::several) with that name among theirs, are
//! one lock: whoever holds it either way excludes the others. The [semaphore](Locks::semaphore) and the
//! [permits](Locks::permits) of a name are one stock. Each of these, the [read-write lock](Locks::rw_lock), the
//! [latch](Locks::latch) and the locks of a [`Redlock`] know nothing of the others of that name.
//!
//! # What is dropped
//!
//! A guard that is dropped gives back in the background. A program that ends at once, as with a guard that lives to
//! the end of `main`, may be gone by then, and others wait for the rest of the lease. So a program that is about to
//! end calls `unlock` (or `release`), or drops its guards and waits for [`Locks::shutdown`].

mod fencing;
mod front;
pub mod ladder;
mod latch;
mod majority;
mod mutex;
mod permits;
mod redlock;
mod reentrant;
mod rw;
mod scope;
mod semaphore;
mod several;

use std::{fmt, sync::Arc, time::Duration};

pub use self::{
    fencing::{Fenced, Unfenced},
    latch::Latch,
    majority::Majority,
    mutex::{Mutex, MutexGuard},
    permits::{PermitId, Permits},
    redlock::Redlock,
    reentrant::{ReentrantGuard, ReentrantHolder, ReentrantMutex},
    rw::{ReadGuard, RwLock, Upgrade, WriteGuard},
    semaphore::{Semaphore, SemaphorePermit},
    several::{Several, SeveralGuard},
};

use self::scope::Scope;
use crate::{
    backend::{DynLatches, Latches, Mode},
    key::{Family, Key},
};

/// The front door to the locks of a namespace. Clones are the same.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend};
///
/// let locks = Locks::new(MemoryBackend::new());
/// let guard = locks.mutex("stock:42").lease(Duration::from_secs(10)).lock().await?;
/// tokio::select! {
///     () = async { /* change the stock, handing guard.fence() along */ } => {}
///     () = guard.lost() => { /* stop: someone else may hold the lock by now */ }
/// }
/// guard.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Locks {
    scope: Scope,
    latches: Arc<dyn DynLatches>,
}

impl Locks {
    /// The locks of the namespace `bellwether` over a backend.
    ///
    /// Make one for the process, and clone it: only the callers of one `Locks` and its clones stand in one line,
    /// have their leases renewed together, and are [shut down](Self::shutdown) together.
    pub fn new<B: Latches>(backend: B) -> Self {
        let backend = Arc::new(backend);
        Self { scope: Scope::over(backend.clone(), Family::Lock), latches: backend }
    }

    /// The locks of another namespace over the same backend.
    ///
    /// One to 64 letters, digits, `.`, `_` or `-`. Whatever is asked of these locks with another one is
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig).
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.scope = self.scope.namespace(namespace.into());
        self
    }

    /// The longest name, in bytes: 512 unless set.
    pub fn max_name(mut self, bytes: usize) -> Self {
        self.scope.max_name = bytes;
        self
    }

    /// A lock that one holder has at a time. Nothing is asked of the backend yet.
    ///
    /// What is free goes to whoever asks. An unlock hands it over: to the next who waits in this process, up to 16 times
    /// or for 50 ms, and then to the process that has waited longest, which is told by a push; if that is lost, it finds
    /// out within 5 s. A process that died is passed over at once; one that stands still in that moment costs the others
    /// 2 s, for what was handed over lasts no longer until it is renewed, after a tenth of a second: so
    /// [`remaining`](crate::lock::MutexGuard::remaining) begins with less than the lease. A lease under 2 s, or one that
    /// is not renewed, is not handed over: who waits is told, and asks.
    pub fn mutex(&self, name: impl Into<Key>) -> Mutex {
        Mutex::new(self.scope.clone(), name.into(), Mode::Exclusive)
    }

    /// A lock that one holder has at a time, first come, first served over all processes. Nothing is asked
    /// of the backend yet.
    ///
    /// It is the same lock as the [mutex](Self::mutex) of that name, so long as everyone takes it fairly: a
    /// plain `lock` passes those who queue. Each waiter keeps a place in a queue at the server, which costs
    /// a command every 1.6 s. An unlock hands the lock over to the first of them, as that of a mutex does; if the push
    /// is lost, he finds out with his next command. One whose process died is passed over after at most 5 s, however
    /// many of them died.
    pub fn fair_mutex(&self, name: impl Into<Key>) -> Mutex {
        Mutex::new(self.scope.clone(), name.into(), Mode::Fair)
    }

    /// A lock that one holder has at a time, as often as he likes. Nothing is asked of the backend yet.
    pub fn reentrant_mutex(&self, name: impl Into<Key>) -> ReentrantMutex {
        ReentrantMutex::new(self.scope.clone(), name.into())
    }

    /// A lock that many readers or one writer have at a time. Nothing is asked of the backend yet.
    pub fn rw_lock(&self, name: impl Into<Key>) -> RwLock {
        RwLock::new(self.scope.clone(), name.into())
    }

    /// So many permits, each of them a lease that is renewed while it is held. Nothing is asked of the
    /// backend yet.
    pub fn semaphore(&self, name: impl Into<Key>, permits: u32) -> Semaphore {
        Semaphore::new(self.scope.clone(), name.into(), permits)
    }

    /// So many permits, each with an id, that end by themselves. Nothing is asked of the backend yet.
    pub fn permits(&self, name: impl Into<Key>, permits: u32) -> Permits {
        Permits::new(self.scope.clone(), name.into(), permits)
    }

    /// The [mutexes](Self::mutex) of several names at once, all or none. Nothing is asked of the backend yet.
    pub fn several<K: Into<Key>>(&self, names: impl IntoIterator<Item = K>) -> Several {
        Several::new(self.scope.clone(), names.into_iter().map(Into::into).collect())
    }

    /// A count-down latch: set once, counted down by many, waited for by many. Nothing is asked of the backend
    /// yet.
    pub fn latch(&self, name: impl Into<Key>) -> Latch {
        Latch::new(self.clone(), name.into())
    }

    /// Ends the work of these locks: no acquisition starts any more, waiting ones fail, and releases that
    /// are under way may end until `deadline` has passed. Guards keep what they hold, until they are dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped after it was first polled, no acquisition starts all the same; call it again to
    /// wait.
    pub async fn shutdown(&self, deadline: Duration) {
        self.scope.engine.shutdown(deadline).await;
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("namespace", &self.scope.namespace).finish_non_exhaustive()
    }
}
