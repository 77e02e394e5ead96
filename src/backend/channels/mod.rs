//! The channels that this process listens to.
//!
//! `topics` has the listeners of each channel, and `inbox` the unread pushes of one of them.
//! `missed` counts the pushes that come before a waiter listens. `changes` is the subscription of
//! one waiter, and `joined` makes one of those to several servers. `subscriptions` is for a backend
//! that subscribes at a server.

mod changes;
mod inbox;
mod joined;
mod missed;
mod subscriptions;
mod topics;

use std::{fmt, sync::Arc, task::Waker};

use self::topics::{TopicRoute, Topics};
use super::Change;

pub use self::changes::Changes;
#[cfg(any(test, feature = "redis"))]
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

fn own(topic: &Arc<str>) -> TopicRoute<'_> {
    TopicRoute { topic, through: None, hears_all: true }
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
        sync::atomic::{AtomicUsize, Ordering},
        task::{Context, Poll, Wake},
    };

    use super::*;
    use crate::backend::Owner;

    /// Counts how often a task is woken.
    #[derive(Default)]
    pub(super) struct Wakes(AtomicUsize);

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
    pub(super) fn poll(changes: &mut Changes, wakes: &Arc<Wakes>) -> Option<Change> {
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
}
