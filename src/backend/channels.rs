//! The waiters of this process that are told of the changes of a name.
//!
//! A waiter registers before its request is sent, so it misses no push: its [`Changes`] keep what
//! it has not read. At a server, the changes of many names come through a few channels of the
//! process, which stay open. While such a channel is not confirmed, pushes may be missed. So all
//! its waiters are woken when the connection breaks, and when the channel is confirmed. A waiter
//! that was told nothing while its request was under way can sleep.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, mem,
    sync::{Arc, Mutex, MutexGuard, RwLock, Weak},
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    Change, Claim, HANDOVER_LIFE, HandedHold, Handover, Holders, Mode, Owner, ProcessId, Tap,
};
use crate::{
    key::Name,
    random::{HashMap, HashSet},
    sync::{lock, read, write},
};

/// The waiters of a backend. Clones share them.
#[derive(Clone, Default)]
pub struct Channels(Arc<Registry>);

#[derive(Default)]
struct Registry {
    state: Mutex<State>,
    /// Changes when a channel opens or closes, for the tasks that subscribe to them.
    openings: watch::Sender<u64>,
    taps: RwLock<Vec<Weak<dyn Tap>>>,
    holders: RwLock<Vec<Weak<dyn Holders>>>,
}

#[derive(Default)]
struct State {
    waiters: BTreeMap<WaiterPlace, Waiter>,
    channels: HashMap<Arc<str>, ServerChannel>,
    /// The number of the last place.
    last: u64,
}

/// The place of a waiter. The waiters of one topic lie side by side, and those without an owner
/// come first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct WaiterPlace {
    topic: Arc<str>,
    owner: Option<Owner>,
    /// Tells places with the same owner apart.
    number: u64,
}

struct Waiter {
    inbox: Arc<Inbox>,
    /// The channels of a server through which it hears.
    channels: Vec<Arc<str>>,
    /// Whether the channels are open for it.
    is_open: bool,
}

#[derive(Default)]
struct ServerChannel {
    /// Pushes arrive. Otherwise the server is asked for them, cannot be reached, or refuses them.
    is_confirmed: bool,
    /// The channel closes when the last of them leaves, unless it stays.
    listeners: usize,
    stays: bool,
}

impl Channels {
    /// Registers a waiter of a topic. It gets the changes without an
    /// [addressee](Change::addressee) and those for its owner. Without an owner, it gets all.
    pub fn listen(&self, topic: &Arc<str>, owner: Option<Owner>) -> Changes {
        self.register(topic, Vec::new(), owner)
    }

    /// Pushes a change to the waiters of a topic. A change [for one owner](Change::addressee) goes
    /// to the one that has this owner, and to those without an owner. It costs the same however
    /// many waiters have other owners.
    pub fn push(&self, topic: &str, change: Change) {
        if let Some(fence) = change.of_entry() {
            self.tell_taps(|tap| tap.changed(topic, fence));
        }
        if let Change::Ended(owner) = change {
            for holders in self.holders() {
                holders.ended(owner);
            }
            return;
        }
        if !self.put(topic, &change)
            && let Change::Granted(handover) = change
        {
            self.orphaned(topic, &handover);
        }
    }

    /// Gives a change to the waiters that it is for. Returns whether there is one.
    fn put(&self, topic: &str, change: &Change) -> bool {
        let state = self.state();
        if state.waiters.is_empty() {
            return false;
        }
        let (topic, addressee) = (Arc::from(topic), change.addressee());
        let is_for = |place: &WaiterPlace| place.owner.is_none() || addressee.is_none();
        let all = state.from(&topic, None).take_while(|(place, _)| is_for(place));
        let one = addressee.map(|owner| state.from(&topic, Some(owner)));
        let one = one.into_iter().flatten().take_while(|(place, _)| place.owner == addressee);
        let told: Vec<_> = all.chain(one).map(|(_, waiter)| waiter.inbox.clone()).collect();
        drop(state);
        for inbox in &told {
            inbox.put(change.clone());
        }
        !told.is_empty()
    }

