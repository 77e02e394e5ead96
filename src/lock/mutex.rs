//! The mutex, plain or fair, of one server or of a majority.

use std::{fmt, marker::PhantomData};

use super::{
    Majority,
    builder::Lock,
    guard::Guard,
    space::OneServer,
    traits::{
        Fenced, Inspected, Renewed,
        sealed::{HasMode, Sealed},
    },
};
use crate::{backend::Mode, error::Error};

/// A lock that one holder has at a time. [`Locks::mutex`](super::Locks::mutex) creates it.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use bellwether::{Locks, MemoryBackend, lease::Retry};
///
/// let mutex = Locks::new(MemoryBackend::new(), "shop")
///     .mutex("stock:42")
///     .lease(Duration::from_secs(5))
///     .wait_limit(Duration::from_secs(2))
///     .retry(Retry::exponential(Duration::from_millis(20), Duration::from_secs(1)));
/// let guard = mutex.lock().await?;
/// assert!(mutex.try_lock().await?.is_none());
///
/// // An operator ends the lock of a holder that hangs.
/// assert!(mutex.force_unlock().await?);
/// assert_eq!(guard.unlock().await.unwrap_err().kind(), bellwether::ErrorKind::Lost);
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
pub type Mutex<Servers = OneServer> = Lock<Exclusive<Servers>>;

/// The [`Mutex`] of a [`Redlock`](super::Redlock). Its servers have no queue, so there is no method
/// [`fair`](Mutex::fair).
pub type RedlockMutex = Mutex<Majority>;

/// The kind of a [`Mutex`], fair or not.
pub struct Exclusive<Servers = OneServer> {
    is_fair: bool,
    /// A function type, so that the kind is `Send` and `Sync` for all `Servers`.
    servers: PhantomData<fn() -> Servers>,
}

/// The guard of a [`Mutex`] or of a [reentrant mutex](super::ReentrantMutex).
pub type MutexGuard = Guard<MutexHold>;

/// The way in which a [`MutexGuard`] holds its lock: alone.
#[derive(Debug)]
pub struct MutexHold;

impl<Servers> Mutex<Servers> {
    /// Acquires the lock, waiting while there is another holder.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        let lease = self.acquire_in(self.kind.mode()).await?;
        Ok(MutexGuard::new(lease))
    }

    /// Acquires the lock as [`lock`](Self::lock) does, if it is free. Returns `None` if there is
    /// another holder, if the server has a waiter of another process in front, or if another caller
    /// of this process is about to acquire the lock.
    ///
    /// One exception: after 50 ms of handovers within one process, this call may win over callers
    /// that all wait in that process: see [`Locks::mutex`](super::Locks::mutex).
    ///
    /// Of callers that try at the same moment at a [`Redlock`](crate::Redlock), all may get `None`.
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        let lease = self.try_acquire_in(self.kind.mode()).await?;
        Ok(lease.map(MutexGuard::new))
    }
}

impl Mutex {
    /// Makes the lock go to the callers of all processes in the order in which they asked.
    ///
    /// It is the same lock as the plain mutex of that name, and both have one queue. In the queue,
    /// all callers of a process that wait for the plain mutex share one entry. A caller that waits
    /// for the fair mutex has an entry of its own. Each process keeps all its entries for a name by
    /// one command every 0.64 s.
    ///
    /// A process whose connection has ended is passed over at once. Processes that stand still cost
    /// the other callers at most 2.7 s, once, however many they are. With more than 1,280 names in
    /// a process, this time grows with their number.
    ///
    /// A [`Redlock`](crate::Redlock) has no queue, so its mutex has no such method:
    ///
    /// ```compile_fail
    /// # fn fair(redlock: bellwether::Redlock) {
    /// redlock.mutex("nightly").fair();
    /// # }
    /// ```
    pub fn fair(mut self) -> Self {
        self.kind = Exclusive::new(true);
        self
    }
}

impl<Servers> Exclusive<Servers> {
    pub(super) fn new(is_fair: bool) -> Self {
        Self { is_fair, servers: PhantomData }
    }
}

impl<Servers> Clone for Exclusive<Servers> {
    fn clone(&self) -> Self {
        Self::new(self.is_fair)
    }
}

impl<Servers> fmt::Debug for Exclusive<Servers> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exclusive").field("is_fair", &self.is_fair).finish()
    }
}

impl<Servers> Sealed for Exclusive<Servers> {}

impl<Servers> Renewed for Exclusive<Servers> {}

impl<Servers> HasMode for Exclusive<Servers> {
    fn mode(&self) -> Mode {
        if self.is_fair { Mode::Fair } else { Mode::Exclusive }
    }
}

impl<Servers> Inspected for Exclusive<Servers> {}

impl Sealed for MutexHold {}

impl Fenced for MutexHold {}
