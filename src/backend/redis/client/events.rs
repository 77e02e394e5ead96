//! Events that the connections to one server report to the rest of the process.

use std::sync::Arc;

use tokio::sync::Notify;

use super::topology::NodeSlots;
use crate::backend::Channels;

/// The events of one server, and the channels that they concern.
#[derive(Clone)]
pub(super) struct NodeEvents {
    pub(super) channels: Channels,
    pub(super) scope: ChannelScope,
    /// Notified when a connection broke, or could not be made.
    pub(super) trouble: Arc<Notify>,
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
        Self { channels, scope: ChannelScope::All, trouble: Arc::default() }
    }

    /// Wakes the waiters on the server's channels, so that each asks again.
    pub(super) fn wake(&self) {
        self.channels.wake(|channel| self.scope.contains(channel));
    }

    /// Marks the subscriptions to the server's channels as lost.
    pub(super) fn forget_answers(&self) {
        self.channels.forget_answers(|channel| self.scope.contains(channel));
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