    /// Has a lease released that was handed over to an owner which neither waits nor holds here.
    /// Its waiter has left, and its undo was lost with its runtime or its connection.
    fn orphaned(&self, topic: &str, handover: &Handover) {
        let mode = match handover.hold {
            HandedHold::Mutex => Mode::Exclusive,
            HandedHold::Writer => Mode::Write,
            HandedHold::Shared => return,
        };
        // Several backends of a test may have this id, and another one may have the waiter.
        if handover.owner.process() == ProcessId::of_this() {
            return;
        }
        let all = self.holders();
        let Some(first) = all.first() else { return };
        if all.iter().any(|holders| holders.has(handover.owner)) {
            return;
        }
        let name = Name::of_lock(topic);
        first.orphaned(Claim::under(handover.owner, name, mode, HANDOVER_LIFE, HANDOVER_LIFE));
    }

    /// Registers a waiter whose changes come through some channels of a server.
    pub(crate) fn register(
        &self,
        topic: &Arc<str>,
        channels: Vec<Arc<str>>,
        owner: Option<Owner>,
    ) -> Changes {
        let inbox = Arc::<Inbox>::default();
        let mut state = self.state();
        state.last += 1;
        let place = WaiterPlace { topic: topic.clone(), owner, number: state.last };
        let waiter = Waiter { inbox: inbox.clone(), channels, is_open: false };
        state.waiters.insert(place.clone(), waiter);
        drop(state);
        Changes { inbox, channels: self.clone(), place }
    }

    pub(crate) fn has_listeners(&self, topic: &Arc<str>) -> bool {
        self.state().from(topic, None).next().is_some()
    }

    pub(crate) fn add_tap(&self, tap: Weak<dyn Tap>) {
        let mut taps = write(&self.0.taps);
        taps.retain(|tap| tap.strong_count() > 0);
        taps.push(tap);
    }

    pub(crate) fn add_holders(&self, holders: Weak<dyn Holders>) {
        let mut all = write(&self.0.holders);
        all.retain(|holders| holders.strong_count() > 0);
        all.push(holders);
    }

    fn holders(&self) -> Vec<Arc<dyn Holders>> {
        read(&self.0.holders).iter().filter_map(Weak::upgrade).collect()
    }

    /// Tells all local tiers. Returns whether there is one.
    pub(crate) fn tell_taps(&self, tell: impl Fn(&dyn Tap)) -> bool {
        let taps = read(&self.0.taps);
        let told = taps.iter().filter_map(Weak::upgrade).map(|tap| tell(&*tap));
        told.count() > 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Makes the tasks that subscribe look at all channels.
    pub(crate) fn recheck(&self) {
        self.0.openings.send_modify(|openings| *openings = openings.wrapping_add(1));
    }
}

/// For a backend that subscribes at a server.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
impl Channels {
    /// Opens a channel of the process, which stays open.
    pub(crate) fn open(&self, channel: &Arc<str>) {
        let mut state = self.state();
        let is_new = !state.channels.contains_key(channel);
        state.channels.entry(channel.clone()).or_default().stays = true;
        drop(state);
        if is_new {
            self.recheck();
        }
    }

    /// Returns whether a channel is open, and its pushes arrive.
    pub(crate) fn is_confirmed(&self, channel: &str) -> bool {
        self.state().channels.get(channel).is_some_and(|known| known.is_confirmed)
    }

    pub(crate) fn wants(&self, channel: &str) -> bool {
        self.state().channels.contains_key(channel)
    }

    /// Returns the channels to subscribe to, of some.
    pub(crate) fn wanted(&self, which: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        self.state().channels.keys().filter(|channel| which(channel)).cloned().collect()
    }

    /// Tells whenever a channel opens or closes.
    pub(crate) fn openings(&self) -> watch::Receiver<u64> {
        self.0.openings.subscribe()
    }

