//! The waiters of this process, which receive the changes of a name.
//!
//! A waiter registers before it sends its request, so the waiter misses no push: its [`Changes`]
//! keep each push until the waiter reads it.
//!
//! A server sends changes through two kinds of channels. A channel of the process stays open. A
//! channel of one name closes with its last listener. A channel that is not confirmed may miss
//! pushes, so its waiters are woken whenever the channel changes to confirmed or to not confirmed.
//! A waiter without a push since its registration has missed nothing, and may sleep.

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
    Change, Claim, HANDOVER_LIFE, HandedHold, Handover, Holders, LOCK_FENCE_LIFE, Mode, Owner,
    ProcessId, Tap,
};
use crate::{
    key::Name,
    random::{HashMap, HashSet},
    sync::{lock, read, write},
};

/// The waiters of a backend. Clones share the waiters.
#[derive(Clone, Default)]
pub struct Channels(Arc<Registry>);

#[derive(Default)]
struct Registry {
    state: Mutex<State>,
    /// Changes when a channel opens or closes, and when slots have moved, for the tasks that
    /// subscribe to channels.
    openings: watch::Sender<u64>,
    taps: RwLock<Vec<Weak<dyn Tap>>>,
    holders: RwLock<Vec<Weak<dyn Holders>>>,
}

#[derive(Default)]
struct State {
    waiters: BTreeMap<WaiterKey, Waiter>,
    channels: HashMap<Arc<str>, Subscription>,
    /// The number of the last waiter.
    last: u64,
}

/// The key of a waiter. The waiters of one topic are neighbours, and the waiters without an owner
/// come first.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct WaiterKey {
    topic: Arc<str>,
    owner: Option<Owner>,
    /// Tells waiters with the same owner apart.
    number: u64,
}

struct Waiter {
    inbox: Arc<Inbox>,
    /// The channels of a server through which the pushes come.
    channels: Vec<Arc<str>>,
    /// Whether the waiter counts as a listener of its channels.
    is_listener: bool,
}

#[derive(Default)]
struct Subscription {
    /// Whether the server has confirmed the subscription, so that pushes arrive. Otherwise the
    /// subscription is under way or refused, or the server is away.
    is_confirmed: bool,
    listeners: usize,
    /// Whether the channel stays open when the last listener leaves.
    stays_open: bool,
}

impl Channels {
    /// Registers a waiter of a topic. The waiter receives the changes without an
    /// [addressee](Change::addressee) and the changes for its owner. A waiter without an owner
    /// receives all changes. No waiter receives [`Change::Ended`].
    pub fn listen(&self, topic: &Arc<str>, owner: Option<Owner>) -> Changes {
        self.register(topic, Vec::new(), owner)
    }

    /// Pushes a change to the waiters of a topic. A change [for one owner](Change::addressee) goes
    /// to the waiters with this owner, and to the waiters without an owner. The cost does not
    /// depend on the number of waiters with other owners.
    ///
    /// A [`Change::Ended`] goes to the holders of leases instead.
    pub fn push(&self, topic: &str, change: Change) {
        if let Some(fence) = change.of_entry() {
            self.each_tap(|tap| tap.changed(topic, fence));
        }
        if let Change::Ended(owner) = change {
            for holders in self.holders() {
                holders.ended(owner);
            }
            return;
        }
        let has_addressee = self.deliver(topic, &change);
        if let Change::Granted(handover) = change
            && !has_addressee
        {
            self.release_orphan(topic, &handover);
        }
    }

    /// Puts a change into the inboxes of its waiters. Returns whether one of these waiters has the
    /// owner that the change is for.
    fn deliver(&self, topic: &str, change: &Change) -> bool {
        let state = self.state();
        if state.waiters.is_empty() {
            return false;
        }
        let topic = Arc::from(topic);
        let addressee = change.addressee();
        let mut has_addressee = false;
        let mut inboxes = Vec::new();
        // The waiters without an owner come first. The waiters behind receive only a change without
        // an addressee.
        for (key, waiter) in state.waiters_from(&topic, None) {
            if key.owner.is_some() && addressee.is_some() {
                break;
            }
            inboxes.push(waiter.inbox.clone());
        }
        if addressee.is_some() {
            // The waiters with the owner of the change are neighbours.
            for (key, waiter) in state.waiters_from(&topic, addressee) {
                if key.owner != addressee {
                    break;
                }
                inboxes.push(waiter.inbox.clone());
                has_addressee = true;
            }
        }
        drop(state);
        for inbox in &inboxes {
            inbox.put(change.clone());
        }
        has_addressee
    }

