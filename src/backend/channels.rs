//! Who in this process waits for which name.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{broadcast, watch};

use super::{Change, joined::Joined};
use crate::error::BackendError;

/// As many pushes as a slow waiter may have unread; with more, he looks again.
const BACKLOG: usize = 16;

/// The channels that this process listens to, each with those who wait on it.
///
/// A channel exists while a [`Changes`] of it does. For writing a backend.
#[derive(Clone, Default)]
pub struct Channels(Arc<Shared>);

#[derive(Default)]
struct Shared {
    topics: Mutex<HashMap<Arc<str>, Topic>>,
    /// Counts the openings and closings, for the one who keeps subscriptions in step.
    turns: watch::Sender<u64>,
    /// Nothing is pushed any more, whoever is subscribed.
    mute: AtomicBool,
}

struct Topic {
    sender: broadcast::Sender<Change>,
    subscription: watch::Sender<Subscription>,
    listeners: usize,
}

/// What the server has said of a subscription.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
#[derive(Clone, Debug)]
pub(crate) enum Subscription {
    /// Nothing yet.
    Asked,
    Confirmed,
    /// It was in place and is no longer: whoever listens may miss something until it is again.
    Lost,
    Refused(BackendError),
}

impl Channels {
    /// Starts to listen.
    pub fn listen(&self, channel: &Arc<str>) -> Changes {
        let [listener] = self.listeners([channel]);
        Changes(Source::One(listener))
    }

    /// Starts to listen to two channels as to one.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn listen_to_both(&self, one: &Arc<str>, other: &Arc<str>) -> Changes {
        Changes(Source::Two(Box::new(self.listeners([one, other]))))
    }

    fn listeners<const N: usize>(&self, channels: [&Arc<str>; N]) -> [Listener; N] {
        let mut topics = self.0.topics();
        let mut opened = false;
        let listeners = channels.map(|channel| {
            opened |= !topics.contains_key(channel);
            let topic = topics.entry(channel.clone()).or_insert_with(|| Topic {
                sender: broadcast::Sender::new(BACKLOG),
                subscription: watch::Sender::new(Subscription::Asked),
                listeners: 0,
            });
            topic.listener(channel, &self.0)
        });
        drop(topics);
        if opened {
            self.0.turn();
        }
        listeners
    }

    /// Listens along where the server has confirmed a subscription to both channels, as to one.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn listen_along(&self, one: &Arc<str>, other: &Arc<str>) -> Option<Changes> {
        let mut topics = self.0.topics();
        let confirmed = |channel| {
            topics.get(channel).is_some_and(|topic: &Topic| {
                matches!(*topic.subscription.borrow(), Subscription::Confirmed)
            })
        };
        if ![one, other].into_iter().all(confirmed) {
            return None;
        }
        let mut listener = |channel| Some(topics.get_mut(channel)?.listener(channel, &self.0));
        // (In two steps, for a listener that is dropped needs the lock.)
        let (one, other) = (listener(one), listener(other));
        drop(topics);
        Some(Changes(Source::Two(Box::new([one?, other?]))))
    }

    /// Gives a push to everyone who listens to the channel.
    pub fn push(&self, channel: &str, change: Change) {
        if let Some(topic) = self.0.topics().get(channel) {
            // Nobody listening is no error: the last one may have just left.
            let _ = topic.sender.send(change);
        }
    }

    /// Says whether anything is pushed at all.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn mute(&self, mute: bool) -> bool {
        let changed = self.0.mute.swap(mute, Ordering::AcqRel) != mute;
        if changed && mute {
            self.wake(|_| true);
        }
        changed
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn is_mute(&self) -> bool {
        self.0.mute.load(Ordering::Acquire)
    }

    /// Tells everyone who listens to such a channel to look again.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn wake(&self, which: impl Fn(&str) -> bool) {
        for (_, topic) in self.0.topics().iter().filter(|(channel, _)| which(channel)) {
            let _ = topic.sender.send(Change::Wake);
        }
    }

    /// The channels that are listened to.
    pub(crate) fn wanted(&self) -> Vec<Arc<str>> {
        self.0.topics().keys().cloned().collect()
    }
}

/// For who keeps a server's subscriptions in step with the channels.
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
impl Channels {
    /// The channels of these that are listened to and that the server has not refused.
    pub(crate) fn not_refused(&self, which: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let topics = self.0.topics();
        let refused =
            |topic: &Topic| matches!(*topic.subscription.borrow(), Subscription::Refused(_));
        let channels = topics.iter().filter(|(channel, topic)| which(channel) && !refused(topic));
        channels.map(|(channel, _)| channel.clone()).collect()
    }

    pub(crate) fn wants(&self, channel: &str) -> bool {
        self.0.topics().contains_key(channel)
    }

    /// Whether anyone listens to such a channel.
    pub(crate) fn any(&self, which: impl Fn(&str) -> bool) -> bool {
        self.0.topics().keys().any(|channel| which(channel))
    }

    /// Told whenever a channel opens or closes.
    pub(crate) fn turns(&self) -> watch::Receiver<u64> {
        self.0.turns.subscribe()
    }

    /// Has whoever keeps subscriptions in step look at all of them.
    pub(crate) fn turn(&self) {
        self.0.turn();
    }

    /// Says what the server has said of the subscription. Who may have missed something looks again.
    pub(crate) fn answer(&self, channel: &str, answer: Subscription) {
        if let Some(topic) = self.0.topics().get(channel)
            && let Subscription::Lost = topic.subscription.send_replace(answer)
        {
            let _ = topic.sender.send(Change::Wake);
        }
    }

