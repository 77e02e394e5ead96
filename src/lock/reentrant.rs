//! The same holder takes the lock again and gives it back as often.
//!
//! How often is counted here, by the guards that live, and not at the server: there a count that is sent
//! twice is counted twice, and one whose process died never ends. The server sees one lease.

use std::{
    fmt,
    marker::PhantomData,
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex as Locked, MutexGuard as Unlocked, PoisonError, Weak},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use tokio::time::{Instant, timeout_at};

use super::{
    fencing::Fenced,
    front::{Front, debug_guard, guard, looks, settings},
    scope::Scope,
};
use crate::{
    backend::Mode,
    error::{Error, ErrorKind},
    key::Key,
    lease::Held,
    time::after,
};

/// A lock that one holder has at a time, as often as he likes. Made by [`Locks::reentrant_mutex`](crate::Locks::reentrant_mutex).
///
/// A holder is a value, not a thread or a task: an async task changes threads, and what it starts are other
/// tasks. Whoever has a clone of a [`ReentrantHolder`] is that holder.
///
/// It is the same lock as the [mutex](crate::Locks::mutex) of that name: those who take it either way exclude each
/// other.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::{Error, Locks, MemoryBackend, lock::ReentrantHolder};
///
/// async fn transfer(account: &ReentrantHolder) -> Result<(), Error> {
///     let guard = account.lock().await?;
///     charge(account).await?;
///     guard.unlock().await
/// }
///
/// async fn charge(account: &ReentrantHolder) -> Result<(), Error> {
///     // At once, if the caller has it.
///     let guard = account.lock().await?;
///     guard.unlock().await
/// }
///
/// let locks = Locks::new(MemoryBackend::new());
/// transfer(&locks.reentrant_mutex("account:7").holder()).await?;
/// # Ok::<_, bellwether::Error>(()) }).unwrap();
/// ```
#[must_use = "a mutex does nothing until a holder of it locks it"]
pub struct ReentrantMutex<F = Fenced> {
    front: Front,
    fencing: PhantomData<fn() -> F>,
}

impl ReentrantMutex {
    settings!(fenced);
}

impl<F> ReentrantMutex<F> {
    pub(super) fn new(scope: Scope, name: Key) -> Self {
        Self { front: Front::new(scope, name), fencing: PhantomData }
    }

    settings!();

    /// A new holder, who has nothing yet.
    pub fn holder(&self) -> ReentrantHolder<F> {
        ReentrantHolder { reentry: Reentry::new(self.front.clone()), fencing: PhantomData }
    }

    looks!(self => Mode::Exclusive);
}

impl<F> Clone for ReentrantMutex<F> {
    fn clone(&self) -> Self {
        Self { front: self.front.clone(), fencing: PhantomData }
    }
}

impl<F> fmt::Debug for ReentrantMutex<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.front.debug(f, "ReentrantMutex")
    }
}

/// One holder of a [`ReentrantMutex`]. Clones are the same holder; two holders exclude each other, also in
/// one process.
#[must_use = "a holder does nothing until it locks"]
pub struct ReentrantHolder<F = Fenced> {
    reentry: Reentry,
    fencing: PhantomData<fn() -> F>,
}

impl<F> ReentrantHolder<F> {
    /// Takes the lock if it is free, or if this holder has it; none, if someone else has it, or if this
    /// holder waits for it elsewhere.
    ///
    /// # Errors
    ///
    /// As [`Mutex::try_lock`](super::Mutex::try_lock); and as [`lock`](Self::lock), if the retry strategy
    /// panicked.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back, unless others of this holder wait
    /// for the same.
    pub async fn try_lock(&self) -> Result<Option<ReentrantGuard<F>>, Error> {
        Ok(self.reentry.try_lock().await?.map(|held| self.guard(held)))
    }

    /// Takes the lock, and waits for it while someone else holds it. If this holder has it, another guard of
    /// the same lease is returned at once, and nothing is asked of the backend.
    ///
    /// Tasks of one holder that wait at the same time share one acquisition. A lease that was lost is not
    /// joined, though guards of it live: the lock is acquired anew.
    ///
    /// # Errors
    ///
    /// As [`Mutex::lock`](super::Mutex::lock); [`Panicked`](ErrorKind::Panicked), if the retry strategy did.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, what it may have taken is given back, unless others of this holder wait
    /// for the same: the acquisition goes on for them.
    pub async fn lock(&self) -> Result<ReentrantGuard<F>, Error> {
        Ok(self.guard(self.reentry.lock().await?))
    }

    fn guard(&self, held: Arc<Held>) -> ReentrantGuard<F> {
        ReentrantGuard { name: self.reentry.name().clone(), held, fencing: PhantomData }
    }
}

impl<F> Clone for ReentrantHolder<F> {
    fn clone(&self) -> Self {
        Self { reentry: self.reentry.clone(), fencing: PhantomData }
    }
}

impl<F> fmt::Debug for ReentrantHolder<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.reentry.debug(f, "ReentrantHolder")
    }
}

/// A [`ReentrantMutex`] that is held, once more for each guard and each clone of it.
///
/// The last one that is [unlocked](Self::unlock) or [dropped](super#what-is-dropped) gives the lock back. All of
/// them stand for one lease: it is renewed while any of them lives, has one fence, and when it is lost, each of them
/// tells.
#[must_use = "a dropped guard gives the lock back"]
pub struct ReentrantGuard<F = Fenced> {
    name: Key,
    held: Arc<Held>,
    fencing: PhantomData<fn() -> F>,
}

impl ReentrantGuard {
    guard!(fenced);
}

impl<F> ReentrantGuard<F> {
    guard!();

