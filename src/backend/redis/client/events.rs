//! The events that the connections of a backend report to the rest of the process.

use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    settings::{Address, RedisConfig},
    task::LatestFinding,
    topology::{SlotMap, slot_of},
};
use crate::{
    backend::{Channels, Connections},
    sync::lock,
};

pub(in super::super) struct Events {
    pub(in super::super) channels: Channels,
    /// Changes with each new connection for commands, and when slots have moved.
    pub(in super::super) new_connections: watch::Sender<()>,
    /// Notified when a slot has moved, or a connection broke.
    pub(super) trouble: Notify,
    /// The slots that nodes serve. A known map stays when a question fails.
    pub(super) slots: LatestFinding<Arc<SlotMap>>,
    /// The servers are the nodes of a cluster, so the channels are shard channels.
    pub(super) is_cluster: bool,
    pub(in super::super) standing: Standing,
}

/// Since when the connections for commands stand, for operators.
#[derive(Default)]
pub(in super::super) struct Standing {
    connections: Mutex<Vec<Weak<ConnectedSince>>>,
    round_trip: Mutex<Option<Duration>>,
}

/// Since when one connection stands. `None` after a break.
pub(super) type ConnectedSince = Mutex<Option<Instant>>;

impl Standing {
    /// Adds a connection that is made for the first time. The connection counts while its owner
    /// keeps the result, so a node that serves nothing any more counts no longer.
    pub(super) fn add_connection(&self) -> Arc<ConnectedSince> {
        let added = Arc::new(ConnectedSince::default());
        let mut connections = lock(&self.connections);
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(&added));
        added
    }

    pub(super) fn forget_round_trip(&self) {
        *lock(&self.round_trip) = None;
    }

    pub(super) fn measured(&self, round_trip: Duration) {
        *lock(&self.round_trip) = Some(round_trip);
    }

    pub(in super::super) fn connections(&self) -> Connections {
        let mut stood_for = None;
        for connection in lock(&self.connections).iter().filter_map(Weak::upgrade) {
            let since = *lock(&connection);
            let time = since.map_or(Duration::ZERO, |since| since.elapsed());
            stood_for = Some(stood_for.map_or(time, |least: Duration| least.min(time)));
        }
        Connections { round_trip: *lock(&self.round_trip), stood_for }
    }
}

impl Events {
    pub(super) fn new(config: &RedisConfig, is_cluster: bool) -> Arc<Self> {
        Arc::new(Self {
            channels: Channels::default(),
            new_connections: watch::Sender::default(),
            trouble: Notify::default(),
            slots: LatestFinding::pending(config.first_connection_limit()),
            is_cluster,
            standing: Standing::default(),
        })
    }
}

#[derive(Clone)]
pub(super) struct NodeEvents {
    pub(super) all: Arc<Events>,
    /// The node that was found. `None` for a fixed server, which serves all channels.
    pub(super) node: Option<Address>,
}

impl NodeEvents {
    /// Returns whether this node is known to serve a channel.
    pub(super) fn serves(&self, channel: &str) -> bool {
        self.known_to_serve(channel) == Some(true)
    }

    /// Returns whether another node is known to serve a channel, or none.
    pub(super) fn has_lost(&self, channel: &str) -> bool {
        self.known_to_serve(channel) == Some(false)
    }

    /// Returns `None` while no map of slots is known.
    fn known_to_serve(&self, channel: &str) -> Option<bool> {
        let Some(node) = &self.node else { return Some(true) };
        let slots = self.all.slots.known()?;
        let owner = slots.owner(slot_of(channel.as_bytes()));
        Some(owner == Some(node))
    }

    /// Notes that the subscriptions to the server's channels are gone, and wakes the waiters.
    pub(super) fn note_lost_subscriptions(&self) {
        self.all.channels.note_lost(|channel| !self.has_lost(channel));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node has a connection for commands and a connection for grants. Each of them counts.
    #[test]
    fn connections_stand_since_the_latest_of_them_was_made() {
        let standing = Standing::default();
        let stood_for = || standing.connections().stood_for;
        assert_eq!(stood_for(), None);
        let commands = standing.add_connection();
        let grants = standing.add_connection();
        *lock(&commands) = Some(Instant::now());
        assert_eq!(stood_for(), Some(Duration::ZERO), "the other connection does not stand yet");
        *lock(&grants) = Some(Instant::now());
        assert!(stood_for() > Some(Duration::ZERO));
        *lock(&commands) = None;
        assert_eq!(stood_for(), Some(Duration::ZERO));
        drop(commands);
        assert!(stood_for() > Some(Duration::ZERO), "the node of the other connection is gone");
    }
}
