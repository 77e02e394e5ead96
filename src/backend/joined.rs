//! The changes of one name at several servers, told as one.
//!
//! Whoever holds a lock at a majority of servers is told of by a majority when it gives it back. So that is
//! what a waiter is woken by; and the more often it was in vain, the more the waiters of a fleet spread out,
//! for those who ask all at once share the servers between them, and none has a majority.
//!
//! What a minority tells is mostly the noise of those who wait: each gives back what it got of a lock that
//! another holds. It is worth a look after a while all the same, for the rest of the majority may be dead.

use std::{fmt, time::Duration};

use futures_util::{FutureExt, future::select_all};
use tokio::time::{Instant, sleep_until};

use super::{Change, channels::Listener};

/// How far the waiters spread: up to the first, then up to twice that, and so on up to the longest.
const FIRST_SPREAD: Duration = Duration::from_millis(1);
const LONGEST_SPREAD: Duration = Duration::from_millis(16);
/// Until what a minority has told is worth a look.
const LONE: Duration = Duration::from_millis(100);

pub(super) struct Joined {
    listeners: Vec<Listener>,
    /// Which of them have told something since this last did.
    heard: Vec<bool>,
    enough: usize,
    tell_at: Option<Instant>,
    /// How often it has told something.
    told: u32,
}

impl Joined {
    pub(super) fn new(listeners: Vec<Listener>, enough: usize) -> Self {
        let heard = vec![false; listeners.len()];
        Self { listeners, heard, enough, tell_at: None, told: 0 }
    }

    pub(super) fn into_listeners(self) -> Vec<Listener> {
        self.listeners
    }

    /// Nothing is lost when the future is dropped: what was heard is kept here.
    pub(super) async fn next(&mut self) -> Change {
        loop {
            let tell_at = self.tell_at;
            let told = async {
                match tell_at {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let heard = tokio::select! {
                biased;
                () = told => None,
                which = first(&mut self.listeners) => Some(which),
            };
            match heard {
                Some(which) => self.hear(which),
                None => {
                    self.tell();
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
            let spread = FIRST_SPREAD.saturating_mul(1 << self.told.min(8)).min(LONGEST_SPREAD);
            let at = now + spread.mul_f64(fastrand::f64());
            self.tell_at = Some(self.tell_at.map_or(at, |earlier| earlier.min(at)));
        } else if self.tell_at.is_none() {
            self.tell_at = Some(now + LONE.mul_f64(0.5 + fastrand::f64() / 2.0));
        }
    }

    /// Whoever is told looks now, so that all that was pushed until now is seen.
    fn tell(&mut self) {
        self.told = self.told.saturating_add(1);
        self.forget();
    }

    /// Passes over what was pushed until now.
    pub(super) fn forget(&mut self) {
        self.tell_at = None;
        self.heard.fill(false);
        for listener in &mut self.listeners {
            listener.forget();
        }
    }

    fn count(&self) -> usize {
        self.heard.iter().filter(|heard| **heard).count()
    }

    /// Whether too few of them will ever tell something.
    pub(super) fn is_mute(&self) -> bool {
        self.too_few(|listener| !listener.is_mute())
    }

    /// Whether too few of them can tell something at the moment.
    pub(super) fn is_lost(&self) -> bool {
        self.too_few(|listener| !listener.is_lost())
    }

    fn too_few(&self, can_tell: impl Fn(&Listener) -> bool) -> bool {
        self.listeners.iter().filter(|listener| can_tell(listener)).count() < self.enough
    }
}

/// Which of them is the first to be told something.
async fn first(listeners: &mut [Listener]) -> usize {
    let (_, which, _) = select_all(listeners.iter_mut().map(|one| one.next().boxed())).await;
    which
}

impl fmt::Debug for Joined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Joined").field("servers", &self.listeners.len()).finish_non_exhaustive()
    }
}
