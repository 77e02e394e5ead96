//! The changes of one name at several servers, told as one.
//!
//! A holder at a majority of servers wakes the waiters at a majority when it releases. So a waiter
//! is woken by a majority. The more often that was in vain, the more the waiters of a fleet spread
//! out. Waiters that ask all at once share the servers between them, and none has a majority.
//!
//! A change at a minority is mostly the noise of waiters, each of which gives back what it got of a
//! lock that another holder has. It is worth a look after a while all the same, since the rest of
//! the majority may be dead.

use std::{fmt, time::Duration};

use futures_util::{FutureExt, future::select_all};
use tokio::time::{Instant, sleep_until};

use super::topics::Listener;
use crate::backend::{Change, Owner};

/// How far the waiters spread: up to the first, then twice that, and so on up to the longest.
const FIRST_SPREAD: Duration = Duration::from_millis(1);
const LONGEST_SPREAD: Duration = Duration::from_millis(16);
/// After how long a change at a minority is worth a look.
const LONE: Duration = Duration::from_millis(100);

pub(super) struct JointListener {
    listeners: Vec<Listener>,
    /// The listeners that have told of a change since the last wake.
    heard: Vec<bool>,
    enough: usize,
    wake_at: Option<Instant>,
    /// The number of wakes so far.
    wakes: u32,
}

impl JointListener {
    pub(super) fn new(listeners: Vec<Listener>, enough: usize) -> Self {
        let heard = vec![false; listeners.len()];
        Self { listeners, heard, enough, wake_at: None, wakes: 0 }
    }

    pub(super) fn into_listeners(self) -> Vec<Listener> {
        self.listeners
    }

    /// Waits for the next wake. Dropping the future loses nothing: `heard` is kept.
    pub(super) async fn next(&mut self) -> Change {
        loop {
            let wake_at = self.wake_at;
            let due = async {
                match wake_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let heard = tokio::select! {
                biased;
                () = due => None,
                heard = first(&mut self.listeners) => Some(heard),
            };
            match heard {
                // It is for this waiter alone, so that no other one asks as well.
                Some((_, change)) if change.addressee().is_some() => return change,
                Some((which, _)) => self.hear(which),
                None => {
                    self.wake();
                    return Change::Wake;
                }
            }
        }
    }

    fn hear(&mut self, which: usize) {
        let before = self.count();
        if let Some(heard) = self.heard.get_mut(which) {
            *heard = true;
        }
        let now = Instant::now();
        if before < self.enough && self.count() >= self.enough {
            let spread = FIRST_SPREAD.saturating_mul(1 << self.wakes.min(8)).min(LONGEST_SPREAD);
            let at = now + spread.mul_f64(fastrand::f64());
            self.wake_at = Some(self.wake_at.map_or(at, |earlier| earlier.min(at)));
        } else if self.wake_at.is_none() {
            self.wake_at = Some(now + LONE.mul_f64(0.5 + fastrand::f64() / 2.0));
        }
    }

    /// Wakes the waiter, which looks now and sees all changes until now.
    fn wake(&mut self) {
        self.wakes = self.wakes.saturating_add(1);
        self.forget();
    }

    pub(super) fn address(&mut self, owner: Owner) {
        for listener in &mut self.listeners {
            listener.address(owner);
        }
    }

    /// Passes over the pushes until now.
    fn forget(&mut self) {
        self.wake_at = None;
        self.heard.fill(false);
        for listener in &mut self.listeners {
            listener.forget();
        }
    }

    fn count(&self) -> usize {
        self.heard.iter().filter(|heard| **heard).count()
    }

    /// Returns whether too few listeners can tell of a change at the moment.
    pub(super) fn is_lost(&self) -> bool {
        self.listeners.iter().filter(|listener| !listener.is_lost()).count() < self.enough
    }
}

/// Waits for the first listener that is told of a change.
async fn first(listeners: &mut [Listener]) -> (usize, Change) {
    let (change, which, _) = select_all(listeners.iter_mut().map(|one| one.next().boxed())).await;
    (which, change)
}

impl fmt::Debug for JointListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JointListener")
            .field("servers", &self.listeners.len())
            .finish_non_exhaustive()
    }
}
