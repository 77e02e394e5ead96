//! The mutex, plain or fair.

use super::{
    Locks,
    front::{Lock, Looks, Renews},
    guard::{Fenced, Guard},
};
use crate::{backend::Mode, error::Error, key::Key};

/// A lock that one holder has at a time. Created by [`Locks::mutex`].
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
pub type Mutex = Lock<Exclusive>;

/// The kind of a [`Mutex`], and of its fair one.
#[derive(Clone, Debug)]
pub struct Exclusive(pub(super) Mode);

/// A [`Mutex`] that is held, or a [reentrant one](super::ReentrantMutex).
pub type MutexGuard = Guard<Exclusive>;

impl Fenced for Exclusive {}

impl Renews for Exclusive {}

impl Looks for Exclusive {
    fn mode(&self) -> Mode {
        self.0
    }
}

impl<Servers> Locks<Servers> {
    /// Returns a lock that one holder has at a time.
    ///
    /// Over one backend, a free lock goes to the first caller that asks. A released lock is handed
    /// over: to the next waiter of this process, up to 16 times or for 50 ms in all, the holds
    /// included, and then to the process that has waited longest. A caller that comes while other
    /// processes wait has its place behind them.
    ///
    /// If no other process waits after these 50 ms, the lock is free until the next waiter of this
    /// process has asked the server, which takes one round trip. A caller of another process that
    /// asks meanwhile may come first, also by [`try_lock`](Mutex::try_lock). The waiters of a [fair
    /// mutex](Mutex::fair) all have a place at the server, so nobody comes before them.
    ///
    /// - A push notifies the next waiter. If the push is lost, the waiter notices within 0.7 s.
    /// - A process that died, or whose connection for pushes is broken, is passed over at once.
    /// - Processes that stand still at that moment cost the others 2 s, once, however many they
    ///   are. A lease that was handed over lasts no longer than that until its first renewal, after
    ///   a tenth of a second. A lock that is not renewed asks once more, to get its full lease.
    ///
    /// The shares are uneven if each process has two or three callers that lock again at once. A
    /// [fair mutex](Mutex::fair) has even shares, and with so few callers it is as fast.
    ///
    /// A [`Redlock`](super::Redlock) [waits otherwise](super::Redlock#waiting).
    pub fn mutex(&self, name: impl Into<Key>) -> Mutex {
        Lock::new(&self.space, name.into(), Exclusive(Mode::Exclusive))
    }
}

impl Mutex {
    /// Makes the callers of all processes come first, first served.
    ///
    /// It is the same lock as the plain mutex of that name, and both have one queue. The plain
    /// mutex has one place there for a process, and here each waiter has its own. A process keeps
    /// all of its places of a name with one command every 0.64 s.
    ///
    /// Waiters whose process died or stands still are passed over once, after at most 2.7 s,
    /// however many they are. With more than 1,280 names, this grows with their number.
    ///
    /// A [`Redlock`](crate::Redlock) has no queue, so its fair mutex cannot be acquired: the call
    /// fails at once as [`InvalidConfig`](crate::ErrorKind::InvalidConfig).
    pub fn fair(mut self) -> Self {
        self.kind = Exclusive(Mode::Fair);
        self
    }

    /// Acquires the lock, waiting while there is another holder.
    ///
    /// # Errors and cancel safety
    ///
    /// As [all locks](super#errors-and-cancel-safety).
    pub async fn lock(&self) -> Result<MutexGuard, Error> {
        Ok(self.acquire_in(self.kind.0).await?.into())
    }

    /// Acquires the lock as [`lock`](Self::lock) does, if it is free. Returns `None` if there is
    /// another holder, if another process waits, or if another caller of this process is about to
    /// acquire it. Callers that wait in another process alone may be overtaken: see
    /// [`Locks::mutex`]. At a [`Redlock`](crate::Redlock), callers that try at the same moment may
    /// all get `None`.
    pub async fn try_lock(&self) -> Result<Option<MutexGuard>, Error> {
        Ok(self.try_acquire_in(self.kind.0).await?.map(MutexGuard::from))
    }
}
