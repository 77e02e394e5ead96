//! The topics that are listened to, and their listeners.
//!
//! A topic has a channel of its own at the server. Otherwise its pushes come through a channel of
//! the process, with those of many other topics.

use std::{
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard},
    task::Waker,
};

use hashbrown::{HashMap, hash_map::Entry};
use tokio::sync::watch;

use super::{inbox::Inbox, missed::MissedPushes};
use crate::{
    backend::{Change, Owner},
    error::BackendError,
    sync::lock,
};

/// The topics to which one [`Channels`](super::Channels) listens.
#[derive(Default)]
pub(super) struct Topics {
    open: Mutex<Open>,
    /// Counts openings and closings, for the task that keeps subscriptions in step.
    pub(super) openings: watch::Sender<u64>,
    pub(super) missed: MissedPushes,
}

#[derive(Default)]
pub(super) struct Open {
    topics: HashMap<Arc<str>, Topic>,
    /// The channels of the process. They stay open.
    process_channels: HashMap<Arc<str>, watch::Sender<Subscription>>,
}

/// The listeners of one topic. Each of them is in one of the maps.
pub(super) struct Topic {
    /// The listeners that have an address: the changes for other owners do not reach them.
    addressed: HashMap<Owner, Arc<Inbox>>,
    /// The listeners that get the changes for each owner, by their numbers.
    observers: HashMap<u64, Observer>,
    /// The number of the next observer.
    next: u64,
    /// The channel of the process through which its pushes come. `None` if it has its own channel.
    through: Option<Arc<str>>,
    subscription: watch::Sender<Subscription>,
}

struct Observer {
    inbox: Arc<Inbox>,
    /// It gets the changes without an addressee as well.
    hears_all: bool,
}

/// The answer of the server to a subscription.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
#[derive(Clone, Debug)]
pub(crate) enum Subscription {
    /// Nothing yet.
    Asked,
    /// Pushes arrive.
    Confirmed,
    /// It was confirmed, and pushes may be missed until it is confirmed again.
    Lost,
    /// The server refuses it.
    Refused(BackendError),
}

/// A topic, and the way of its pushes.
#[derive(Clone, Copy)]
pub(crate) struct TopicRoute<'a> {
    pub(crate) topic: &'a Arc<str>,
    /// The channel of the process through which they come, or `None` for the topic's own channel.
    pub(crate) through: Option<&'a Arc<str>>,
    /// Whether the listener gets the changes without an addressee, before it has an address.
    pub(crate) hears_all: bool,
}

impl Topics {
    pub(super) fn open(&self) -> MutexGuard<'_, Open> {
        lock(&self.open)
    }

    /// Listens to topics, and opens those that are not open.
    pub(super) fn listen<const N: usize>(
        self: &Arc<Self>,
        sources: [TopicRoute<'_>; N],
    ) -> [Listener; N] {
        let mut open = self.open();
        let mut is_asked_for = false;
        let listeners = sources.map(|source| {
            let (topic, asked_for) = open.topic(source);
            is_asked_for |= asked_for;
            topic.listen(source.topic, source.hears_all, self)
        });
        drop(open);
        if is_asked_for {
            self.recheck();
        }
        listeners
    }

    /// Adds a push for the listeners that it is for. Returns the tasks to wake.
    pub(super) fn push(&self, topic: &str, change: &Change) -> Vec<Waker> {
        let open = self.open();
        let found = open.topics.get(topic);
        // Under the lock: a waiter that is about to listen gets the push, or sees the count.
        match change.addressee() {
            None => self.missed.note(topic),
            Some(owner) if found.is_some_and(|topic| topic.addressed.contains_key(&owner)) => {}
            Some(owner) => self.missed.note_for(owner),
        }
        found.map_or(Vec::new(), |topic| topic.push(change))
    }

    /// Makes the task that keeps subscriptions in step look at all of them.
    pub(super) fn recheck(&self) {
        self.openings.send_modify(|openings| *openings = openings.wrapping_add(1));
    }
}