    /// Notes that the subscriptions to some channels are gone, and makes their waiters look again.
    pub(crate) fn lost(&self, which: impl Fn(&str) -> bool) {
        self.set_confirmed(false, which);
        // After the subscriptions, so that a tier which still saw one is told.
        self.tell_taps(|tap| tap.lost());
    }

    /// Notes whether the server confirms the subscriptions to some channels. Their waiters look
    /// again, if that is new.
    pub(crate) fn set_confirmed(&self, is_confirmed: bool, which: impl Fn(&str) -> bool) {
        let mut state = self.state();
        let mut changed = HashSet::default();
        for (channel, known) in state.channels.iter_mut().filter(|(channel, _)| which(channel)) {
            if mem::replace(&mut known.is_confirmed, is_confirmed) != is_confirmed {
                changed.insert(channel.clone());
            }
        }
        if changed.is_empty() {
            return;
        }
        let hears = |waiter: &&Waiter| waiter.channels.iter().any(|it| changed.contains(it));
        let waiters = state.waiters.values().filter(hears);
        let waiters: Vec<_> = waiters.map(|waiter| waiter.inbox.clone()).collect();
        drop(state);
        waiters.iter().for_each(|inbox| inbox.put(Change::Wake));
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").finish_non_exhaustive()
    }
}

impl State {
    /// Returns the waiters of a topic, beginning with this owner's.
    fn from<'a>(
        &'a self,
        topic: &'a Arc<str>,
        owner: Option<Owner>,
    ) -> impl Iterator<Item = (&'a WaiterPlace, &'a Waiter)> {
        let first = WaiterPlace { topic: topic.clone(), owner, number: 0 };
        self.waiters.range(first..).take_while(move |(place, _)| place.topic == *topic)
    }
}

/// A registration for the changes of one name. Dropping it ends it.
///
/// ```
/// # async fn next(mut changes: bellwether::backend::Changes) -> bellwether::backend::Change {
/// changes.confirmed().await;
/// changes.next().await
/// # }
/// ```
pub struct Changes {
    inbox: Arc<Inbox>,
    channels: Channels,
    place: WaiterPlace,
}

impl Changes {
    /// Returns a registration for a backend that pushes nothing. Its waiter looks at intervals.
    pub fn none() -> Self {
        let nowhere = Arc::from("");
        Channels::default().register(&nowhere, vec![nowhere.clone()], None)
    }

    /// Returns the next change, or [`Change::Wake`] if some were missed. Dropping the future loses
    /// no change.
    pub async fn next(&mut self) -> Change {
        self.next_push().await.0
    }

    /// Returns the next change, and when it came.
    pub(crate) async fn next_push(&mut self) -> (Change, Instant) {
        loop {
            let next = lock(&self.inbox.unread).pop_front();
            match next {
                Some(push) => return push,
                None => self.inbox.came.notified().await,
            }
        }
    }

    /// Returns the inbox of the changes. A change that is put into it wakes the listener.
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Asks the server for its subscriptions, if that was not done yet. Returns whether it has
    /// confirmed them, so that changes arrive.
    ///
    /// The listener is woken ([`Change::Wake`]) when they are confirmed or lost.
    pub fn subscribe(&mut self) -> bool {
        let (mut is_confirmed, mut must_ask) = (true, false);
        let mut state = self.channels.state();
        let State { waiters, channels, .. } = &mut *state;
        let Some(waiter) = waiters.get_mut(&self.place) else { return false };
        let opens = !mem::replace(&mut waiter.is_open, true);
        for channel in &waiter.channels {
            must_ask |= !channels.contains_key(channel);
            let known = channels.entry(channel.clone()).or_default();
            known.listeners += usize::from(opens);
            is_confirmed &= known.is_confirmed;
        }
        // A task that is woken may hold the lock of `openings`, and ask for the state.
        drop(state);
        if must_ask {
            self.channels.recheck();
        }
        is_confirmed
    }

