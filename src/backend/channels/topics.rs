//! The channels that are listened to, and their listeners.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::{broadcast, watch};

use crate::{backend::Change, error::BackendError};

/// The pushes that a slow waiter may have unread. With more, it looks again.
const BACKLOG: usize = 16;

/// The open channels of one [`Channels`](super::Channels), and their listeners.
#[derive(Default)]
pub(super) struct Topics {
    open: Mutex<HashMap<Arc<str>, Topic>>,
    /// Counts openings and closings, for the task that keeps subscriptions in step.
    pub(super) openings: watch::Sender<u64>,
    /// The server pushes nothing any more, whatever is subscribed.
    pub(super) mute: AtomicBool,
}

pub(super) struct Topic {
    pub(super) sender: broadcast::Sender<Change>,
    pub(super) subscription: watch::Sender<Subscription>,
    listeners: usize,
}

/// What the server has said of a subscription.
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

impl Topics {
    pub(super) fn open(&self) -> MutexGuard<'_, HashMap<Arc<str>, Topic>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to channels, and opens those that are not open.
    pub(super) fn listen<const N: usize>(
        self: &Arc<Self>,
        channels: [&Arc<str>; N],
    ) -> [Listener; N] {
        let mut open = self.open();
        let mut opened = false;
        let listeners = channels.map(|channel| {
            opened |= !open.contains_key(channel);
            let topic = open.entry(channel.clone()).or_insert_with(|| Topic {
                sender: broadcast::Sender::new(BACKLOG),
                subscription: watch::Sender::new(Subscription::Asked),
                listeners: 0,
            });
            topic.listen(channel, self)
        });
        drop(open);
        if opened {
            self.recheck();
        }
        listeners
    }

    /// Makes the task that keeps subscriptions in step look at all of them.
    pub(super) fn recheck(&self) {
        self.openings.send_modify(|openings| *openings = openings.wrapping_add(1));
    }
}

impl Topic {
    pub(super) fn listen(&mut self, channel: &Arc<str>, topics: &Arc<Topics>) -> Listener {
        self.listeners += 1;
        Listener {
            receiver: self.sender.subscribe(),
            subscription: self.subscription.subscribe(),
            channel: channel.clone(),
            topics: topics.clone(),
        }
    }
}

/// One subscription to one channel.
pub(super) struct Listener {
    receiver: broadcast::Receiver<Change>,
    subscription: watch::Receiver<Subscription>,
    channel: Arc<str>,
    topics: Arc<Topics>,
}

impl Listener {
    pub(super) fn channel(&self) -> &Arc<str> {
        &self.channel
    }

    pub(super) async fn next(&mut self) -> Change {
        match self.receiver.recv().await {
            Ok(change) => change,
            Err(broadcast::error::RecvError::Lagged(_)) => Change::Wake,
            // The topic lives as long as this listener, and so does its sender.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Passes over the pushes until now.
    pub(super) fn forget(&mut self) {
        self.receiver = self.receiver.resubscribe();
    }

    pub(super) fn is_mute(&self) -> bool {
        self.topics.mute.load(Ordering::Acquire)
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
        let Some(topic) = open.get_mut(&self.channel) else { return };
        topic.listeners -= 1;
        if topic.listeners == 0 {
            open.remove(&self.channel);
            // The memory of a burst is given back.
            if open.capacity() > 1024 && open.len() < open.capacity() / 8 {
                let kept = open.len() * 2;
                open.shrink_to(kept);
            }
            drop(open);
            self.topics.recheck();
        }
    }
}