    /// Releases a lease that was handed over to an owner without a waiter and without a lease in
    /// this process. The waiter has left, and its undo came too late or never.
    fn release_orphan(&self, topic: &str, handover: &Handover) {
        let mode = match handover.hold {
            HandedHold::Mutex => Mode::Exclusive,
            HandedHold::Writer => Mode::Write,
            // Another process may have the id of the permit.
            HandedHold::Shared => return,
        };
        // Backends in memory share this id, and so do backends of a test. Another of these backends
        // may have the waiter.
        if handover.owner.process() == ProcessId::of_this() {
            return;
        }
        let all = self.holders();
        let Some(first) = all.first() else { return };
        if all.iter().any(|holders| holders.has(handover.owner)) {
            return;
        }
        let name = Name::of_lock(topic);
        let lease = HANDOVER_LIFE;
        let claim = Claim::with_owner(handover.owner, name, mode, lease, LOCK_FENCE_LIFE);
        first.orphaned(claim);
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
        let key = WaiterKey { topic: topic.clone(), owner, number: state.last };
        let waiter = Waiter { inbox: inbox.clone(), channels, is_listener: false };
        state.waiters.insert(key.clone(), waiter);
        drop(state);
        Changes { inbox, channels: self.clone(), key }
    }

    pub(crate) fn has_waiters(&self, topic: &Arc<str>) -> bool {
        let state = self.state();
        let mut waiters = state.waiters_from(topic, None);
        waiters.next().is_some()
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
        let holders = read(&self.0.holders);
        holders.iter().filter_map(Weak::upgrade).collect()
    }

    /// Notifies all local tiers and watches. The listener of a watch may add another, so this holds
    /// no lock meanwhile.
    pub(crate) fn each_tap(&self, notify: impl Fn(&dyn Tap)) {
        let taps = read(&self.0.taps);
        let all: Vec<_> = taps.iter().filter_map(Weak::upgrade).collect();
        drop(taps);
        for tap in all {
            notify(&*tap);
        }
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn has_taps(&self) -> bool {
        let taps = read(&self.0.taps);
        taps.iter().any(|tap| tap.strong_count() > 0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Makes the tasks that subscribe check all channels.
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
        let opened = state.channels.entry(channel.clone()).or_default();
        opened.stays_open = true;
        drop(state);
        if is_new {
            self.recheck();
        }
    }

    /// Returns whether a channel is open, and its pushes arrive.
    pub(crate) fn is_confirmed(&self, channel: &str) -> bool {
        let state = self.state();
        state.channels.get(channel).is_some_and(|open| open.is_confirmed)
    }

    pub(crate) fn is_open(&self, channel: &str) -> bool {
        self.state().channels.contains_key(channel)
    }

    /// Returns the open channels that `which` selects.
    pub(crate) fn open_channels(&self, which: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let state = self.state();
        let selected = state.channels.keys().filter(|channel| which(channel));
        selected.cloned().collect()
    }

    /// Returns a watch that changes when a channel opens or closes, and when slots have moved.
    pub(crate) fn openings(&self) -> watch::Receiver<u64> {
        self.0.openings.subscribe()
    }

    /// Notes that the subscriptions to some channels are gone, and wakes their waiters.
    pub(crate) fn note_lost(&self, which: impl Fn(&str) -> bool) {
        self.set_confirmed(false, which);
        // The tiers come last, because a tier may have seen the confirmation until now.
        self.each_tap(|tap| tap.lost());
    }

    /// Notes whether the server confirms the subscriptions to some channels. Wakes the waiters of
    /// each channel that this changes.
    pub(crate) fn set_confirmed(&self, is_confirmed: bool, which: impl Fn(&str) -> bool) {
        let mut state = self.state();
        let mut changed = HashSet::default();
        for (channel, subscription) in &mut state.channels {
            if which(channel) && subscription.is_confirmed != is_confirmed {
                subscription.is_confirmed = is_confirmed;
                changed.insert(channel.clone());
            }
        }
        if changed.is_empty() {
            return;
        }
        let mut inboxes = Vec::new();
        for waiter in state.waiters.values() {
            if waiter.channels.iter().any(|channel| changed.contains(channel)) {
                inboxes.push(waiter.inbox.clone());
            }
        }
        drop(state);
        for inbox in inboxes {
            inbox.put(Change::Wake);
        }
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").finish_non_exhaustive()
    }
}

impl State {
    /// Returns the waiters of a topic in the order of their keys, from this owner on.
    fn waiters_from<'a>(
        &'a self,
        topic: &'a Arc<str>,
        owner: Option<Owner>,
    ) -> impl Iterator<Item = (&'a WaiterKey, &'a Waiter)> {
        let first = WaiterKey { topic: topic.clone(), owner, number: 0 };
        self.waiters.range(first..).take_while(move |(key, _)| key.topic == *topic)
    }
}

/// The registration of one waiter for the changes of one name. Dropping it ends the registration.
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
    key: WaiterKey,
}