    /// Completes when the server has confirmed the subscription. The changes until then may be
    /// missed.
    pub async fn confirmed(&mut self) {
        while !self.subscribe() {
            self.next().await;
        }
        lock(&self.inbox.unread).clear();
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let (mut state, mut has_closed) = (self.channels.state(), false);
        let waiter = state.waiters.remove(&self.place).filter(|waiter| waiter.is_open);
        for channel in waiter.iter().flat_map(|waiter| &waiter.channels) {
            let Some(known) = state.channels.get_mut(channel) else { continue };
            known.listeners -= 1;
            let is_unused = known.listeners == 0 && !known.stays;
            has_closed |= is_unused && state.channels.remove(channel).is_some();
        }
        drop(state);
        if has_closed {
            self.channels.recheck();
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Changes").field(&self.place.topic).finish()
    }
}

/// The pushes that a slow waiter may have unread. With more, it looks again.
const BACKLOG: usize = 16;

/// Takes the pushes for one listener until it reads them.
#[derive(Default)]
pub(crate) struct Inbox {
    unread: Mutex<VecDeque<(Change, Instant)>>,
    came: Notify,
}

impl Inbox {
    pub(crate) fn put(&self, change: Change) {
        let mut unread = lock(&self.unread);
        // One look sees both, as when two channels of a listener are lost together.
        let is_seen = |last: &Change| change == Change::Wake && *last == change;
        if !unread.back().is_some_and(|(last, _)| is_seen(last)) {
            let is_full = unread.len() == BACKLOG;
            if is_full {
                unread.clear();
            }
            let change = if is_full { Change::Wake } else { change };
            unread.push_back((change, Instant::now()));
        }
        drop(unread);
        self.came.notify_one();
    }

    /// Returns when the first change came that its listener has not read.
    pub(crate) fn unread_since(&self) -> Option<Instant> {
        let unread = lock(&self.unread);
        let (_, came) = unread.front()?;
        Some(*came)
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn poll(changes: &mut Changes) -> Option<Change> {
        changes.next().now_or_never()
    }

    /// A claim is sent while the channel of the process is not confirmed, or was lost meanwhile.
    /// Its waiter may have missed a push, so it is woken when pushes arrive again.
    #[test]
    fn a_break_and_a_confirmation_wake_the_waiters_of_a_channel() {
        let channels = Channels::default();
        let [process, one, other] = ["p", "one", "other"].map(Arc::<str>::from);
        channels.open(&process);
        let mut openings = channels.openings();
        let register =
            |topic| channels.register(topic, vec![process.clone()], Some(Owner::fresh()));
        let mut both = [register(&one), register(&other)];
        let all_told = |both: &mut [Changes; 2], arrive| {
            for changes in both {
                assert_eq!(poll(changes), Some(Change::Wake));
                assert_eq!(poll(changes), None);
                assert_eq!(changes.subscribe(), arrive);
            }
        };
        assert!(!both[0].subscribe());
        for _ in 0..2 {
            channels.set_confirmed(true, |_| true);
            all_told(&mut both, true);
            // The same answer again says nothing new.
            channels.set_confirmed(true, |_| true);
            assert!(both.iter_mut().all(|changes| poll(changes).is_none()));
            channels.lost(|_| true);
            all_told(&mut both, false);
        }
        drop(both);
        assert_eq!(channels.wanted(|_| true), [process]);
        assert!(!openings.has_changed().is_ok_and(|changed| changed), "no subscription changed");
        openings.mark_unchanged();
    }

    /// The channel of a name is open while it has a waiter that must wait.
    #[test]
    fn a_channel_of_a_name_opens_when_a_waiter_subscribes() {
        let channels = Channels::default();
        let name = Arc::<str>::from("n");
        let mut both = [(); 2].map(|()| channels.register(&name, vec![name.clone()], None));
        assert!(!channels.wants(&name));
        for changes in &mut both {
            assert!(!changes.subscribe());
            assert!(!changes.subscribe());
        }
        let [one, other] = both;
        drop(one);
        assert!(channels.wants(&name));
        drop(other);
        assert!(!channels.wants(&name));
    }
}
