//! The channels that this process listens to.
//!
//! `topics` has the listeners of each channel, and `inbox` the unread pushes of one of them.
//! `missed` counts the pushes that come before a waiter listens. `changes` is the subscription of
//! one waiter, and `joined` makes one of those to several servers.

mod changes;
mod inbox;
mod joined;
mod missed;
mod topics;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    task::Waker,
};

use tokio::sync::watch;

use self::topics::{Source, Topics};
use super::{Change, Owner};

pub use self::changes::Changes;
pub(crate) use self::topics::Subscription;

/// The channels that this process listens to, each with its waiters. For writing a backend.
///
/// A channel is open while a [`Changes`] of it exists. Clones share the channels.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::backend::{Change, Channels};
///
/// let channels = Channels::default();
/// let mut changes = channels.listen(&"stock:42".into());
/// channels.push("stock:42", Change::Wake);
/// assert_eq!(changes.next().await, Change::Wake);
/// # });
/// ```
#[derive(Clone, Default)]
pub struct Channels(Arc<Topics>);

impl Channels {
    /// Listens to a channel.
    pub fn listen(&self, channel: &Arc<str>) -> Changes {
        Changes::one(self.0.listen([own(channel)]))
    }

    /// Pushes a change to the listeners of a channel. A change [for one
    /// owner](Change::addressee) goes to the one that has this [address](Changes::address), and to
    /// those without an address.
    pub fn push(&self, channel: &str, change: Change) {
        // No listener is no error: the last one may have just left.
        let readers = self.0.push(channel, &change);
        readers.into_iter().for_each(Waker::wake);
    }

    /// Returns whether the channel has listeners.
    pub(crate) fn has_listeners(&self, channel: &str) -> bool {
        self.0.open().has_listeners(channel)
    }
}

fn own(topic: &Arc<str>) -> Source<'_> {
    Source { topic, through: None, hears_all: true }
}

/// For a backend that subscribes at a server.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
impl Channels {
    /// Listens to a topic whose pushes come through a channel of the process.
    pub(crate) fn listen_through(&self, process_channel: &Arc<str>, topic: &Arc<str>) -> Changes {
        let through = Some(process_channel);
        Changes::one(self.0.listen([Source { topic, through, hears_all: true }]))
    }

    /// Does the same as [`listen_through`](Self::listen_through), if the server has confirmed the
    /// channel of the process.
    pub(crate) fn listen_along_through(
        &self,
        process_channel: &Arc<str>,
        topic: &Arc<str>,
    ) -> Option<Changes> {
        let is_open = is_confirmed(self.0.open().subscription(process_channel));
        is_open.then(|| self.listen_through(process_channel, topic))
    }

    /// Returns how many pushes for an owner on a topic may have been missed until now. A waiter
    /// that listens, and finds the same number as earlier, has missed none since.
    pub(crate) fn missed(&self, topic: &str, owner: Owner) -> u64 {
        self.0.missed.of(topic, owner)
    }

    /// Listens to two channels as to one.
    pub(crate) fn listen_to_both(&self, one: &Arc<str>, other: &Arc<str>) -> Changes {
        Changes::two(self.0.listen([own(one), own(other)]))
    }

    /// Listens to a channel for the changes without an addressee, and to a topic whose pushes come
    /// through a channel of the process for the others.
    pub(crate) fn listen_to_all(
        &self,
        channel: &Arc<str>,
        process_channel: &Arc<str>,
        topic: &Arc<str>,
    ) -> Changes {
        let through = Some(process_channel);
        Changes::two(self.0.listen([own(channel), Source { topic, through, hears_all: false }]))
    }

    /// Listens to two channels as to one, if the server has confirmed both.
    pub(crate) fn listen_along(&self, one: &Arc<str>, other: &Arc<str>) -> Option<Changes> {
        let mut open = self.0.open();
        if ![one, other].into_iter().all(|channel| is_confirmed(open.subscription(channel))) {
            return None;
        }
        // In two steps, since the drop of a listener needs the lock.
        let both = [one, other].map(|channel| open.listen(channel, &self.0));
        drop(open);
        let [one, other] = both;
        Some(Changes::two([one?, other?]))
    }

    /// Opens a channel of the process, which stays open.
    pub(crate) fn open_process_channel(&self, channel: &Arc<str>) {
        let (_, must_ask) = self.0.open().process_channel(channel);
        if must_ask {
            self.0.recheck();
        }
    }

    /// Notes whether the server pushes nothing at all. Returns whether that has changed.
    pub(crate) fn mute(&self, mute: bool) -> bool {
        let changed = self.0.mute.swap(mute, Ordering::AcqRel) != mute;
        if changed && mute {
            self.wake(|_| true);
        }
        changed
    }

    pub(crate) fn is_mute(&self) -> bool {
        self.0.mute.load(Ordering::Acquire)
    }

