//! Events that the connections to one server report to the rest of the process.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::topology::NodeSlots;
use crate::{backend::Channels, error::BackendError, sync::lock};

/// The events of one server, and the channels that they concern.
#[derive(Clone)]
pub(super) struct NodeEvents {
    pub(super) channels: Channels,
    pub(super) scope: ChannelScope,
    /// Notified when a connection broke, or could not be made.
    pub(super) trouble: Arc<Notify>,
    /// Changes with each new connection for commands.
    pub(super) new_connections: watch::Sender<()>,
    pub(super) outage: Arc<ServerOutage>,
}

/// Since when the server is away, for the log.
#[derive(Default)]
pub(super) struct ServerOutage(Mutex<Option<Instant>>);

impl ServerOutage {
    pub(super) fn begins(&self) {
        lock(&self.0).get_or_insert_with(Instant::now);
    }

    /// Returns how long it was away, to the first that asks.
    pub(super) fn ends(&self) -> Option<Duration> {
        lock(&self.0).take().map(|begun| begun.elapsed())
    }
}

/// The channels that one server serves.
#[derive(Clone)]
pub(super) enum ChannelScope {
    All,
    /// The channels of the slots that this node of a cluster serves.
    Slots(NodeSlots),
}

impl NodeEvents {
    /// Returns the events of a single server, which serves all channels.
    pub(super) fn of_single(channels: Channels) -> Self {
        let (trouble, new_connections) = (Arc::default(), watch::Sender::default());
        let (scope, outage) = (ChannelScope::All, Arc::default());
        Self { channels, scope, trouble, new_connections, outage }
    }

    /// Wakes the waiters on the server's channels, so that each asks again.
    pub(super) fn wake(&self) {
        self.channels.wake(|channel| self.scope.contains(channel));
    }

    /// Notes that the subscriptions to the server's channels are gone, and wakes the waiters.
    pub(super) fn lost(&self) {
        self.channels.lost(|channel| self.scope.contains(channel));
    }

    /// Notes that the server cannot be reached for its channels.
    pub(super) fn failed(&self, error: &BackendError) {
        self.channels.fail(|channel| self.scope.contains(channel), error);
    }

    /// Has the server asked again for the channels that it refused.
    pub(super) fn retry(&self) {
        self.channels.retry(|channel| self.scope.contains(channel));
    }
}

impl ChannelScope {
    pub(super) fn contains(&self, channel: &str) -> bool {
        match self {
            Self::All => true,
            Self::Slots(slots) => slots.contain(channel),
        }
    }
}
