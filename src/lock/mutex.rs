use std::{fmt, marker::PhantomData};

use super::{
    fencing::Fenced,
    front::{Front, debug_guard, guard, looks, settings},
    scope::Scope,
};
use crate::{backend::Mode, error::Error, key::Key, lease::Held};

/// A lock that one holder has at a time: a name and how it is to be held. Made by
/// [`Locks::mutex`](crate::Locks::mutex), [`Locks::fair_mutex`](crate::Locks::fair_mutex), and, without a fencing
/// token, by [`Redlock::mutex`](crate::Redlock::mutex).
#[must_use = "a mutex does nothing until it is locked"]
pub struct Mutex<F = Fenced> {
    front: Front,
    mode: Mode,
    fencing: PhantomData<fn() -> F>,
}

impl Mutex {
    settings!(fenced);
}

impl<F> Mutex<F> {
    pub(super) fn new(scope: Scope, name: Key, mode: Mode) -> Self {
        Self { front: Front::new(scope, name), mode, fencing: PhantomData }
    }

    settings!();

    /// Takes the lock if it is free; none, if someone else holds it, or another caller of this process is about to
    /// take it. None also, if several try at a [`Redlock`](crate::Redlock) at the same moment, and none of them has a
    /// majority.
    ///
    /// # Errors
    ///
    /// [`Backend`](crate::ErrorKind::Backend) if the backend did not answer, or too few servers of a
    /// [`Redlock`](crate::Redlock),
    /// [`InvalidKey`](crate::ErrorKind::InvalidKey) and
    /// [`InvalidConfig`](crate::ErrorKind::InvalidConfig) for a name or a setting outside its range,
    /// [`ShutDown`](crate::ErrorKind::ShutDown) after [`Locks::shutdown`](crate::Locks::shutdown).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn try_lock(&self) -> Result<Option<MutexGuard<F>>, Error> {
        Ok(self.front.try_acquire(self.mode).await?.map(|held| self.guard(held)))
    }

    /// Takes the lock, and waits for it while someone else holds it.
    ///
    /// # Errors
    ///
    /// [`NotAcquired`](crate::ErrorKind::NotAcquired) if the wait limit or the retry strategy ended first,
    /// or [`Backend`](crate::ErrorKind::Backend) if the last try before that failed; and as
    /// [`try_lock`](Self::try_lock).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back.
    pub async fn lock(&self) -> Result<MutexGuard<F>, Error> {
        Ok(self.guard(self.front.acquire(self.mode).await?))
    }

    looks!(self => self.mode);

    fn guard(&self, held: Held) -> MutexGuard<F> {
        MutexGuard { name: self.front.name.clone(), held, fencing: PhantomData }
    }
}

impl<F> Clone for Mutex<F> {
    fn clone(&self) -> Self {
        Self { front: self.front.clone(), mode: self.mode, fencing: PhantomData }
    }
}

impl<F> fmt::Debug for Mutex<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "Mutex")
    }
}

/// A [`Mutex`] that is held.
///
/// Its lease is renewed while it lives. Dropped, it is released [in the background](super#what-is-dropped);
/// [`unlock`](Self::unlock) also says whether it was held to the end.
#[must_use = "a dropped guard gives the lock back"]
pub struct MutexGuard<F = Fenced> {
    name: Key,
    held: Held,
    fencing: PhantomData<fn() -> F>,
}

impl MutexGuard {
    guard!(fenced);
}

impl<F> MutexGuard<F> {
    guard!();

    /// Gives the lock back.
    ///
    /// # Errors
    ///
    /// [`Lost`](crate::ErrorKind::Lost) if it was no longer held: what was done under it may have been
    /// done beside another holder. [`Backend`](crate::ErrorKind::Backend) if the backend did not answer;
    /// the release is then repeated in the background, and the lease ends by itself at the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released all the same.
    pub async fn unlock(self) -> Result<(), Error> {
        self.held.release().await
    }
}

impl<F> fmt::Debug for MutexGuard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_guard(f, "MutexGuard", &self.name, &self.held)
    }
}
