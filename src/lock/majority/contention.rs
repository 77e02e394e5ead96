//! Other processes that want the same name: which of them asks first, and what wakes them.
//!
//! A release wakes all processes that wait. Each asks after a random pause, so that mostly one of
//! them finds a majority free. The last holder pauses like the others, because it has met them:
//! their claims come between its release and its next claim.
//!
//! A waiter is woken when a majority of the servers have pushed since the last time. Fewer pushes
//! are mostly noise: each waiter gives back what it got of a lock that another holder has.

use std::{collections::HashSet, sync::Arc, time::Duration};

use dashmap::DashMap;
use futures_util::{FutureExt, future::select_all};
use tokio::time::{Instant, sleep_until};

use crate::{
    backend::{Change, Changes, Channels},
    key::Name,
    lease::Janitor,
    random,
    time::UNHEARD_LOOK,
};

/// For how long a name counts as contended after another claim was in the way.
const CONTENDED: Duration = Duration::from_secs(1);
/// The longest pause before a claim of a contended name.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

#[derive(Default)]
pub(super) struct Contention {
    channels: Channels,
    /// Until when each name counts as contended. A task listens for a name while it is here, also
    /// when that time is over and there are waiters.
    contended: DashMap<Name, Instant>,
}

impl Contention {
    /// Returns how long a claim waits before it asks, if it is to wait.
    pub(super) fn pause(&self, name: &Name) -> Option<Duration> {
        self.counts(name).then(|| random::up_to(LONGEST_PAUSE))
    }

    /// Notes that another claim was in the way. From then on a task listens for the waiters of the
    /// name, until there are none and the name no longer counts as contended.
    pub(super) fn met(self: &Arc<Self>, name: &Name, servers: &[Arc<Janitor>]) {
        let before = self.contended.insert(name.clone(), Instant::now() + CONTENDED);
        if before.is_none() {
            let each = servers.iter().map(|server| server.backend.listen(name, None)).collect();
            let listener =
                Listener { contention: self.clone(), name: name.clone(), has_ended: false };
            tokio::spawn(listener.hear(each));
        }
    }

    pub(super) fn listen(&self, name: &Name) -> Changes {
        self.channels.listen(&name.prefix, None)
    }

    fn counts(&self, name: &Name) -> bool {
        let until = self.contended.get(name).map(|until| *until);
        until.is_some_and(|until| until > Instant::now())
    }
}

/// The task that listens for the waiters of a name. If it ends with its runtime, its waiters ask
/// again after 0.7 s at most.
struct Listener {
    contention: Arc<Contention>,
    name: Name,
    /// Another task may listen for the name by now.
    has_ended: bool,
}

impl Listener {
    async fn hear(mut self, mut each: Vec<Changes>) {
        let needed = each.len() / 2 + 1;
        let (mut pushed, mut hears) = (HashSet::new(), false);
        let mut look = Instant::now() + CONTENDED;
        loop {
            let heard = each.iter_mut().map(Changes::subscribe).filter(|heard| *heard).count();
            if !std::mem::replace(&mut hears, heard >= needed) && hears {
                // Pushes before this are missed.
                self.wake();
            } else if !hears {
                look = look.min(Instant::now() + UNHEARD_LOOK);
            }
            let next = select_all(each.iter_mut().map(|changes| changes.next().boxed()));
            tokio::select! {
                (_, which, _) = next => {
                    pushed.insert(which);
                    if pushed.len() >= needed {
                        pushed.clear();
                        self.wake();
                    }
                }
                () = sleep_until(look) => {
                    if self.ends() {
                        return;
                    }
                    if !hears {
                        self.wake();
                    }
                    look = Instant::now() + CONTENDED;
                }
            }
        }
    }

    fn wake(&self) {
        self.contention.channels.push(&self.name.prefix, Change::Wake);
    }

    /// Ends the task if no waiter is left. Each registers before it looks whether there is a task,
    /// so the look for waiters and the end are one step.
    fn ends(&mut self) -> bool {
        let Contention { channels, contended } = &*self.contention;
        let now = Instant::now();
        let removed = contended.remove_if(&self.name, |name, until| {
            *until <= now && !channels.has_listeners(&name.prefix)
        });
        self.has_ended = removed.is_some();
        self.has_ended
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.has_ended {
            self.contention.contended.remove(&self.name);
        }
    }
}