    /// Says that no subscription of these is in place any more, and none refused.
    pub(crate) fn forget_answers(&self, which: impl Fn(&str) -> bool) {
        for (_, topic) in self.0.topics().iter().filter(|(channel, _)| which(channel)) {
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

impl Topic {
    fn listener(&mut self, channel: &Arc<str>, shared: &Arc<Shared>) -> Listener {
        self.listeners += 1;
        Listener {
            receiver: self.sender.subscribe(),
            subscription: self.subscription.subscribe(),
            channel: channel.clone(),
            shared: shared.clone(),
        }
    }
}

impl Shared {
    fn topics(&self) -> MutexGuard<'_, HashMap<Arc<str>, Topic>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turn(&self) {
        self.turns.send_modify(|turns| *turns = turns.wrapping_add(1));
    }
}

/// Gives the memory of a burst back.
fn give_back(topics: &mut HashMap<Arc<str>, Topic>) {
    if topics.capacity() > 1024 && topics.len() < topics.capacity() / 8 {
        topics.shrink_to(topics.len() * 2);
    }
}

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.wanted()).finish()
    }
}

/// A subscription to what happens to one name. Dropping it ends it.
pub struct Changes(Source);

enum Source {
    One(Listener),
    /// The channel of all, and that of this process.
    Two(Box<[Listener; 2]>),
    Several(Joined),
}

/// One who listens to a channel.
pub(super) struct Listener {
    receiver: broadcast::Receiver<Change>,
    subscription: watch::Receiver<Subscription>,
    channel: Arc<str>,
    shared: Arc<Shared>,
}

impl Changes {
    /// The changes of one name at several servers, as one: wakes, when as many as are `enough` have told
    /// something.
    pub(crate) fn join(each: Vec<Self>, enough: usize) -> Self {
        let listeners = each.into_iter().flat_map(|changes| match changes.0 {
            Source::One(listener) => vec![listener],
            Source::Two(both) => Vec::from(*both),
            Source::Several(joined) => joined.into_listeners(),
        });
        Self(Source::Several(Joined::new(listeners.collect(), enough)))
    }

    /// The next change; [`Change::Wake`] if some were missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Change {
        match &mut self.0 {
            Source::One(listener) => listener.next().await,
            Source::Two(both) => {
                let [one, other] = both.as_mut();
                tokio::select! {
                    change = one.next() => change,
                    change = other.next() => change,
                }
            }
            Source::Several(joined) => joined.next().await,
        }
    }

    /// Passes over what was pushed until now.
    pub(crate) fn forget(&mut self) {
        match &mut self.0 {
            Source::One(listener) => listener.forget(),
            Source::Two(both) => both.iter_mut().for_each(Listener::forget),
            Source::Several(joined) => joined.forget(),
        }
    }

    /// Whether nothing can be expected of it any more, and waiting on it would be in vain.
    pub(crate) fn is_mute(&self) -> bool {
        match &self.0 {
            Source::One(listener) => listener.is_mute(),
            Source::Two(both) => both.iter().any(Listener::is_mute),
            Source::Several(joined) => joined.is_mute(),
        }
    }

    /// Whether it was in place, and is not any more.
    pub(crate) fn is_lost(&self) -> bool {
        match &self.0 {
            Source::One(listener) => listener.is_lost(),
            Source::Two(both) => both.iter().any(Listener::is_lost),
            Source::Several(joined) => joined.is_lost(),
        }
    }

    /// Returns when the server has confirmed the subscription, or refused it.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) async fn confirmed(&mut self) -> Result<(), BackendError> {
        match &mut self.0 {
            Source::One(listener) => listener.confirmed().await,
            Source::Two(both) => {
                let [one, other] = both.as_mut();
                one.confirmed().await?;
                other.confirmed().await
            }
            // Each was, before it was joined.
            Source::Several(_) => Ok(()),
        }
    }
}

impl Listener {
    pub(super) async fn next(&mut self) -> Change {
        match self.receiver.recv().await {
            Ok(change) => change,
            Err(broadcast::error::RecvError::Lagged(_)) => Change::Wake,
            // The topic lives as long as this listener, so its sender does too.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Passes over what was pushed until now.
    pub(super) fn forget(&mut self) {
        self.receiver = self.receiver.resubscribe();
    }

    pub(super) fn is_mute(&self) -> bool {
        self.shared.mute.load(Ordering::Acquire)
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(*self.subscription.borrow(), Subscription::Lost | Subscription::Refused(_))
    }

    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    async fn confirmed(&mut self) -> Result<(), BackendError> {
        let open =
            |answer: &Subscription| matches!(answer, Subscription::Asked | Subscription::Lost);
        let answered = |answer: &Subscription| !open(answer);
        let answer = self.subscription.wait_for(answered).await.map(|answer| answer.clone());
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
        let mut topics = self.shared.topics();
        let Some(topic) = topics.get_mut(&self.channel) else { return };
        topic.listeners -= 1;
        if topic.listeners == 0 {
            topics.remove(&self.channel);
            give_back(&mut topics);
            drop(topics);
            self.shared.turn();
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::One(listener) => f.debug_tuple("Changes").field(&listener.channel).finish(),
            Source::Two(both) => f.debug_tuple("Changes").field(&both[0].channel).finish(),
            Source::Several(joined) => f.debug_tuple("Changes").field(joined).finish(),
        }
    }
}
