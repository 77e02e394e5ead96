//! Several processes that want the same name: which process sends its claim first, and what wakes
//! the waiters.
//!
//! A release wakes all processes that wait. Each process sends its claim after a random pause, so
//! that mostly one process finds a majority free. The last holder pauses like the others, because
//! the name counts as contended: the claims of other processes come between the release of the last
//! holder and its next claim.
//!
//! A waiter is woken when a majority of the servers have pushed since the last time. Fewer pushes
//! are mostly noise, because each waiter gives back the shares of a lock that another holder has.

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
    /// Until when each name counts as contended. A task listens for each name in this map. The name
    /// stays after its time while there are waiters.
    contended: DashMap<Name, Instant>,
}

impl Contention {
    /// Returns the pause before a claim is sent, if the name is contended.
    pub(super) fn pause(&self, name: &Name) -> Option<Duration> {
        if self.is_contended(name) { Some(random::up_to(LONGEST_PAUSE)) } else { None }
    }

    /// Notes that another claim was in the way. From then on a task listens for the waiters of the
    /// name, until there are no waiters and the name no longer counts as contended.
    pub(super) fn met(self: &Arc<Self>, name: &Name, servers: &[Arc<Janitor>]) {
        let before = self.contended.insert(name.clone(), Instant::now() + CONTENDED);
        if before.is_none() {
            let servers = servers.iter();
            let subscriptions = servers.map(|server| server.backend.listen(name, None)).collect();
            let listener =
                Listener { contention: self.clone(), name: name.clone(), has_ended: false };
            tokio::spawn(listener.run(subscriptions));
        }
    }

    pub(super) fn listen(&self, name: &Name) -> Changes {
        self.channels.listen(&name.prefix, None)
    }

    fn is_contended(&self, name: &Name) -> bool {
        self.contended.get(name).is_some_and(|until| *until > Instant::now())
    }
}

/// The task that listens for the waiters of a name. If the task ends with its runtime, the waiters
/// send their claims again after 0.7 s at most.
struct Listener {
    contention: Arc<Contention>,
    name: Name,
    /// The task has left the map, and another task may listen for the name.
    has_ended: bool,
}

impl Listener {
    async fn run(mut self, mut subscriptions: Vec<Changes>) {
        let needed = subscriptions.len() / 2 + 1;
        let mut pushed = HashSet::new();
        let mut was_subscribed = false;
        let mut next_check = Instant::now() + CONTENDED;
        loop {
            let mut subscribed = 0;
            for changes in &mut subscriptions {
                subscribed += usize::from(changes.subscribe());
            }
            let is_subscribed = subscribed >= needed;
            if is_subscribed && !was_subscribed {
                // The pushes before the subscription were missed.
                self.wake();
            }
            if !is_subscribed {
                next_check = next_check.min(Instant::now() + UNHEARD_LOOK);
            }
            was_subscribed = is_subscribed;
            let next = select_all(subscriptions.iter_mut().map(|changes| changes.next().boxed()));
            tokio::select! {
                (_, server, _) = next => {
                    pushed.insert(server);
                    if pushed.len() >= needed {
                        pushed.clear();
                        self.wake();
                    }
                }
                () = sleep_until(next_check) => {
                    if self.ends() {
                        return;
                    }
                    if !is_subscribed {
                        self.wake();
                    }
                    next_check = Instant::now() + CONTENDED;
                }
            }
        }
    }

    fn wake(&self) {
        self.contention.channels.push(&self.name.prefix, Change::Wake);
    }

    /// Takes the task out of the map if no waiter is left. Returns whether the task ends.
    ///
    /// A waiter registers before it looks for a task. So the check for waiters and the removal are
    /// one step under the lock of the map.
    fn ends(&mut self) -> bool {
        let Contention { channels, contended } = &*self.contention;
        let now = Instant::now();
        let removed = contended.remove_if(&self.name, |name, until| {
            *until <= now && !channels.has_waiters(&name.prefix)
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