impl Changes {
    /// Returns a registration for a backend that pushes nothing, so that its waiter polls.
    pub fn none() -> Self {
        let nowhere = Arc::from("");
        Channels::default().register(&nowhere, vec![nowhere.clone()], None)
    }

    /// Returns the next change, or [`Change::Wake`] if changes may have been missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
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

    /// Returns the inbox of the changes. A change that is put into the inbox wakes the waiter.
    pub(crate) fn inbox(&self) -> &Arc<Inbox> {
        &self.inbox
    }

    /// Opens the channels of the waiter, unless the channels are open. Returns whether the server
    /// has confirmed each channel, so that changes arrive.
    ///
    /// A [`Change::Wake`] comes when the server confirms a channel, and when a channel is lost.
    pub fn subscribe(&mut self) -> bool {
        let mut is_confirmed = true;
        let mut has_opened = false;
        let mut state = self.channels.state();
        let State { waiters, channels, .. } = &mut *state;
        let Some(waiter) = waiters.get_mut(&self.key) else { return false };
        let is_first_call = !mem::replace(&mut waiter.is_listener, true);
        for channel in &waiter.channels {
            has_opened |= !channels.contains_key(channel);
            let subscription = channels.entry(channel.clone()).or_default();
            if is_first_call {
                subscription.listeners += 1;
            }
            is_confirmed &= subscription.is_confirmed;
        }
        drop(state);
        if has_opened {
            self.channels.recheck();
        }
        is_confirmed
    }

    /// Completes when the server has confirmed the subscription. Changes until then may be missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future keeps the registration.
    pub async fn confirmed(&mut self) {
        loop {
            // Cleared before the look, because a loss after the look puts a wake into the inbox.
            lock(&self.inbox.unread).clear();
            if self.subscribe() {
                return;
            }
            self.next().await;
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let mut has_closed = false;
        let mut state = self.channels.state();
        let Some(waiter) = state.waiters.remove(&self.key) else { return };
        if !waiter.is_listener {
            return;
        }
        for channel in &waiter.channels {
            let Some(subscription) = state.channels.get_mut(channel) else { continue };
            subscription.listeners -= 1;
            if subscription.listeners == 0 && !subscription.stays_open {
                state.channels.remove(channel);
                has_closed = true;
            }
        }
        drop(state);
        if has_closed {
            self.channels.recheck();
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Changes").field(&self.key.topic).finish()
    }
}

/// The most unread pushes of a slow waiter. One more push replaces all unread pushes by a wake.
const BACKLOG: usize = 16;

/// The pushes for one waiter that the waiter has not read.
#[derive(Default)]
pub(crate) struct Inbox {
    unread: Mutex<VecDeque<(Change, Instant)>>,
    came: Notify,
}

impl Inbox {
    pub(crate) fn put(&self, change: Change) {
        let mut unread = lock(&self.unread);
        // One request of the waiter suffices for two wakes in a row, as when two channels of the
        // waiter are lost together.
        let is_second_wake =
            change == Change::Wake && unread.back().is_some_and(|(last, _)| *last == Change::Wake);
        if unread.len() == BACKLOG && !is_second_wake {
            unread.clear();
            unread.push_back((Change::Wake, Instant::now()));
        } else if !is_second_wake {
            unread.push_back((change, Instant::now()));
        }
        drop(unread);
        self.came.notify_one();
    }

    /// Returns when the first unread change came.
    pub(crate) fn unread_since(&self) -> Option<Instant> {
        let unread = lock(&self.unread);
        let (_, came) = unread.front()?;
        Some(*came)
    }
}

#[cfg(test)]
mod tests {
    use std::{iter, thread, time::Duration};

    use futures_util::FutureExt;

    use super::*;

    fn poll(changes: &mut Changes) -> Option<Change> {
        changes.next().now_or_never()
    }

    /// A claim is sent while the channel of the process is not confirmed, or was lost meanwhile.
    /// Its waiter may have missed a push, so the waiter is woken when pushes arrive again.
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
            channels.note_lost(|_| true);
            all_told(&mut both, false);
        }
        drop(both);
        assert_eq!(channels.open_channels(|_| true), [process]);
        assert!(!openings.has_changed().is_ok_and(|changed| changed), "no subscription changed");
        openings.mark_unchanged();
    }

