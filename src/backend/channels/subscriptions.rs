//! Channels that a server pushes to: what to subscribe to, and what the server says of it.

use std::{sync::Arc, task::Waker};

use tokio::sync::watch;

use super::{
    Changes, Channels, own,
    topics::{Subscription, TopicRoute},
};
use crate::backend::{Change, Owner};

#[cfg_attr(not(feature = "redis"), allow(dead_code))]
impl Channels {
    /// Listens to a topic whose pushes come through a channel of the process.
    pub(crate) fn listen_through(&self, process_channel: &Arc<str>, topic: &Arc<str>) -> Changes {
        let through = Some(process_channel);
        Changes::one(self.0.listen([TopicRoute { topic, through, hears_all: true }]))
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
        Changes::two(self.0.listen([own(channel), TopicRoute { topic, through, hears_all: false }]))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::channels::tests::{Wakes, poll};

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
