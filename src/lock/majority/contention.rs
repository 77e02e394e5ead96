//! Other processes that want the same name: which of them asks first, and what wakes them.
//!
//! A release wakes all processes that wait. Each asks after a random time, so that mostly one of
//! them finds a majority free. So does a process that has met others at some of the servers.
//!
//! A waiter is woken when a majority of the servers have pushed since the last time. Fewer pushes
//! are mostly noise: each waiter gives back what it got of a lock that another holder has.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{FutureExt, future::select_all};
use tokio::{
    task::JoinHandle,
    time::{Instant, sleep_until},
};

use crate::{
    backend::{Change, Changes, Channels},
    key::Name,
    lease::Janitor,
    sync::lock,
};

/// For how long a name counts as contended after another claim was in the way.
const CONTENDED: Duration = Duration::from_secs(1);
/// How often the waiters look while no majority pushes.
const UNHEARD_LOOK: Duration = Duration::from_millis(100);
/// The longest pause before a claim of a contended name.
const LONGEST_PAUSE: Duration = Duration::from_millis(8);

#[derive(Default)]
pub(super) struct Contention {
    channels: Channels,
    /// The names for which a task listens, while they count as contended or have waiters.
    contended: Mutex<HashMap<Name, Contended>>,
}

struct Contended {
    /// Until when the name counts as contended.
    until: Instant,
    listening: JoinHandle<()>,
}

impl Contention {
    /// Returns how long a claim waits before it asks, if it is to wait.
    pub(super) fn pause(&self, name: &Name) -> Option<Duration> {
        let contended = lock(&self.contended);
        let is_contended = contended.get(name).is_some_and(|name| name.until > Instant::now());
        is_contended.then(|| LONGEST_PAUSE.mul_f64(fastrand::f64()))
    }

    /// Notes that another claim was in the way. From then on a task listens for the waiters of the
    /// name, until there are none and the name no longer counts as contended.
    pub(super) fn met(self: &Arc<Self>, name: &Name, servers: &[Arc<Janitor>]) {
        let until = Instant::now() + CONTENDED;
        let mut contended = lock(&self.contended);
        // A task has finished whose runtime is gone. Its waiters ask again after 0.7 s at most.
        let known = contended.get_mut(name).filter(|known| !known.listening.is_finished());
        if let Some(known) = known {
            known.until = until;
            return;
        }
        contended.retain(|_, known| !known.listening.is_finished());
        let each = servers.iter().map(|server| server.backend.listen(name, None)).collect();
        let listening = tokio::spawn(self.clone().hear(name.clone(), each));
        contended.insert(name.clone(), Contended { until, listening });
    }

    pub(super) fn listen(&self, name: &Name) -> Changes {
        self.channels.listen(name.prefix(), None)
    }

    async fn hear(self: Arc<Self>, name: Name, mut each: Vec<Changes>) {
        let needed = each.len() / 2 + 1;
        let (mut pushed, mut hears) = (HashSet::new(), false);
        let mut look = Instant::now() + CONTENDED;
        loop {
            let heard = each.iter_mut().map(Changes::subscribe).filter(|heard| *heard).count();
            if !std::mem::replace(&mut hears, heard >= needed) && hears {
                // Pushes before this are missed.
                self.wake(&name);
            } else if !hears {
                look = look.min(Instant::now() + UNHEARD_LOOK);
            }
            let next = select_all(each.iter_mut().map(|changes| changes.next().boxed()));
            tokio::select! {
                (_, which, _) = next => {
                    pushed.insert(which);
                    if pushed.len() >= needed {
                        pushed.clear();
                        self.wake(&name);
                    }
                }
                () = sleep_until(look) => {
                    if self.ends(&name) {
                        return;
                    }
                    if !hears {
                        self.wake(&name);
                    }
                    look = Instant::now() + CONTENDED;
                }
            }
        }
    }

    fn wake(&self, name: &Name) {
        self.channels.push(name.prefix(), Change::Wake);
    }

    /// Ends the task of a name if no waiter is left. Each registers before it looks whether there
    /// is a task, so the look for waiters and the end are one step.
    fn ends(&self, name: &Name) -> bool {
        let mut contended = lock(&self.contended);
        let counts = contended.get(name).is_some_and(|name| name.until > Instant::now());
        let ends = !counts && !self.channels.has_listeners(name.prefix());
        if ends {
            contended.remove(name);
        }
        ends
    }
}
