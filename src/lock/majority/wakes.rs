//! The pushes of several servers, told as one.
//!
//! A release reaches a majority, and so does a try that is given back at several servers. A push of
//! fewer servers than listen in a majority is the noise of waiters, each of which gives back what
//! it got of a lock that another holder has. So a waiter is woken when the number of pushes has
//! grown at a majority.
//!
//! One task listens for all waiters of a name, while there are any. While no majority pushes, it
//! has them look at intervals.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{FutureExt, future::select_all};
use tokio::time::interval;

use crate::{
    backend::{Change, Changes, Channels},
    key::Name,
    lease::Janitor,
    sync::lock,
};

/// How long a task listens at most after its last waiter has left.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Clone, Default)]
pub(super) struct Wakes {
    channels: Channels,
    /// The names for which a task listens.
    heard: Arc<Mutex<HashSet<Arc<str>>>>,
}

impl Wakes {
    /// Registers a waiter for the wakes of a name.
    pub(super) fn listen(&self, name: &Name) -> Changes {
        let name = name.prefix();
        self.channels.register(name, [Some(name.clone()), None], None)
    }

    /// Listens to all servers, if that is not done yet.
    pub(super) fn hear(&self, servers: &[Arc<Janitor>], needed: usize, name: &Name) {
        if !lock(&self.heard).insert(name.prefix().clone()) {
            return;
        }
        let each = servers.iter().map(|server| {
            let mut changes = server.backend().listen(name, None);
            changes.subscribe();
            changes
        });
        // Keeps the answer about the subscription while no waiter is there.
        let mut open =
            self.channels.register(&"".into(), [Some(name.prefix().clone()), None], None);
        open.subscribe();
        let name = name.prefix().clone();
        let wakes = self.clone();
        let task = Hearing { wakes, name, _open: open, pushes: false, ended: false };
        tokio::spawn(task.run(each.collect(), needed));
    }
}

/// The task of a name.
struct Hearing {
    wakes: Wakes,
    name: Arc<str>,
    _open: Changes,
    /// A majority pushes.
    pushes: bool,
    ended: bool,
}

impl Hearing {
    async fn run(mut self, mut each: Vec<Changes>, needed: usize) {
        let mut pushes = vec![0_u64; each.len()];
        let mut looks = interval(LINGER);
        looks.tick().await;
        loop {
            let pushing = each.iter_mut().map(Changes::subscribe).filter(|pushes| *pushes).count();
            self.tell(pushing >= needed);
            let next = select_all(each.iter_mut().map(|changes| changes.next().boxed()));
            let heard = tokio::select! {
                (_, which, _) = next => Some(which),
                _ = looks.tick() => None,
            };
            let Some(which) = heard else {
                if self.ends() {
                    return;
                }
                continue;
            };
            // A majority, or as many of them as push.
            let enough = needed.min(pushing).max(1);
            let before = common(&pushes, enough);
            if let Some(count) = pushes.get_mut(which) {
                *count += 1;
            }
            if common(&pushes, enough) > before {
                self.wakes.channels.push(&self.name, Change::Wake);
            }
        }
    }

    /// Tells the waiters whether they can sleep, if that is new.
    fn tell(&mut self, pushes: bool) {
        if std::mem::replace(&mut self.pushes, pushes) == pushes {
            return;
        }
        match pushes {
            true => self.wakes.channels.answer(|channel| *channel == *self.name, Ok(())),
            false => self.wakes.channels.lost(|channel| *channel == *self.name),
        }
    }

    /// Ends the task if no waiter is left. Each listens before it looks whether there is a task.
    fn ends(&mut self) -> bool {
        let mut heard = lock(&self.wakes.heard);
        self.ended = !self.wakes.channels.has_listeners(&self.name);
        if self.ended {
            heard.remove(&self.name);
        }
        self.ended
    }
}

impl Drop for Hearing {
    fn drop(&mut self) {
        // Its runtime is gone.
        if !self.ended {
            lock(&self.wakes.heard).remove(&self.name);
            self.wakes.channels.lost(|channel| *channel == *self.name);
        }
    }
}

/// Returns the number of pushes that at least this many servers have sent.
fn common(pushes: &[u64], enough: usize) -> u64 {
    let mut sorted = pushes.to_vec();
    sorted.sort_unstable_by(|one, other| other.cmp(one));
    sorted.get(enough - 1).copied().unwrap_or_default()
}