    /// Gives the lock back, if this is the last guard of its lease.
    ///
    /// # Errors
    ///
    /// [`Lost`](ErrorKind::Lost) if it was no longer held: what was done under it may have been done beside
    /// another holder. Each guard of a lost lease says so, also after its holder has the lock anew.
    /// [`Backend`](ErrorKind::Backend) if the backend did not answer; the release is then repeated in the
    /// background, and the lease ends by itself at the latest.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lock is released all the same.
    pub async fn unlock(self) -> Result<(), Error> {
        give_back(self.held).await
    }
}

impl<F> Clone for ReentrantGuard<F> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), held: self.held.clone(), fencing: PhantomData }
    }
}

impl<F> fmt::Debug for ReentrantGuard<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug_guard(f, "ReentrantGuard", &self.name, &self.held)
    }
}

/// Gives one guard's share of a lease back, and the lease with the last one.
pub(super) async fn give_back(held: Arc<Held>) -> Result<(), Error> {
    let lost = held.watch().is_lost();
    match Arc::into_inner(held) {
        Some(last) => last.release().await,
        None if lost => Err(Held::lost()),
        None => Ok(()),
    }
}

/// A holder: what he has, or is about to have.
#[derive(Clone)]
pub(super) struct Reentry(Arc<Inner>);

struct Inner {
    front: Front,
    state: Locked<State>,
}

#[derive(Default)]
struct State {
    /// The lease, while a guard of it lives.
    held: Weak<Held>,
    underway: Option<Underway>,
}

/// An acquisition, which lives as long as someone waits for it, and is polled by each of those who do. So it
/// does not matter which of them leaves.
struct Underway {
    acquisition: WeakShared<Acquiring>,
    waits: bool,
}

type Acquiring = BoxFuture<'static, Result<Arc<Held>, Error>>;

/// How someone of this holder goes on.
enum Entry {
    Has(Arc<Held>),
    Begins(Shared<Acquiring>),
    Joins(Shared<Acquiring>),
    /// Another waits already, and this one would not.
    Refused,
}

impl Reentry {
    pub(super) fn new(front: Front) -> Self {
        Self(Arc::new(Inner { front, state: Locked::default() }))
    }

    pub(super) fn name(&self) -> &Key {
        &self.0.front.name
    }

    pub(super) async fn lock(&self) -> Result<Arc<Held>, Error> {
        let deadline = after(Instant::now(), self.0.front.wait_limit);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.enter(true, left) {
                Entry::Has(held) => return Ok(held),
                Entry::Begins(acquisition) => return acquisition.await,
                Entry::Joins(acquisition) => match timeout_at(deadline, acquisition).await {
                    // It began earlier, or would not wait. This one's patience is not over.
                    Ok(Err(error)) if is_his_own(&error) && Instant::now() < deadline => {}
                    Ok(outcome) => return outcome,
                    Err(_) => return Err(not_acquired(self.name())),
                },
                Entry::Refused => return Err(not_acquired(self.name())),
            }
        }
    }

    pub(super) async fn try_lock(&self) -> Result<Option<Arc<Held>>, Error> {
        let acquisition = match self.enter(false, self.0.front.wait_limit) {
            Entry::Has(held) => return Ok(Some(held)),
            Entry::Begins(acquisition) | Entry::Joins(acquisition) => acquisition,
            Entry::Refused => return Ok(None),
        };
        match acquisition.await {
            Ok(held) => Ok(Some(held)),
            Err(error) if error.kind() == ErrorKind::NotAcquired => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn enter(&self, waits: bool, limit: Duration) -> Entry {
        let mut state = self.0.state();
        if let Some(held) = state.held.upgrade()
            && !held.watch().is_lost()
        {
            return Entry::Has(held);
        }
        let underway = state.underway.as_ref().and_then(|underway| {
            let acquisition = underway.acquisition.upgrade()?;
            // One that has ended, and whose outcome someone has yet to take, is over.
            acquisition.peek().is_none().then_some((acquisition, underway.waits))
        });
        match underway {
            Some((_, true)) if !waits => return Entry::Refused,
            Some((acquisition, _)) => return Entry::Joins(acquisition),
            None => {}
        }
        let acquisition = self.0.clone().acquire(waits, limit).shared();
        state.underway = acquisition.downgrade().map(|acquisition| Underway { acquisition, waits });
        Entry::Begins(acquisition)
    }

    pub(super) fn debug(&self, f: &mut fmt::Formatter<'_>, what: &str) -> fmt::Result {
        self.0.front.debug(f, what)
    }
}

impl Inner {
    fn acquire(self: Arc<Self>, waits: bool, limit: Duration) -> Acquiring {
        let acquiring = async move {
            let front = Front { wait_limit: limit, ..self.front.clone() };
            let held = match waits {
                true => front.acquire(Mode::Exclusive).await?,
                false => front
                    .try_acquire(Mode::Exclusive)
                    .await?
                    .ok_or_else(|| not_acquired(&front.name))?,
            };
            let held = Arc::new(held);
            self.state().held = Arc::downgrade(&held);
            Ok(held)
        };
        // A strategy may be anyone's code. Its panic must not become that of everyone who looks here.
        let panicked = |_| Err(Error::new(ErrorKind::Panicked, "the acquisition panicked"));
        AssertUnwindSafe(acquiring)
            .catch_unwind()
            .map(move |outcome| outcome.unwrap_or_else(panicked))
            .boxed()
    }

    fn state(&self) -> Unlocked<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a failure is that of who began the acquisition, and not of whoever joined it.
fn is_his_own(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotAcquired | ErrorKind::Backend | ErrorKind::Panicked)
}

fn not_acquired(name: &Key) -> Error {
    let why = format!("{} was not acquired before the wait ended", name.as_str());
    Error::new(ErrorKind::NotAcquired, why)
}
