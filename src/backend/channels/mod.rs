//! The channels that this process listens to.
//!
//! `topics` has the listeners of each channel, `changes` the subscription of one waiter, and
//! `joined` makes one subscription of those to several servers.

mod changes;
mod joined;
mod topics;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

use tokio::sync::watch;

use self::topics::{Topic, Topics};
use super::Change;

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
        Changes::one(self.0.listen([channel]))
    }

    /// Pushes a change to all listeners of a channel.
    pub fn push(&self, channel: &str, change: Change) {
        if let Some(topic) = self.0.open().get(channel) {
            // No listener is no error: the last one may have just left.
            let _ = topic.sender.send(change);
        }
    }

    /// Returns whether the channel has listeners.
    pub(crate) fn wants(&self, channel: &str) -> bool {
        self.0.open().contains_key(channel)
    }

    /// Returns the channels that have listeners.
    pub(crate) fn wanted(&self) -> Vec<Arc<str>> {
        self.0.open().keys().cloned().collect()
    }
}

/// For a backend that subscribes at a server.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
impl Channels {
    /// Listens to two channels as to one.
    pub(crate) fn listen_to_both(&self, one: &Arc<str>, other: &Arc<str>) -> Changes {
        Changes::two(self.0.listen([one, other]))
    }

    /// Listens to two channels as to one, if the server has confirmed both.
    pub(crate) fn listen_along(&self, one: &Arc<str>, other: &Arc<str>) -> Option<Changes> {
        let mut open = self.0.open();
        let is_confirmed = |channel| {
            open.get(channel).is_some_and(|topic: &Topic| {
                matches!(*topic.subscription.borrow(), Subscription::Confirmed)
            })
        };
        if ![one, other].into_iter().all(is_confirmed) {
            return None;
        }
        let mut listener = |channel| Some(open.get_mut(channel)?.listen(channel, &self.0));
        // In two steps, since the drop of a listener needs the lock.
        let (one, other) = (listener(one), listener(other));
        drop(open);
        Some(Changes::two([one?, other?]))
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

    /// Makes the waiters of some channels look again.
    pub(crate) fn wake(&self, which: impl Fn(&str) -> bool) {
        for (_, topic) in self.0.open().iter().filter(|(channel, _)| which(channel)) {
            let _ = topic.sender.send(Change::Wake);
        }
    }

    /// Returns some of the channels that have listeners, without those that the server refuses.
    pub(crate) fn not_refused(&self, which: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let open = self.0.open();
        let refused =
            |topic: &Topic| matches!(*topic.subscription.borrow(), Subscription::Refused(_));
        let channels = open.iter().filter(|(channel, topic)| which(channel) && !refused(topic));
        channels.map(|(channel, _)| channel.clone()).collect()
    }

    /// Returns whether any of some channels has listeners.
    pub(crate) fn any(&self, which: impl Fn(&str) -> bool) -> bool {
        self.0.open().keys().any(|channel| which(channel))
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
        if let Some(topic) = self.0.open().get(channel)
            && let Subscription::Lost = topic.subscription.send_replace(answer)
        {
            let _ = topic.sender.send(Change::Wake);
        }
    }

    /// Notes that the subscriptions to some channels are gone, and that none of them is refused.
    pub(crate) fn forget_answers(&self, which: impl Fn(&str) -> bool) {
        for (_, topic) in self.0.open().iter().filter(|(channel, _)| which(channel)) {
            topic.subscription.send_if_modified(|answer| {
                let answered = matches!(answer, Subscription::Confirmed | Subscription::Refused(_));
                if answered {
                    *answer = Subscription::Lost;
                }
                answered
            });
        }
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.wanted()).finish()
    }
}
