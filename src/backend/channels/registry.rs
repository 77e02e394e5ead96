//! Who waits for what, and the channels at the server.

use std::{
    collections::{BTreeMap, HashMap},
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak},
    task::Waker,
};

use tokio::sync::watch;

use super::inbox::Inbox;
use crate::{
    backend::{Change, Owner, Tap},
    error::BackendError,
    sync::lock,
};

/// The waiters of one backend.
#[derive(Default)]
pub(super) struct WaiterRegistry {
    state: Mutex<State>,
    /// Counts the channels that open and close, for the tasks that subscribe to them.
    pub(super) openings: watch::Sender<u64>,
    /// The local tiers that are told of the changes of entries.
    taps: RwLock<Vec<Weak<dyn Tap>>>,
}

#[derive(Default)]
pub(super) struct State {
    waiters: BTreeMap<WaiterPlace, Arc<Inbox>>,
    /// The channels to subscribe to at the server.
    pub(super) channels: HashMap<Arc<str>, ServerChannel>,
    /// The number of the next place.
    next: u64,
}

pub(super) struct ServerChannel {
    pub(super) subscription: Subscription,
    /// The channel closes when the last of them leaves.
    listeners: usize,
}

/// What is known of a subscription.
#[derive(Clone, Debug)]
pub(super) enum Subscription {
    /// It is asked for. Pushes may be missed.
    Pending,
    /// Pushes arrive.
    Confirmed,
    /// The server refuses it, or cannot be reached.
    Failed(BackendError),
}

/// The place of a listener. The listeners of one topic lie side by side, and those without an owner
/// come first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct WaiterPlace {
    channel: Arc<str>,
    topic: Arc<str>,
    owner: Option<Owner>,
    /// Tells places with the same owner apart.
    number: u64,
}

/// A topic, and the channel through which its changes come. Both are the same where the topic has a
/// channel of its own.
#[derive(Clone, Copy)]
pub(crate) struct TopicRoute<'a> {
    pub(crate) channel: &'a Arc<str>,
    pub(crate) topic: &'a Arc<str>,
}

impl WaiterRegistry {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(super) fn add_tap(&self, tap: Weak<dyn Tap>) {
        let mut taps = self.taps.write().unwrap_or_else(PoisonError::into_inner);
        taps.retain(|tap| tap.strong_count() > 0);
        taps.push(tap);
    }

    /// Tells all local tiers. Returns whether there is one.
    pub(super) fn tell_taps(&self, tell: impl Fn(&dyn Tap)) -> bool {
        let taps = self.taps.read().unwrap_or_else(PoisonError::into_inner);
        let told = taps.iter().filter_map(Weak::upgrade).map(|tap| tell(&*tap));
        told.count() > 0
    }

    /// Makes the tasks that subscribe look at all channels.
    pub(super) fn recheck(&self) {
        self.openings.send_modify(|openings| *openings = openings.wrapping_add(1));
    }
}

/// The tasks to wake when no lock is held any more.
#[must_use]
pub(super) struct TasksToWake(Vec<Waker>);

impl TasksToWake {
    /// Adds a change for some listeners.
    fn of<'a>(inboxes: impl Iterator<Item = &'a Arc<Inbox>>, change: &Change) -> Self {
        Self(inboxes.filter_map(|inbox| inbox.put(change.clone())).collect())
    }

    pub(super) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

impl State {
    /// Adds a change for the listeners that it is for. A change with an addressee costs the same
    /// however many listeners have other owners.
    pub(super) fn push(&self, channel: &str, topic: &str, change: &Change) -> TasksToWake {
        if self.waiters.is_empty() {
            return TasksToWake(Vec::new());
        }
        let addressee = change.addressee();
        let first =
            WaiterPlace { channel: channel.into(), topic: topic.into(), owner: None, number: 0 };
        let owned = WaiterPlace { owner: addressee, ..first.clone() };
        let is_for = move |place: &WaiterPlace| place.owner.is_none() || addressee.is_none();
        let all = self.from(first.clone()).take_while(|(at, _)| first.is_beside(at) && is_for(at));
        let one = self.from(owned.clone());
        let one = one.take_while(|(at, _)| owned.is_beside(at) && at.owner == addressee);
        let one = addressee.map(|_| one).into_iter().flatten();
        TasksToWake::of(all.chain(one).map(|(_, inbox)| inbox), change)
    }

    /// Makes the listeners of some channels look again.
    pub(super) fn wake(&self, which: impl Fn(&str) -> bool) -> TasksToWake {
        let all = self.waiters.iter().filter(|(place, _)| which(&place.channel));
        TasksToWake::of(all.map(|(_, inbox)| inbox), &Change::Wake)
    }

