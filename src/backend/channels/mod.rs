//! The waiters of this process that are told of the changes of a name.
//!
//! A waiter registers before its request is sent, so it misses no push: the `registry` keeps its
//! place, and the changes that it has not read. At a server, the changes of many names come
//! through a few channels of the process, which stay open. While such a channel is not confirmed,
//! pushes may be missed. So all its waiters are woken when the connection breaks, and when the
//! channel is confirmed. A waiter that was told nothing while its request was under way can sleep.

mod registry;

use std::{
    fmt,
    sync::{Arc, Weak},
};

use tokio::{sync::watch, time::Instant};

use self::registry::{Subscription, WaiterRegistry};
use super::{Change, Owner, Tap};
use crate::error::BackendError;

pub use self::registry::Changes;
pub(crate) use self::registry::TopicRoute;

/// The waiters of a backend. For writing a backend.
///
/// Clones share the waiters.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use bellwether::backend::{Change, Channels};
///
/// let channels = Channels::default();
/// let mut changes = channels.listen(&"stock:42".into(), None);
/// channels.push("stock:42", Change::Wake);
/// assert_eq!(changes.next().await, Change::Wake);
/// # });
/// ```
#[derive(Clone, Default)]
pub struct Channels(Arc<WaiterRegistry>);

impl Channels {
    /// Registers a waiter of a channel. It gets the changes without an
    /// [addressee](Change::addressee) and those for its owner. Without an owner, it gets all.
    pub fn listen(&self, channel: &Arc<str>, owner: Option<Owner>) -> Changes {
        let route = TopicRoute { channel, topic: channel };
        Changes::new(&self.0, [Some(route), None], owner, false)
    }

    /// Pushes a change to the waiters of a channel. A change [for one owner](Change::addressee)
    /// goes to the one that has this owner, and to those without an owner.
    pub fn push(&self, channel: &str, change: Change) {
        self.receive(channel, channel, &change);
    }

    /// Returns whether a topic has waiters.
    pub(crate) fn has_listeners(&self, route: TopicRoute<'_>) -> bool {
        self.0.state().has_listeners(route)
    }

    /// Has a local tier told of the changes of entries.
    pub(crate) fn add_tap(&self, tap: Weak<dyn Tap>) {
        self.0.add_tap(tap);
    }

    /// Pushes a change that came through a channel.
    pub(crate) fn receive(&self, channel: &str, topic: &str, change: &Change) {
        if let Some(fence) = change.of_entry() {
            self.0.tell_taps(|tap| tap.changed(topic, fence));
        }
        // No waiter is no error: the last one may have just left.
        let woken = self.0.state().push(channel, topic, change);
        woken.wake();
    }
}