impl Open {
    /// Returns a topic, and whether the server must be asked for its subscription.
    fn topic(&mut self, source: TopicRoute<'_>) -> (&mut Topic, bool) {
        let shared = source.through.map(|channel| self.process_channel(channel));
        let must_ask = shared.as_ref().is_some_and(|(said, is_new)| {
            // The server may allow by now what it refused.
            let asks_again = |said: &mut Subscription| {
                let is_refused = matches!(said, Subscription::Refused(_));
                if is_refused {
                    *said = Subscription::Asked;
                }
                is_refused
            };
            *is_new || said.send_if_modified(asks_again)
        });
        match self.topics.entry(source.topic.clone()) {
            Entry::Occupied(topic) => (topic.into_mut(), must_ask),
            Entry::Vacant(free) => {
                let own = || watch::Sender::new(Subscription::Asked);
                let is_own = shared.is_none();
                let subscription = shared.map_or_else(own, |(shared, _)| shared);
                let topic = Topic::new(source.through.cloned(), subscription);
                (free.insert(topic), must_ask || is_own)
            }
        }
    }

    /// Opens a channel of the process. Returns its subscription, and whether the server must be
    /// asked for it.
    pub(super) fn process_channel(
        &mut self,
        channel: &Arc<str>,
    ) -> (watch::Sender<Subscription>, bool) {
        let mut must_ask = false;
        let subscription = self.process_channels.entry(channel.clone()).or_insert_with(|| {
            must_ask = true;
            watch::Sender::new(Subscription::Asked)
        });
        (subscription.clone(), must_ask)
    }

    /// Adds a push for the listeners of some topics, by the channels of their pushes.
    pub(super) fn push_each(&self, change: &Change, which: impl Fn(&str) -> bool) -> Vec<Waker> {
        let topics = self.topics.iter().filter(|(name, topic)| which(topic.channel(name)));
        topics.flat_map(|(_, topic)| topic.push(change)).collect()
    }

    /// Returns whether a topic has listeners.
    pub(super) fn has_listeners(&self, topic: &str) -> bool {
        self.topics.contains_key(topic)
    }

    /// Returns the topics that have listeners.
    pub(super) fn topics(&self) -> impl Iterator<Item = &Arc<str>> {
        self.topics.keys()
    }

    /// Returns the channels that are subscribed to at the server, with what it has said of each.
    pub(super) fn channels(
        &self,
    ) -> impl Iterator<Item = (&Arc<str>, &watch::Sender<Subscription>)> {
        let own = self.topics.iter().filter(|(_, topic)| topic.through.is_none());
        let own = own.map(|(name, topic)| (name, &topic.subscription));
        own.chain(&self.process_channels)
    }

    pub(super) fn is_process_channel(&self, channel: &str) -> bool {
        self.process_channels.contains_key(channel)
    }

    /// Returns what the server has said of a channel, if it is wanted.
    pub(super) fn subscription(&self, channel: &str) -> Option<&watch::Sender<Subscription>> {
        self.process_channels.get(channel).or_else(|| {
            let topic = self.topics.get(channel).filter(|topic| topic.through.is_none())?;
            Some(&topic.subscription)
        })
    }

    /// Listens to a topic that is open.
    pub(super) fn listen(&mut self, topic: &Arc<str>, topics: &Arc<Topics>) -> Option<Listener> {
        Some(self.topics.get_mut(topic)?.listen(topic, true, topics))
    }
}

impl Topic {
    fn new(through: Option<Arc<str>>, subscription: watch::Sender<Subscription>) -> Self {
        let (addressed, observers) = Default::default();
        Self { addressed, observers, next: 0, through, subscription }
    }

    fn listen(&mut self, topic: &Arc<str>, hears_all: bool, topics: &Arc<Topics>) -> Listener {
        let inbox = Arc::<Inbox>::default();
        let place = self.observe(Observer { inbox: inbox.clone(), hears_all });
        let subscription = self.subscription.subscribe();
        Listener { inbox, place, subscription, topic: topic.clone(), topics: topics.clone() }
    }

    /// Returns the channel of its pushes.
    fn channel<'a>(&'a self, topic: &'a Arc<str>) -> &'a str {
        self.through.as_ref().unwrap_or(topic)
    }

