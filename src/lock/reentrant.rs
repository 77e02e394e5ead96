//! The reentrant mutex: one holder may acquire the lock again while it has it.
//!
//! The guards that live are counted in this process. The server sees one lease. A count at the
//! server would be wrong after a command that was sent twice, and would outlive a process that
//! died.

use std::{
    fmt,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, Weak},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use tokio::time::{Instant, timeout_at};

use super::{
    front::{Front, debug_guard, none_if_not_acquired},
    macros::{guard, inspection, settings},
    space::LockSpace,
};
use crate::{
    backend::Mode,
    error::{Error, ErrorKind},
    key::Key,
    lease::{LeaseGuard, Watch},
    sync::lock,
    time::after,
};

/// A lock that one holder has at a time, any number of times.
///
/// Created by [`Locks::reentrant_mutex`](crate::Locks::reentrant_mutex) and
/// [`Redlock::reentrant_mutex`](crate::Redlock::reentrant_mutex).
///
/// A holder is a value, and no thread or task. An async task moves between threads, and the work
/// that it spawns runs in other tasks. All clones of a [`ReentrantHolder`] are one holder.
///
/// It is the same lock as the [mutex](crate::Locks::mutex) of that name: the two exclude each
/// other.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Error, Locks, MemoryBackend, lease::Retry, lock::ReentrantHolder};
///
/// async fn transfer(account: &ReentrantHolder) -> Result<(), Error> {
///     let guard = account.lock().await?;
///     charge(account).await?;
///     guard.unlock().await
/// }
///
/// async fn charge(account: &ReentrantHolder) -> Result<(), Error> {
///     // Returns at once if the caller has the lock.
///     let guard = account.lock().await?;
///     guard.unlock().await
/// }
///
/// let mutex = Locks::new(MemoryBackend::new())
///     .reentrant_mutex("account:7")
///     .lease(Duration::from_secs(5))
///     .renew_every(Duration::from_secs(1))
///     .max_hold(Duration::from_secs(60))
///     .fence_life(Duration::from_secs(3600))
///     .wait_limit(Duration::from_secs(2))
///     .retry(Retry::on_demand().times(100));
/// transfer(&mutex.holder()).await?;
///
/// let guard = mutex.holder().lock().await?;
/// assert!(mutex.is_locked().await?);
/// assert!(mutex.expires_in().await?.unwrap() <= Duration::from_secs(5));
///
/// // An operator ends the lock of a holder that hangs.
/// assert!(mutex.force_unlock().await?);
/// # drop(guard);
///
/// // Without renewal, the lease ends by itself.
/// let guard = mutex.fixed_lease().holder().lock().await?;
/// # drop(guard);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a mutex does nothing until a holder of it locks it"]
pub struct ReentrantMutex {
    front: Front,
}

impl ReentrantMutex {
    pub(super) fn new(space: LockSpace, name: Key) -> Self {
        Self { front: Front::new(space, name) }
    }

    /// Creates a new holder, which does not have the lock yet.
    pub fn holder(&self) -> ReentrantHolder {
        ReentrantHolder { reentry: Reentry::new(self.front.clone()) }
    }

    inspection!(self => Mode::Exclusive);
    settings!(acquisition);
    settings!(renewal);
    settings!(fence);
}

impl fmt::Debug for ReentrantMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "ReentrantMutex")
    }
}

/// One holder of a [`ReentrantMutex`].
///
/// Clones are the same holder. Two holders exclude each other, also in one process.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Locks, MemoryBackend};
///
/// let mutex = Locks::new(MemoryBackend::new()).reentrant_mutex("account:7");
/// let (holder, other) = (mutex.holder(), mutex.holder());
/// let guard = holder.lock().await?;
/// assert!(holder.try_lock().await?.is_some());
/// assert!(other.try_lock().await?.is_none());
/// # drop(guard);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a holder does nothing until it locks"]
pub struct ReentrantHolder {
    reentry: Arc<Reentry>,
}

impl ReentrantHolder {
    /// Acquires the lock, waiting while there is another holder. If this holder has the lock,
    /// returns another guard of the same lease at once, without a request to the backend.
    ///
    /// Tasks of one holder that wait at the same time share one acquisition. If the lease was lost,
    /// the lock is acquired anew, although guards of the old lease live.
    ///
    /// # Errors
    ///
    /// - [`Panicked`](crate::ErrorKind::Panicked) if the retry strategy panicked.
    /// - The errors of [`Mutex::lock`](super::Mutex::lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it may have acquired is released, unless other tasks
    /// of this holder wait for it. The acquisition continues for those.
    pub async fn lock(&self) -> Result<ReentrantGuard, Error> {
        Ok(ReentrantGuard::new(self.reentry.lock().await?))
    }

    /// Acquires the lock if it is free, or if this holder has it. Returns `None` if there is
    /// another holder, or if this holder waits for the lock in another task.
    ///
    /// # Errors
    ///
    /// - [`Panicked`](crate::ErrorKind::Panicked) if the retry strategy panicked.
    /// - The errors of [`Mutex::try_lock`](super::Mutex::try_lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a lease that it may have acquired is released, unless other tasks
    /// of this holder wait for it.
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard>, Error> {
        Ok(self.reentry.try_lock().await?.map(ReentrantGuard::new))
    }
}

impl fmt::Debug for ReentrantHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reentry.front.debug(f, "ReentrantHolder")
    }
}

