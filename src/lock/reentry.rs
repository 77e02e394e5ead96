//! How the tasks of one reentrant holder share a lease, and the acquisition of it.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use tokio::time::{Instant, timeout_at};

use super::front::{Front, none_if_not_acquired};
use crate::{
    backend::Mode,
    error::{Error, ErrorKind},
    lease::{LeaseGuard, attended},
    time::after,
};

/// The state that all clones of one holder share.
pub(super) struct Reentry {
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
    pub(super) fn new(front: Front) -> Arc<Self> {
        Arc::new(Self { front, state: Mutex::default() })
    }

    pub(super) fn front(&self) -> &Front {
        &self.front
    }

    pub(super) async fn lock(self: &Arc<Self>) -> Result<Arc<LeaseGuard>, Error> {
        let deadline = after(Instant::now(), self.front.wait_limit);
        // A task that is not polled must not keep a lease that another one has acquired and
        // released.
        attended(|| self.clone().lock_until(deadline)).await
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

    pub(super) async fn try_lock(self: &Arc<Self>) -> Result<Option<Arc<LeaseGuard>>, Error> {
        attended(|| self.clone().try_once()).await
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns `true` if a failure concerns the task that started the acquisition, and not those that
/// joined it.
fn is_of_its_starter(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotAcquired | ErrorKind::Backend | ErrorKind::Panicked)
}