    /// A change with an addressee costs the same however many listeners have other addresses.
    fn push(&self, change: &Change) -> Vec<Waker> {
        let deliver = |inbox: &Arc<Inbox>| inbox.put(change.clone());
        let addressee = change.addressee();
        let mut readers: Vec<_> = match addressee {
            Some(owner) => self.addressed.get(&owner).and_then(deliver).into_iter().collect(),
            None => self.addressed.values().filter_map(deliver).collect(),
        };
        let observers = self.observers.values();
        let observers = observers.filter(|one| one.hears_all || addressee.is_some());
        readers.extend(observers.filter_map(|one| deliver(&one.inbox)));
        readers
    }

    fn observe(&mut self, observer: Observer) -> ListenerKind {
        let number = self.next;
        self.next += 1;
        self.observers.insert(number, observer);
        ListenerKind::Observer(number)
    }

    /// Moves a listener to an address. It stays an observer if another listener has the address.
    fn address(&mut self, place: ListenerKind, owner: Owner) -> ListenerKind {
        if place == ListenerKind::Owner(owner) {
            return place;
        }
        let Some(inbox) = self.remove(place) else { return place };
        match self.addressed.entry(owner) {
            Entry::Vacant(free) => {
                free.insert(inbox);
                ListenerKind::Owner(owner)
            }
            Entry::Occupied(_) => self.observe(Observer { inbox, hears_all: true }),
        }
    }

    fn remove(&mut self, place: ListenerKind) -> Option<Arc<Inbox>> {
        match place {
            ListenerKind::Owner(owner) => self.addressed.remove(&owner),
            ListenerKind::Observer(number) => self.observers.remove(&number).map(|one| one.inbox),
        }
    }

    fn is_empty(&self) -> bool {
        self.addressed.is_empty() && self.observers.is_empty()
    }
}

/// Which of the listeners of a topic one is.
#[derive(Clone, Copy, PartialEq)]
enum ListenerKind {
    Owner(Owner),
    Observer(u64),
}

/// One subscription to one topic.
pub(super) struct Listener {
    inbox: Arc<Inbox>,
    place: ListenerKind,
    subscription: watch::Receiver<Subscription>,
    topic: Arc<str>,
    topics: Arc<Topics>,
}

impl Listener {
    pub(super) fn topic(&self) -> &Arc<str> {
        &self.topic
    }

    pub(super) async fn next(&mut self) -> Change {
        poll_fn(|context| self.inbox.poll_next(context)).await
    }

    /// Gets the changes for this owner from now on, and none for another one.
    pub(super) fn address(&mut self, owner: Owner) {
        if let Some(topic) = self.topics.open().topics.get_mut(&self.topic) {
            self.place = topic.address(self.place, owner);
        }
    }

    /// Passes over the pushes until now.
    pub(super) fn forget(&mut self) {
        self.inbox.forget();
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(*self.subscription.borrow(), Subscription::Lost | Subscription::Refused(_))
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(super) async fn confirmed(&mut self) -> Result<(), BackendError> {
        let is_answered = |answer: &Subscription| {
            matches!(answer, Subscription::Confirmed | Subscription::Refused(_))
        };
        let answer = self.subscription.wait_for(is_answered).await.map(|answer| answer.clone());
        match answer {
            Ok(Subscription::Refused(error)) => Err(error),
            Ok(_) => Ok(()),
            // The topic lives as long as this listener.
            Err(_) => std::future::pending().await,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut open = self.topics.open();
        let Some(topic) = open.topics.get_mut(&self.topic) else { return };
        drop(topic.remove(self.place));
        if !topic.is_empty() {
            return;
        }
        let has_channel = topic.through.is_none();
        open.topics.remove(&self.topic);
        // The memory of a burst is given back.
        let (capacity, left) = (open.topics.capacity(), open.topics.len());
        if capacity > 1024 && left < capacity / 8 {
            open.topics.shrink_to(left * 2);
        }
        drop(open);
        if has_channel {
            self.topics.recheck();
        }
    }
}
