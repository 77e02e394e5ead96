//! Other processes that want the same name: which of them asks first, and what wakes them.
//!
//! A release wakes all processes that wait. Each asks after a random time, so that mostly one of
//! them finds a majority free. A process that takes a lock again and again may meet no other, and
//! does not know that others wait. So it gives way from time to time.
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
/// A process that takes a lock again this soon takes it from waiters that are just woken.
const AGAIN: Duration = Duration::from_millis(5);
/// How often such a process gives way, and for how long.
const TURN: Duration = Duration::from_millis(50);
const GIVE_WAY: Duration = Duration::from_millis(2);
/// The number of names whose release is remembered.
const NAMES: usize = 1024;

#[derive(Default)]
pub(super) struct Contention {
    channels: Channels,
    /// The names for which a task listens, while they count as contended or have waiters.
    contended: Mutex<HashMap<Name, Contended>>,
    streaks: Mutex<HashMap<Name, Streak>>,
}

struct Contended {
    /// Until when the name counts as contended.
    until: Instant,
    listening: JoinHandle<()>,
}

/// The holds of this process, one soon after another.
struct Streak {
    /// When it began, or when the process gave way last.
    since: Instant,
    released: Instant,
}

impl Contention {
    /// Returns how long a claim waits before it asks, if it is to wait.
    pub(super) fn pause(&self, name: &Name) -> Option<Duration> {
        let now = Instant::now();
        let is_contended = lock(&self.contended).get(name).is_some_and(|name| name.until > now);
        let mut streaks = lock(&self.streaks);
        let streak = streaks.get_mut(name).filter(|streak| now - streak.released < AGAIN);
        if is_contended {
            // The process that had the lock last comes behind most others.
            let least = if streak.is_some() { 0.5 } else { 0.0 };
            return Some(LONGEST_PAUSE.mul_f64(least + (1.0 - least) * fastrand::f64()));
        }
        let Some(streak) = streak else {
            streaks.remove(name);
            return None;
        };
        let is_over = now - streak.since >= TURN;
        if is_over {
            streak.since = now;
        }
        is_over.then_some(GIVE_WAY)
    }

    /// Notes that this process has the lock no longer.
    pub(super) fn released(&self, name: &Name) {
        let (mut streaks, now) = (lock(&self.streaks), Instant::now());
        if streaks.len() >= NAMES {
            streaks.retain(|_, streak| now - streak.released < AGAIN);
        }
        if streaks.len() < NAMES {
            let new = || Streak { since: now, released: now };
            streaks.entry(name.clone()).or_insert_with(new).released = now;
        }
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
        self.channels.listen(&name.prefix, None)
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
        self.channels.push(&name.prefix, Change::Wake);
    }

    /// Ends the task of a name if no waiter is left. Each registers before it looks whether there
    /// is a task, so the look for waiters and the end are one step.
    fn ends(&self, name: &Name) -> bool {
        let mut contended = lock(&self.contended);
        let counts = contended.get(name).is_some_and(|name| name.until > Instant::now());
        let ends = !counts && !self.channels.has_listeners(&name.prefix);
        if ends {
            contended.remove(name);
        }
        ends
    }
}
