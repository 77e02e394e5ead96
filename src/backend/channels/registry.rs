//! The waiters of a process, their unread changes, and the channels at the server.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fmt,
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak},
    task::{Context, Poll, Waker},
};

use tokio::sync::watch;

use crate::{
    backend::{Change, Owner, Tap},
    error::{BackendError, BackendErrorKind},
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

/// The state of a subscription.
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

/// A registration for the changes of one name. Dropping it ends it.
pub struct Changes {
    /// `None` for a backend that pushes nothing.
    registry: Option<Arc<WaiterRegistry>>,
    inbox: Arc<Inbox>,
    places: [Option<WaiterPlace>; 2],
    /// Whether the changes come from a server.
    is_remote: bool,
    /// Whether the channels are open for it.
    is_open: bool,
}

impl Changes {
    /// Returns a registration for a backend that pushes nothing. Its waiter looks at intervals.
    pub fn none() -> Self {
        let (inbox, places) = (Arc::default(), [None, None]);
        Self { registry: None, inbox, places, is_remote: true, is_open: false }
    }

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
        Self { registry: Some(registry.clone()), inbox, places, is_remote, is_open: false }
    }

    /// Returns the next change, or [`Change::Wake`] if some were missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Change {
        poll_fn(|context| self.inbox.poll_next(context)).await
    }

    /// Asks the server for its subscriptions, if that was not done yet. Returns whether it has
    /// confirmed them, so that changes arrive.
    ///
    /// The listener is woken ([`Change::Wake`]) when they are confirmed, refused or lost.
    pub fn subscribe(&mut self) -> bool {
        matches!(self.subscription(), Subscription::Confirmed)
    }

    /// Completes when the server has confirmed the subscription, or refused it. The changes until
    /// then may be missed.
    ///
    /// # Errors
    ///
    /// What the server answered, or what the last attempt to connect to it ended with.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, changes may be missed.
    ///
    /// # Examples
    ///
    /// ```
    /// # let mut builder = tokio::runtime::Builder::new_current_thread();
    /// # builder.enable_time().build().unwrap().block_on(async {
    /// use bellwether::{
    ///     MemoryBackend,
    ///     backend::{Change, Leases, Mode},
    ///     key::{Family, Key, Name, Namespace},
    /// };
    ///
    /// let backend = MemoryBackend::new();
    /// let name = Name::new(&Namespace::standard(), Family::Lock, &Key::from("import"), 512)?;
    /// let mut changes = backend.listen(&name, None);
    /// changes.confirmed().await?;
    /// backend.clear(&name, Mode::Exclusive).await?;
    /// assert_eq!(changes.next().await, Change::Wake);
    /// # Ok::<_, bellwether::BoxError>(()) }).unwrap();
    /// ```
    pub async fn confirmed(&mut self) -> Result<(), BackendError> {
        loop {
            match self.subscription() {
                Subscription::Confirmed => break,
                Subscription::Failed(error) => return Err(error),
                Subscription::Pending => drop(self.next().await),
            }
        }
        self.inbox.forget();
        Ok(())
    }

    /// Opens its channels. Returns what is known of the subscriptions to them.
    fn subscription(&mut self) -> Subscription {
        let Some(registry) = &self.registry else {
            let why = "the backend pushes nothing";
            return Subscription::Failed(BackendError::new(BackendErrorKind::Refused, why));
        };
        if !self.is_remote {
            return Subscription::Confirmed;
        }
        let mut state = registry.state();
        if !std::mem::replace(&mut self.is_open, true) {
            let must_ask = |asks, place: &WaiterPlace| state.open(&place.channel) | asks;
            if self.places.iter().flatten().fold(false, must_ask) {
                registry.recheck();
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

impl Drop for Changes {
    fn drop(&mut self) {
        let Some(registry) = &self.registry else { return };
        let mut state = registry.state();
        let mut has_closed = false;
        for place in self.places.iter().flatten() {
            state.waiters.remove(place);
            has_closed |= self.is_open && state.close(&place.channel);
        }
        drop(state);
        if has_closed {
            registry.recheck();
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topics = self.places.iter().flatten().map(|place| &place.topic);
        f.debug_list().entries(topics).finish()
    }
}

/// The pushes that a slow waiter may have unread. With more, it looks again.
const BACKLOG: usize = 16;

/// Takes the pushes for one listener until it reads them.
#[derive(Default)]
struct Inbox(Mutex<Unread>);

#[derive(Default)]
struct Unread {
    unread: VecDeque<Change>,
    reader: Option<Waker>,
}

impl Inbox {
    /// Adds a push. Returns the task that reads it, to be woken when no lock is held any more.
    fn put(&self, change: Change) -> Option<Waker> {
        let mut state = lock(&self.0);
        if change == Change::Wake && state.unread.back() == Some(&change) {
            // One look sees both, as when two channels of a listener are lost together.
        } else if state.unread.len() == BACKLOG {
            state.unread.clear();
            state.unread.push_back(Change::Wake);
        } else {
            state.unread.push_back(change);
        }
        state.reader.take()
    }

    /// Takes the oldest push.
    fn poll_next(&self, context: &mut Context<'_>) -> Poll<Change> {
        let mut state = lock(&self.0);
        if let Some(change) = state.unread.pop_front() {
            return Poll::Ready(change);
        }
        match &mut state.reader {
            Some(reader) => reader.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Passes over the pushes until now.
    fn forget(&self) {
        lock(&self.0).unread.clear();
    }
}