    /// Makes the waiters on some channels look again.
    pub(crate) fn wake(&self, which: impl Fn(&str) -> bool) {
        self.0.missed.note_all();
        let readers = self.0.open().push_each(&Change::Wake, which);
        readers.into_iter().for_each(Waker::wake);
    }

    /// Returns the channels to subscribe to.
    pub(crate) fn wanted(&self) -> Vec<Arc<str>> {
        self.0.open().channels().map(|(channel, _)| channel.clone()).collect()
    }

    /// Returns whether a channel is to be subscribed to.
    pub(crate) fn wants(&self, channel: &str) -> bool {
        self.0.open().subscription(channel).is_some()
    }

    /// Returns some of the channels to subscribe to, without those that the server refuses.
    pub(crate) fn not_refused(&self, which: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let open = self.0.open();
        let is_refused = |subscription: &watch::Sender<Subscription>| {
            matches!(*subscription.borrow(), Subscription::Refused(_))
        };
        let channels = open.channels();
        let channels = channels.filter(|(channel, said)| which(channel) && !is_refused(said));
        channels.map(|(channel, _)| channel.clone()).collect()
    }

    /// Returns whether any of some channels is to be subscribed to.
    pub(crate) fn any(&self, which: impl Fn(&str) -> bool) -> bool {
        self.0.open().channels().any(|(channel, _)| which(channel))
    }

    /// Tells whenever a channel opens or closes.
    pub(crate) fn openings(&self) -> watch::Receiver<u64> {
        self.0.openings.subscribe()
    }

    /// Makes the task that keeps subscriptions in step look at all of them.
    pub(crate) fn recheck(&self) {
        self.0.recheck();
    }

    /// Notes what the server has said of a subscription. Waiters that may have missed a push look
    /// again.
    pub(crate) fn answer(&self, channel: &str, answer: Subscription) {
        let open = self.0.open();
        let Some(subscription) = open.subscription(channel) else { return };
        let was_lost = matches!(subscription.send_replace(answer), Subscription::Lost);
        match open.is_process_channel(channel) {
            true => self.0.missed.note_all(),
            false => self.0.missed.note(channel),
        }
        drop(open);
        if was_lost {
            self.wake(|one| one == channel);
        }
    }

    /// Notes that the subscriptions to some channels are gone, and that none of them is refused.
    pub(crate) fn forget_answers(&self, which: impl Fn(&str) -> bool) {
        let open = self.0.open();
        self.0.missed.note_all();
        for (_, subscription) in open.channels().filter(|(channel, _)| which(channel)) {
            subscription.send_if_modified(|answer| {
                let answered = matches!(answer, Subscription::Confirmed | Subscription::Refused(_));
                if answered {
                    *answer = Subscription::Lost;
                }
                answered
            });
        }
    }
}

