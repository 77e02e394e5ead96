use std::{fmt, sync::Arc};

use super::super::{
    front::{Front, guard, looks, settings},
    reentrant::{Reentry, give_back},
    scope::Scope,
};
use crate::{backend::Mode, error::Error, key::Key, lease::Held};

/// A lock that one holder has at a time, at a majority of servers. Made by
/// [`Redlock::mutex`](super::Redlock::mutex).
#[derive(Clone)]
#[must_use = "a mutex does nothing until it is locked"]
pub struct RedlockMutex {
    front: Front,
}

impl RedlockMutex {
    pub(super) fn new(scope: Scope, name: Key) -> Self {
        Self { front: Front::new(scope, name) }
    }

    settings!();

    /// Takes the lock if it is free; none, if someone else holds it, or if others try at the same moment
    /// and none of them has a majority.
    ///
    /// # Errors
    ///
    /// [`Backend`](crate::ErrorKind::Backend) if too few servers answered,
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) and
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a name or a setting outside its range,
    /// [`ShutDown`](crate::ErrorKind::ShutDown) after [`Redlock::shutdown`](super::Redlock::shutdown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn try_lock(&self) -> Result<Option<RedlockGuard>, Error> {
        let held = self.front.try_acquire(Mode::Exclusive).await?;
        Ok(held.map(|held| RedlockGuard::new(&self.front.name, Arc::new(held))))
    }

    /// Takes the lock, and waits for it while someone else holds it, or while too few servers answer.
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](crate::ErrorKind::NotAcquired) if the wait limit or the retry strategy ended first,
    /// or [`Backend`](crate::ErrorKind::Backend) if too few servers answered the last try before that; and
    /// as [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn lock(&self) -> Result<RedlockGuard, Error> {
        let held = self.front.acquire(Mode::Exclusive).await?;
        Ok(RedlockGuard::new(&self.front.name, Arc::new(held)))
    }

    looks!(self => Mode::Exclusive);
}

impl fmt::Debug for RedlockMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "RedlockMutex")
    }
}

/// A lock that one holder has at a time, as often as he likes, at a majority of servers. Made by
/// [`Redlock::reentrant_mutex`](super::Redlock::reentrant_mutex).
///
/// What a holder is says [`ReentrantMutex`](crate::lock::ReentrantMutex).
#[derive(Clone)]
#[must_use = "a mutex does nothing until a holder of it locks it"]
pub struct RedlockReentrantMutex {
    front: Front,
}

impl RedlockReentrantMutex {
    pub(super) fn new(scope: Scope, name: Key) -> Self {
        Self { front: Front::new(scope, name) }
    }

    settings!();

    /// A new holder, who has nothing yet.
    pub fn holder(&self) -> RedlockHolder {
        RedlockHolder(Reentry::new(self.front.clone()))
    }

    looks!(self => Mode::Exclusive);
}

impl fmt::Debug for RedlockReentrantMutex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "RedlockReentrantMutex")
    }
}

/// One holder of a [`RedlockReentrantMutex`]. Clones are the same holder; two holders exclude each other,
/// also in one process.
#[derive(Clone)]
#[must_use = "a holder does nothing until it locks"]
pub struct RedlockHolder(Reentry);

impl RedlockHolder {
    /// As [`RedlockMutex::try_lock`]; another guard of the same lease, if this holder has it; and none, if
    /// this holder waits for it elsewhere.
    ///
    /// # Errors
    ///
    /// As [`RedlockMutex::try_lock`]; [`Panicked`](crate::ErrorKind::Panicked), if the retry strategy did.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back, unless others of this holder wait
    /// for the same.
    pub async fn try_lock(&self) -> Result<Option<RedlockGuard>, Error> {
        let held = self.0.try_lock().await?;
        Ok(held.map(|held| RedlockGuard::new(self.0.name(), held)))
    }

    /// As [`RedlockMutex::lock`]; if this holder has the lock, another guard of the same lease at once.
    ///
    /// Tasks of one holder that wait at the same time share one acquisition. A lease that was lost is not
    /// joined, though guards of it live: the lock is acquired anew.
    ///
    /// # Errors
    ///
    /// As [`RedlockMutex::lock`]; [`Panicked`](crate::ErrorKind::Panicked), if the retry strategy did.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back, unless others of this holder wait
    /// for the same: the acquisition goes on for them.
    pub async fn lock(&self) -> Result<RedlockGuard, Error> {
        Ok(RedlockGuard::new(self.0.name(), self.0.lock().await?))
    }
}

impl fmt::Debug for RedlockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.debug(f, "RedlockHolder")
    }
}

/// A [`RedlockMutex`] or [`RedlockReentrantMutex`] that is held at a majority of servers.
///
/// It has no fence (see [`Redlock`](super::Redlock#there-is-no-fence)). Its lease is renewed while it or a
/// clone of it lives; the last one that is [unlocked](Self::unlock) or [dropped](crate::lock#what-is-dropped) gives
/// the lock back.
#[derive(Clone)]
#[must_use = "a dropped guard gives the lock back"]
pub struct RedlockGuard {
    name: Key,
    held: Arc<Held>,
}

impl RedlockGuard {
    fn new(name: &Key, held: Arc<Held>) -> Self {
        Self { name: name.clone(), held }
    }

    guard!();

    /// Gives the lock back at all servers, if this is the last guard of its lease.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if no majority had it any more: what was done under it may have
    /// been done beside another holder. [`Backend`](crate::ErrorKind::Backend) if too few servers answered.
    /// Where one did not answer, the release is repeated in the background, and the lease ends by itself at
    /// the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released all the same.
    pub async fn unlock(self) -> Result<(), Error> {
        give_back(self.held).await
    }
}

impl fmt::Debug for RedlockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockGuard")
            .field("name", &self.name)
            .field("remaining", &self.remaining())
            .finish()
    }
}
