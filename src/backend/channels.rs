//! Who in this process waits for which name.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{broadcast, watch};

use super::Change;

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
}

struct Topic {
    sender: broadcast::Sender<Change>,
    /// Whether the server has confirmed the subscription.
    confirmed: watch::Sender<bool>,
    listeners: usize,
}

impl Channels {
    /// Starts to listen.
    pub fn listen(&self, channel: &Arc<str>) -> Changes {
        let mut topics = self.0.topics();
        let opened = !topics.contains_key(channel);
        let topic = topics.entry(channel.clone()).or_insert_with(|| Topic {
            sender: broadcast::Sender::new(BACKLOG),
            confirmed: watch::Sender::new(false),
            listeners: 0,
        });
        topic.listeners += 1;
        let changes = Changes {
            receiver: topic.sender.subscribe(),
            confirmed: topic.confirmed.subscribe(),
            channel: channel.clone(),
            shared: self.0.clone(),
        };
        drop(topics);
        if opened {
            self.0.turn();
        }
        changes
    }

    /// Gives a push to everyone who listens to the channel.
    pub fn push(&self, channel: &str, change: Change) {
        if let Some(topic) = self.0.topics().get(channel) {
            // Nobody listening is no error: the last one may have just left.
            let _ = topic.sender.send(change);
        }
    }

    /// The channels that are listened to.
    pub(crate) fn wanted(&self) -> Vec<Arc<str>> {
        self.0.topics().keys().cloned().collect()
    }

    pub(crate) fn wants(&self, channel: &str) -> bool {
        self.0.topics().contains_key(channel)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.topics().is_empty()
    }

    /// Told whenever a channel opens or closes.
    pub(crate) fn turns(&self) -> watch::Receiver<u64> {
        self.0.turns.subscribe()
    }

    /// Says that the server has confirmed the subscription.
    pub(crate) fn confirm(&self, channel: &str) {
        if let Some(topic) = self.0.topics().get(channel) {
            topic.confirmed.send_replace(true);
        }
    }

    /// Says that no subscription is in place any more.
    pub(crate) fn unconfirm_all(&self) {
        for topic in self.0.topics().values() {
            topic.confirmed.send_replace(false);
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

impl fmt::Debug for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.wanted()).finish()
    }
}

/// A subscription to what happens to one name. Dropping it ends it.
pub struct Changes {
    receiver: broadcast::Receiver<Change>,
    confirmed: watch::Receiver<bool>,
    channel: Arc<str>,
    shared: Arc<Shared>,
}

impl Changes {
    /// The next change; [`Change::Wake`] if some were missed.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no change.
    pub async fn next(&mut self) -> Change {
        match self.receiver.recv().await {
            Ok(change) => change,
            Err(broadcast::error::RecvError::Lagged(_)) => Change::Wake,
            // The topic lives as long as this listener, so its sender does too.
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }

    /// Returns when the server has confirmed the subscription.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) async fn confirmed(&mut self) {
        if self.confirmed.wait_for(|confirmed| *confirmed).await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for Changes {
    fn drop(&mut self) {
        let mut topics = self.shared.topics();
        let Some(topic) = topics.get_mut(&self.channel) else { return };
        topic.listeners -= 1;
        if topic.listeners == 0 {
            topics.remove(&self.channel);
            drop(topics);
            self.shared.turn();
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Changes").field(&self.channel).finish()
    }
}