fn is_confirmed(subscription: Option<&watch::Sender<Subscription>>) -> bool {
    subscription.is_some_and(|said| matches!(*said.borrow(), Subscription::Confirmed))
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.open().topics()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::AtomicUsize,
        task::{Context, Poll, Wake},
    };

    use super::*;

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Wakes {
        fn take(&self) -> usize {
            self.0.swap(0, Ordering::Relaxed)
        }
    }

    /// Returns the next change if there is one. Otherwise the wake-up is counted.
    fn poll(changes: &mut Changes, wakes: &Arc<Wakes>) -> Option<Change> {
        let waker = Waker::from(wakes.clone());
        match pin!(changes.next()).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(change) => Some(change),
            Poll::Pending => None,
        }
    }

    fn addressed(channels: &Channels, topic: &Arc<str>, owner: Owner) -> Changes {
        let mut changes = channels.listen(topic);
        changes.address(owner);
        changes
    }

    /// A turn among many waiters of one process wakes the one that it is for, and all others sleep.
    #[test]
    fn a_push_for_one_owner_wakes_one_waiter_of_many() {
        let (channels, topic) = (Channels::default(), Arc::from("t"));
        let owners: Vec<_> = std::iter::repeat_with(Owner::fresh).take(3000).collect();
        let mut waiters: Vec<_> =
            owners.iter().map(|owner| addressed(&channels, &topic, *owner)).collect();
        let wakes = Arc::<Wakes>::default();
        for waiter in &mut waiters {
            assert_eq!(poll(waiter, &wakes), None);
        }
        for (owner, waiter) in owners.iter().zip(&mut waiters).step_by(100) {
            channels.push(&topic, Change::Turn(*owner));
            assert_eq!(wakes.take(), 1);
            assert_eq!(poll(waiter, &wakes), Some(Change::Turn(*owner)));
            assert_eq!(poll(waiter, &wakes), None);
        }
        channels.push(&topic, Change::Turn(Owner::fresh()));
        assert_eq!(wakes.take(), 0);
        channels.push(&topic, Change::Wake);
        assert_eq!(wakes.take(), waiters.len());
    }

    /// A subscription passes on to the next caller of the process, which has another owner.
    #[test]
    fn a_subscription_gets_the_pushes_for_its_present_owner() {
        let (channels, topic) = (Channels::default(), Arc::from("t"));
        let wakes = Arc::<Wakes>::default();
        let [first, second] = [Owner::fresh(), Owner::fresh()];
        let mut changes = addressed(&channels, &topic, first);
        changes.address(second);
        assert_eq!(poll(&mut changes, &wakes), None);
        channels.push(&topic, Change::Turn(first));
        assert_eq!(wakes.take(), 0);
        channels.push(&topic, Change::Turn(second));
        assert_eq!(poll(&mut changes, &wakes), Some(Change::Turn(second)));
        // Another listener with the same address hears as well.
        let mut other = addressed(&channels, &topic, second);
        channels.push(&topic, Change::Turn(second));
        for listener in [&mut changes, &mut other] {
            assert_eq!(poll(listener, &wakes), Some(Change::Turn(second)));
        }
        drop(changes);
        channels.push(&topic, Change::Turn(second));
        assert_eq!(poll(&mut other, &wakes), Some(Change::Turn(second)));
        drop(other);
        assert!(!channels.has_listeners(&topic));
    }

    /// A claim was refused, and a release pushed before its waiter listened. A waiter beside it has
    /// its push.
    #[test]
    fn a_push_before_its_waiter_listens_is_counted() {
        let (channels, topic) = (Channels::default(), Arc::from("t"));
        let [early, late] = [Owner::fresh(), Owner::fresh()];
        let missed = || channels.missed(&topic, late);
        let before = missed();
        let mut changes = addressed(&channels, &topic, early);
        channels.push(&topic, Change::Turn(early));
        assert_eq!(missed(), before);
        channels.push(&topic, Change::Turn(late));
        assert_eq!(missed(), before + 1);
        changes.address(late);
        channels.push(&topic, Change::Turn(late));
        assert_eq!(missed(), before + 1);
        // Each waiter that does not listen yet may miss a change for all.
        channels.push(&topic, Change::Wake);
        assert_eq!(missed(), before + 2);
        drop(changes);
        channels.push(&topic, Change::Turn(late));
        assert_eq!(missed(), before + 3);
        // A process with two backends gets the pushes for the waiters of both on both.
        let owners = std::iter::repeat_with(Owner::fresh).take(20);
        owners.for_each(|other| channels.push(&topic, Change::Turn(other)));
        assert!(missed() < before + 13, "those of other owners are told apart");
    }

    /// The subscription was lost and restored while a claim was under way.
    #[test]
    fn a_subscription_that_was_lost_may_have_missed_a_push() {
        let (channels, owner) = (Channels::default(), Owner::fresh());
        let [process, topic] = ["p", "t"].map(Arc::<str>::from);
        channels.open_process_channel(&process);
        let mut counts = vec![channels.missed(&topic, owner)];
        channels.answer(&process, Subscription::Confirmed);
        counts.push(channels.missed(&topic, owner));
        channels.forget_answers(|_| true);
        counts.push(channels.missed(&topic, owner));
        channels.answer(&process, Subscription::Confirmed);
        counts.push(channels.missed(&topic, owner));
        assert!(counts.is_sorted_by(|one, next| one < next), "{counts:?}");
    }

    #[test]
    fn a_slow_waiter_looks_again() {
        let (channels, topic) = (Channels::default(), Arc::from("t"));
        let wakes = Arc::<Wakes>::default();
        let mut changes = channels.listen(&topic);
        for fence in 0..17 {
            channels.push(&topic, Change::Invalidated(fence));
        }
        assert_eq!(poll(&mut changes, &wakes), Some(Change::Wake));
        assert_eq!(poll(&mut changes, &wakes), None);
    }

    /// The topics of a process share the state of its channel, which stays when they are closed.
    #[test]
    fn topics_follow_the_channel_of_the_process() {
        let channels = Channels::default();
        let [process, one, other] = ["p", "one", "other"].map(Arc::<str>::from);
        let wakes = Arc::<Wakes>::default();
        channels.open_process_channel(&process);
        assert!(channels.listen_along_through(&process, &one).is_none());
        let mut openings = channels.openings();
        let mut first = channels.listen_through(&process, &one);
        assert_eq!(channels.wanted(), std::slice::from_ref(&process));
        channels.answer(&process, Subscription::Confirmed);
        assert!(channels.listen_along_through(&process, &other).is_some());
        let mut second = channels.listen_through(&process, &other);
        assert!(!first.is_lost() && !second.is_lost());
        channels.forget_answers(|_| true);
        assert!(first.is_lost() && second.is_lost());
        channels.answer(&process, Subscription::Confirmed);
        for changes in [&mut first, &mut second] {
            assert!(!changes.is_lost());
            assert_eq!(poll(changes, &wakes), Some(Change::Wake));
            assert_eq!(poll(changes, &wakes), None);
        }
        drop((first, second));
        assert_eq!(channels.wanted(), [process]);
        assert!(!openings.has_changed().is_ok_and(|changed| changed), "no subscription changed");
        openings.mark_unchanged();
    }
}