/// A [`ReentrantMutex`] that is held, once for each guard and each clone of it.
///
/// The last guard that is [unlocked](Self::unlock) or [dropped](super#dropped-guards) releases the
/// lock. All of them share one lease, which is renewed while one of them lives, and one fencing
/// token. If the lease is lost, each guard reports it, also after its holder has acquired the lock
/// anew.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend};
///
/// # async fn write(balance: u32, fence: u64) {}
/// let holder = Locks::new(MemoryBackend::new()).reentrant_mutex("account:7").holder();
/// let guard = holder.lock().await?;
/// tokio::select! {
///     // The store refuses a write with a smaller fencing token than the greatest it has seen.
///     () = write(7, guard.fence()) => {}
///     () = guard.lost() => println!("another holder may have the lock"),
/// }
/// if guard.remaining() < Duration::from_secs(8) {
///     guard.renew().await?;
/// }
/// assert!(!guard.is_lost());
/// guard.unlock().await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "the lock is released when its last guard is dropped"]
pub struct ReentrantGuard {
    held: Arc<LeaseGuard>,
}

impl ReentrantGuard {
    fn new(held: Arc<LeaseGuard>) -> Self {
        Self { held }
    }

    guard!(fence);
    guard!(lease);
    guard!(unlock shared);
}

impl fmt::Debug for ReentrantGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_guard(f, "ReentrantGuard", &self.held)
    }
}

/// The state that all clones of one holder share.
struct Reentry {
    front: Front,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The lease, while a guard of it lives.
    held: Weak<LeaseGuard>,
    underway: Option<Underway>,
}

/// An acquisition that is under way. It lives as long as a task waits for it, and each of those
/// tasks polls it, so any of them may leave.
struct Underway {
    acquiring: WeakShared<Acquiring>,
    waits: bool,
}

type Acquiring = BoxFuture<'static, Result<Arc<LeaseGuard>, Error>>;

/// How a task of this holder comes to the lease.
enum Route {
    Held(Arc<LeaseGuard>),
    Start(Shared<Acquiring>),
    Join(Shared<Acquiring>),
    /// Another task waits for the lock already, and this one does not want to wait.
    Refuse,
}

impl Reentry {
    fn new(front: Front) -> Arc<Self> {
        Arc::new(Self { front, state: Mutex::default() })
    }

    fn watch(&self) -> &Watch {
        self.front.space.engine.janitor().watch()
    }

    async fn lock(self: &Arc<Self>) -> Result<Arc<LeaseGuard>, Error> {
        let deadline = after(Instant::now(), self.front.wait_limit);
        // A task that is not polled must not keep a lease that another one has acquired and
        // released.
        self.watch().acquire(|| self.clone().lock_until(deadline)).await
    }

    async fn lock_until(self: Arc<Self>, deadline: Instant) -> Result<Arc<LeaseGuard>, Error> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.route(true, left) {
                Route::Held(held) => return Ok(held),
                Route::Start(acquiring) => return acquiring.await,
                Route::Join(acquiring) => match timeout_at(deadline, acquiring).await {
                    // It was started earlier, or for a task that does not wait. This task has time
                    // left.
                    Ok(Err(error)) if is_of_its_starter(&error) && Instant::now() < deadline => {}
                    Ok(outcome) => return outcome,
                    Err(_) => return Err(self.not_acquired()),
                },
                Route::Refuse => return Err(self.not_acquired()),
            }
        }
    }

    async fn try_lock(self: &Arc<Self>) -> Result<Option<Arc<LeaseGuard>>, Error> {
        self.watch().acquire(|| self.clone().try_once()).await
    }

    async fn try_once(self: Arc<Self>) -> Result<Option<Arc<LeaseGuard>>, Error> {
        match self.route(false, self.front.wait_limit) {
            Route::Held(held) => Ok(Some(held)),
            Route::Start(acquiring) | Route::Join(acquiring) => {
                none_if_not_acquired(acquiring.await)
            }
            Route::Refuse => Ok(None),
        }
    }

    fn route(self: &Arc<Self>, waits: bool, limit: Duration) -> Route {
        let mut state = self.state();
        if let Some(held) = state.held.upgrade()
            && !held.is_lost()
        {
            return Route::Held(held);
        }
        let underway = state.underway.as_ref().and_then(|underway| {
            let acquiring = underway.acquiring.upgrade()?;
            // One that has ended does not count, although a task has yet to take its outcome.
            acquiring.peek().is_none().then_some((acquiring, underway.waits))
        });
        match underway {
            Some((_, true)) if !waits => return Route::Refuse,
            Some((acquiring, _)) => return Route::Join(acquiring),
            None => {}
        }
        let acquiring = self.clone().acquire(waits, limit).shared();
        state.underway = acquiring.downgrade().map(|acquiring| Underway { acquiring, waits });
        Route::Start(acquiring)
    }

    fn acquire(self: Arc<Self>, waits: bool, limit: Duration) -> Acquiring {
        let acquiring = async move {
            let front = Front { wait_limit: limit, ..self.front.clone() };
            let held = match waits {
                true => front.acquire(Mode::Exclusive).await?,
                false => {
                    front.try_acquire(Mode::Exclusive).await?.ok_or_else(|| self.not_acquired())?
                }
            };
            let held = Arc::new(held);
            self.state().held = Arc::downgrade(&held);
            Ok(held)
        };
        // The retry strategy may be code of the user. Its panic must not reach every task that
        // polls.
        let panicked = |_| Err(Error::new(ErrorKind::Panicked, "the retry strategy panicked"));
        AssertUnwindSafe(acquiring)
            .catch_unwind()
            .map(move |outcome| outcome.unwrap_or_else(panicked))
            .boxed()
    }

    fn not_acquired(&self) -> Error {
        let what = format!("the lock {:?}", self.front.name);
        Error::not_acquired(&what, Some(self.front.wait_limit))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// Returns `true` if a failure concerns the task that started the acquisition, and not those that
/// joined it.
fn is_of_its_starter(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotAcquired | ErrorKind::Backend | ErrorKind::Panicked)
}