    /// Makes the listeners of one channel look again.
    pub(super) fn wake_one(&self, channel: &str) -> TasksToWake {
        let first =
            WaiterPlace { channel: channel.into(), topic: "".into(), owner: None, number: 0 };
        let all = self.from(first).take_while(|(place, _)| *place.channel == *channel);
        TasksToWake::of(all.map(|(_, inbox)| inbox), &Change::Wake)
    }

    pub(super) fn has_listeners(&self, route: TopicRoute<'_>) -> bool {
        let (channel, topic) = (route.channel.clone(), route.topic.clone());
        let first = WaiterPlace { channel, topic, owner: None, number: 0 };
        self.from(first.clone()).next().is_some_and(|(place, _)| first.is_beside(place))
    }

    /// Opens a channel for one more listener. Returns whether the server must be asked for it.
    pub(super) fn open(&mut self, channel: &Arc<str>) -> bool {
        if let Some(known) = self.channels.get_mut(channel) {
            known.listeners += 1;
            // The server may allow by now what it refused.
            let is_failed = matches!(known.subscription, Subscription::Failed(_));
            if is_failed {
                known.subscription = Subscription::Pending;
            }
            return is_failed;
        }
        let opened = ServerChannel { subscription: Subscription::Pending, listeners: 1 };
        self.channels.insert(channel.clone(), opened);
        true
    }

    /// Returns whether that was the last listener of the channel.
    fn close(&mut self, channel: &str) -> bool {
        let Some(known) = self.channels.get_mut(channel) else { return false };
        known.listeners -= 1;
        let is_last = known.listeners == 0;
        if is_last {
            self.channels.remove(channel);
        }
        is_last
    }

    fn from(&self, first: WaiterPlace) -> impl Iterator<Item = (&WaiterPlace, &Arc<Inbox>)> {
        self.waiters.range(first..)
    }
}

impl WaiterPlace {
    fn is_beside(&self, other: &Self) -> bool {
        (&self.channel, &self.topic) == (&other.channel, &other.topic)
    }
}

/// One registration, until it is dropped.
pub(super) struct Listener {
    registry: Arc<WaiterRegistry>,
    inbox: Arc<Inbox>,
    places: [Option<WaiterPlace>; 2],
    /// Whether the changes come from a server.
    is_remote: bool,
    /// Whether the channels are open for it.
    is_open: bool,
}

impl Listener {
    /// Registers for the changes without an addressee, and for those of the owner. Without an
    /// owner, it gets all changes.
    pub(super) fn new(
        registry: &Arc<WaiterRegistry>,
        routes: [Option<TopicRoute<'_>>; 2],
        owner: Option<Owner>,
        is_remote: bool,
    ) -> Self {
        let inbox = Arc::<Inbox>::default();
        let mut state = registry.state();
        let places = routes.map(|route| {
            let TopicRoute { channel, topic } = route?;
            let (channel, topic) = (channel.clone(), topic.clone());
            let place = WaiterPlace { channel, topic, owner, number: state.next };
            state.next += 1;
            state.waiters.insert(place.clone(), inbox.clone());
            Some(place)
        });
        drop(state);
        Self { registry: registry.clone(), inbox, places, is_remote, is_open: false }
    }

    pub(super) fn topic(&self) -> Option<&str> {
        self.places.iter().flatten().next().map(|place| &*place.topic)
    }

    pub(super) async fn next(&mut self) -> Change {
        poll_fn(|context| self.inbox.poll_next(context)).await
    }

    /// Passes over the changes until now.
    pub(super) fn forget(&mut self) {
        self.inbox.forget();
    }

    /// Opens its channels. Returns what is known of the subscriptions to them. The listener is
    /// woken whenever that changes.
    pub(super) fn subscribe(&mut self) -> Subscription {
        if !self.is_remote {
            return Subscription::Confirmed;
        }
        let mut state = self.registry.state();
        if !std::mem::replace(&mut self.is_open, true) {
            let must_ask = |asks, place: &WaiterPlace| state.open(&place.channel) | asks;
            if self.places.iter().flatten().fold(false, must_ask) {
                self.registry.recheck();
            }
        }
        let known = |place: &WaiterPlace| match state.channels.get(&place.channel) {
            Some(channel) => channel.subscription.clone(),
            None => Subscription::Pending,
        };
        let mut each = self.places.iter().flatten().map(known);
        let unheard = each.find(|known| !matches!(known, Subscription::Confirmed));
        unheard.unwrap_or(Subscription::Confirmed)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut state = self.registry.state();
        let mut has_closed = false;
        for place in self.places.iter().flatten() {
            state.waiters.remove(place);
            has_closed |= self.is_open && state.close(&place.channel);
        }
        drop(state);
        if has_closed {
            self.registry.recheck();
        }
    }
}