    /// The channel of a name is open while a waiter of the channel must wait.
    #[test]
    fn a_channel_of_a_name_opens_when_a_waiter_subscribes() {
        let channels = Channels::default();
        let name = Arc::<str>::from("n");
        let mut both = [(); 2].map(|()| channels.register(&name, vec![name.clone()], None));
        assert!(!channels.is_open(&name));
        for changes in &mut both {
            assert!(!changes.subscribe());
            assert!(!changes.subscribe());
        }
        let [one, other] = both;
        drop(one);
        assert!(channels.is_open(&name));
        drop(other);
        assert!(!channels.is_open(&name));
    }

    /// A subscription is lost while a waiter learns that the subscription is confirmed. The wake of
    /// the loss must stay in the inbox. The test holds the inbox, so that the waiter stops there.
    #[test]
    fn a_loss_beside_a_confirmation_stays_known() {
        let channels = Channels::default();
        let name = Arc::<str>::from("n");
        let mut changes = channels.register(&name, vec![name.clone()], None);
        changes.subscribe();
        let inbox = changes.inbox.clone();
        for round in 0..50 {
            channels.set_confirmed(true, |_| true);
            let was_confirmed = thread::scope(|scope| {
                let unread = lock(&inbox.unread);
                let waiter = scope.spawn(|| changes.confirmed().now_or_never().is_some());
                thread::sleep(Duration::from_millis(2));
                drop(unread);
                channels.note_lost(|_| true);
                waiter.join().unwrap()
            });
            let last = iter::from_fn(|| poll(&mut changes)).last();
            assert!(!was_confirmed || last == Some(Change::Wake), "round {round}");
        }
    }

    #[derive(Default)]
    struct Released(Mutex<Vec<Owner>>);

    impl Holders for Released {
        fn has(&self, _owner: Owner) -> bool {
            false
        }

        fn ended(&self, _owner: Owner) {}

        fn orphaned(&self, claim: Claim) {
            lock(&self.0).push(claim.owner);
        }
    }

    /// A listener without an owner cannot use a lease that another waiter of the process left.
    #[test]
    fn a_lease_for_a_waiter_that_left_is_released_beside_a_listener() {
        let channels = Channels::default();
        let topic = Arc::<str>::from("t");
        let released = Arc::new(Released::default());
        let holders: Arc<dyn Holders> = released.clone();
        channels.add_holders(Arc::downgrade(&holders));
        let owner = Owner::from_process(ProcessId::fresh());
        let hold = HandedHold::Mutex;
        let granted = Change::Granted(Handover { owner, fence: 1, ends: Duration::ZERO, hold });
        let mut listener = channels.listen(&topic, None);
        let waiter = channels.listen(&topic, Some(owner));
        channels.push(&topic, granted.clone());
        assert!(lock(&released.0).is_empty(), "the waiter has the lease");
        drop(waiter);
        channels.push(&topic, granted.clone());
        assert_eq!(*lock(&released.0), [owner]);
        assert_eq!([(); 2].map(|()| poll(&mut listener)), [(); 2].map(|()| Some(granted.clone())));
    }
}
