//! The events that the connections of a backend report to the rest of the process.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::ConnectionAddr;
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
    /// The slots that nodes serve. A map that was known stays, whatever fails.
    pub(super) slots: LatestFinding<Arc<SlotMap>>,
    /// The channels are those of shards.
    pub(super) is_cluster: bool,
    pub(in super::super) standing: Standing,
}

/// Since when the connections stand, for operators.
#[derive(Default)]
pub(in super::super) struct Standing {
    /// Each server that was connected, and since when it is. `None` after a break.
    servers: Mutex<HashMap<String, Option<Instant>>>,
    round_trip: Mutex<Option<Duration>>,
}

impl Standing {
    pub(super) fn connected(&self, server: &ConnectionAddr) {
        lock(&self.servers).insert(server.to_string(), Some(Instant::now()));
    }

    pub(super) fn broke(&self, server: &ConnectionAddr) {
        lock(&self.servers).insert(server.to_string(), None);
        *lock(&self.round_trip) = None;
    }

    pub(super) fn measured(&self, round_trip: Duration) {
        *lock(&self.round_trip) = Some(round_trip);
    }

    pub(in super::super) fn connections(&self) -> Connections {
        let servers = lock(&self.servers);
        let times = servers.values().map(|since| since.map_or(Duration::ZERO, |at| at.elapsed()));
        Connections { round_trip: *lock(&self.round_trip), stood_for: times.min() }
    }
}

impl Events {
    pub(super) fn new(config: &RedisConfig, is_cluster: bool) -> Arc<Self> {
        let (channels, new_connections, trouble) = Default::default();
        let slots = LatestFinding::pending(config.first_connection_limit());
        let standing = Standing::default();
        Arc::new(Self { channels, new_connections, trouble, slots, is_cluster, standing })
    }
}

#[derive(Clone)]
pub(super) struct NodeEvents {
    pub(super) all: Arc<Events>,
    /// The node that was found. `None` for a fixed server, which serves all channels.
    pub(super) node: Option<Address>,
}

impl NodeEvents {
    pub(super) fn serves(&self, channel: &str) -> bool {
        let Some(node) = &self.node else { return true };
        let slots = self.all.slots.known();
        slots.is_some_and(|slots| slots.owner(slot_of(channel.as_bytes())) == Some(node))
    }

    /// Notes that the subscriptions to the server's channels are gone, and wakes the waiters.
    pub(super) fn lost(&self) {
        self.all.channels.note_lost(|channel| self.serves(channel));
    }
}