/// For a backend that subscribes at a server.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
impl Channels {
    /// Registers a waiter whose changes come from a server.
    pub(crate) fn register(
        &self,
        routes: [Option<TopicRoute<'_>>; 2],
        owner: Option<Owner>,
    ) -> Changes {
        Changes::new(&self.0, routes, owner, true)
    }

    /// Opens a channel of the process, which stays open.
    pub(crate) fn open(&self, channel: &Arc<str>) {
        if self.0.state().open(channel) {
            self.0.recheck();
        }
    }

    /// Returns whether a channel is open, and its pushes arrive.
    pub(crate) fn is_confirmed(&self, channel: &str) -> bool {
        let state = self.0.state();
        let known = state.channels.get(channel);
        known.is_some_and(|known| matches!(known.subscription, Subscription::Confirmed))
    }

    /// Notes that the pushes of all that happened before the server was asked at this moment have
    /// arrived.
    pub(crate) fn complete_until(&self, asked: Instant) {
        self.0.tell_taps(|tap| tap.complete_until(asked));
    }

    /// Returns whether there is a local tier.
    pub(crate) fn is_tapped(&self) -> bool {
        self.0.tell_taps(|_| ())
    }

    /// Makes the waiters on some channels look again.
    pub(crate) fn wake(&self, which: impl Fn(&str) -> bool) {
        let woken = self.0.state().wake(which);
        woken.wake();
    }

    /// Returns the channels to subscribe to.
    pub(crate) fn wanted(&self) -> Vec<Arc<str>> {
        self.0.state().channels.keys().cloned().collect()
    }

    /// Returns whether a channel is to be subscribed to.
    pub(crate) fn wants(&self, channel: &str) -> bool {
        self.0.state().channels.contains_key(channel)
    }

    /// Returns some of the channels to subscribe to, without those that the server refuses.
    pub(crate) fn not_refused(&self, which: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let state = self.0.state();
        let is_wanted = |known: &Subscription| !matches!(known, Subscription::Failed(_));
        let channels = state.channels.iter();
        let channels = channels.filter(|(name, it)| which(name) && is_wanted(&it.subscription));
        channels.map(|(name, _)| name.clone()).collect()
    }

    /// Returns whether any of some channels is to be subscribed to.
    pub(crate) fn any(&self, which: impl Fn(&str) -> bool) -> bool {
        self.0.state().channels.keys().any(|channel| which(channel))
    }

    /// Tells whenever a channel opens or closes.
    pub(crate) fn openings(&self) -> watch::Receiver<u64> {
        self.0.openings.subscribe()
    }

    /// Makes the tasks that subscribe look at all channels.
    pub(crate) fn recheck(&self) {
        self.0.recheck();
    }

    /// Notes what the server has said of a subscription, and tells the waiters if that is new.
    pub(crate) fn answer(&self, channel: &str, answer: Result<(), BackendError>) {
        let mut state = self.0.state();
        let Some(known) = state.channels.get_mut(channel) else { return };
        let is_new = !matches!(
            (&known.subscription, &answer),
            (Subscription::Confirmed, Ok(())) | (Subscription::Failed(_), Err(_))
        );
        known.subscription = match answer {
            Ok(()) => Subscription::Confirmed,
            Err(error) => Subscription::Failed(error),
        };
        let woken = is_new.then(|| state.wake_one(channel));
        drop(state);
        woken.into_iter().for_each(|woken| woken.wake());
    }

    /// Notes that no server can be reached for some channels.
    pub(crate) fn fail(&self, which: impl Fn(&str) -> bool, error: &BackendError) {
        for channel in self.wanted().iter().filter(|channel| which(channel)) {
            self.answer(channel, Err(error.clone()));
        }
    }

    /// Notes that the subscriptions to some channels are gone, and makes their waiters look again.
    pub(crate) fn lost(&self, which: impl Fn(&str) -> bool) {
        let mut state = self.0.state();
        for (_, known) in state.channels.iter_mut().filter(|(channel, _)| which(channel)) {
            known.subscription = Subscription::Pending;
        }
        let woken = state.wake(which);
        drop(state);
        woken.wake();
        // After the subscriptions, so that a tier which still saw one is told.
        self.0.tell_taps(|tap| tap.lost());
    }

    /// Has the server asked again for those of some channels that it refused.
    pub(crate) fn retry(&self, which: impl Fn(&str) -> bool) {
        let mut state = self.0.state();
        for (_, known) in state.channels.iter_mut().filter(|(channel, _)| which(channel)) {
            if matches!(known.subscription, Subscription::Failed(_)) {
                known.subscription = Subscription::Pending;
            }
        }
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channels").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Poll, Wake, Waker},
        time::Duration,
    };

    use super::*;
    use crate::{backend::Handover, error::BackendErrorKind};

    fn granted(owner: Owner) -> Change {
        Change::Granted(Handover { owner, fence: 1, ends: Duration::ZERO })
    }

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

    /// A grant wakes the waiter that it is for, and the many others of the process sleep.
    #[test]
    fn a_push_for_one_owner_wakes_one_waiter_of_many() {
        let (channels, topic) = (Channels::default(), Arc::from("t"));
        let owners: Vec<_> = std::iter::repeat_with(Owner::fresh).take(3000).collect();
        let mut waiters: Vec<_> =
            owners.iter().map(|owner| channels.listen(&topic, Some(*owner))).collect();
        let wakes = Arc::<Wakes>::default();
        for waiter in &mut waiters {
            assert_eq!(poll(waiter, &wakes), None);
        }
        for (owner, waiter) in owners.iter().zip(&mut waiters).step_by(100) {
            channels.push(&topic, granted(*owner));
            assert_eq!(wakes.take(), 1);
            assert_eq!(poll(waiter, &wakes), Some(granted(*owner)));
            assert_eq!(poll(waiter, &wakes), None);
        }
        channels.push(&topic, granted(Owner::fresh()));
        channels.push("t2", Change::Wake);
        assert_eq!(wakes.take(), 0);
        channels.push(&topic, Change::Wake);
        assert_eq!(wakes.take(), waiters.len());
    }

    /// Each listener of one owner hears of it, and a listener without an owner of all.
    #[test]
    fn a_push_for_one_owner_reaches_those_that_observe() {
        let (channels, topic) = (Channels::default(), Arc::from("t"));
        let wakes = Arc::<Wakes>::default();
        let (mine, other) = (Owner::fresh(), Owner::fresh());
        let mut all =
            [Some(mine), Some(mine), None, Some(other)].map(|owner| channels.listen(&topic, owner));
        channels.push(&topic, granted(mine));
        let turn = Some(granted(mine));
        let heard = all.each_mut().map(|changes| poll(changes, &wakes));
        assert_eq!(heard, [turn.clone(), turn.clone(), turn, None]);
        drop(all);
        assert!(!channels.has_listeners(TopicRoute { channel: &topic, topic: &topic }));
    }

    #[test]
    fn a_slow_waiter_looks_again() {
        let (channels, topic) = (Channels::default(), Arc::from("t"));
        let wakes = Arc::<Wakes>::default();
        let mut changes = channels.listen(&topic, None);
        for fence in 0..17 {
            channels.push(&topic, Change::Invalidated(fence));
        }
        assert_eq!(poll(&mut changes, &wakes), Some(Change::Wake));
        assert_eq!(poll(&mut changes, &wakes), None);
    }

    /// A claim is sent while the channel of the process is not confirmed, or was lost meanwhile.
    /// Its waiter may have missed a push, so it is woken when pushes arrive again.
    #[test]
    fn a_break_and_a_confirmation_wake_the_waiters_of_a_channel() {
        let channels = Channels::default();
        let [process, one, other] = ["p", "one", "other"].map(Arc::<str>::from);
        let wakes = Arc::<Wakes>::default();
        channels.open(&process);
        let mut openings = channels.openings();
        let register = |topic| {
            let route = TopicRoute { channel: &process, topic };
            channels.register([Some(route), None], Some(Owner::fresh()))
        };
        let mut both = [register(&one), register(&other)];
        let all_told = |both: &mut [Changes; 2], arrive| {
            for changes in both {
                assert_eq!(poll(changes, &wakes), Some(Change::Wake));
                assert_eq!(poll(changes, &wakes), None);
                assert_eq!(changes.subscribe(), arrive);
            }
        };
        assert!(!both[0].subscribe());
        for _ in 0..2 {
            channels.answer(&process, Ok(()));
            all_told(&mut both, true);
            // The same answer again says nothing new.
            channels.answer(&process, Ok(()));
            assert!(both.iter_mut().all(|changes| poll(changes, &wakes).is_none()));
            channels.lost(|_| true);
            all_told(&mut both, false);
        }
        let refused = BackendError::new(BackendErrorKind::Refused, "no right");
        channels.answer(&process, Err(refused));
        all_told(&mut both, false);
        assert!(channels.not_refused(|_| true).is_empty());
        channels.retry(|_| true);
        assert_eq!(channels.not_refused(|_| true), std::slice::from_ref(&process));
        drop(both);
        assert_eq!(channels.wanted(), [process]);
        assert!(!openings.has_changed().is_ok_and(|changed| changed), "no subscription changed");
        openings.mark_unchanged();
    }

    /// The channel of a name is open while it has a waiter that must wait.
    #[test]
    fn a_channel_of_a_name_opens_when_a_waiter_subscribes() {
        let channels = Channels::default();
        let name = Arc::from("n");
        let route = TopicRoute { channel: &name, topic: &name };
        let mut both = [(); 2].map(|()| channels.register([Some(route), None], None));
        assert!(channels.wanted().is_empty());
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
