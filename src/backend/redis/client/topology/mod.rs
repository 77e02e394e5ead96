//! The node that serves each slot, as far as it is known, and the waiters that a change wakes.

mod slots;

use std::sync::Arc;

use redis::RedisError;
use tokio::sync::{Notify, watch};
use tracing::warn;

#[cfg(any(fuzzing, test))]
pub(in super::super) use self::slots::check_any_slots;
pub(super) use self::slots::{NodeAddress, SlotMap, slot_of};
use crate::{
    backend::Channels,
    error::{BackendError, Chain},
};

pub(super) struct Topology {
    state: watch::Sender<TopologyState>,
    /// Notified when something does not fit the map: a slot has moved, or a connection broke.
    pub(super) trouble: Arc<Notify>,
    pub(super) channels: Channels,
    /// Changes with each new connection to a node, and when slots have moved.
    pub(super) new_connections: watch::Sender<()>,
}

#[derive(Clone)]
pub(super) enum TopologyState {
    /// No node was asked yet.
    Unknown,
    Known(Arc<SlotMap>),
    /// The last attempt to ask failed. The refresh task makes the next one.
    Failed(BackendError),
}

impl Topology {
    pub(super) fn new() -> Self {
        let state = watch::Sender::new(TopologyState::Unknown);
        let (trouble, channels, new_connections) = Default::default();
        Self { state, trouble, channels, new_connections }
    }

    pub(super) fn watch(&self) -> watch::Receiver<TopologyState> {
        self.state.subscribe()
    }

    pub(super) fn known(&self) -> Option<Arc<SlotMap>> {
        match &*self.state.borrow() {
            TopologyState::Known(slots) => Some(slots.clone()),
            _ => None,
        }
    }

    /// Takes over the map that a node reported.
    pub(super) fn replace(&self, now: SlotMap) {
        let now = Arc::new(now);
        let mut before = TopologyState::Unknown;
        let changed = self.state.send_if_modified(|state| {
            if matches!(state, TopologyState::Known(known) if *known == now) {
                return false;
            }
            before = std::mem::replace(state, TopologyState::Known(now.clone()));
            true
        });
        if !changed {
            return;
        }
        match before {
            TopologyState::Known(before) => {
                self.channels_moved(|channel| {
                    let slot = slot_of(channel.as_bytes());
                    before.owner(slot) != now.owner(slot)
                });
            }
            _ => self.channels.recheck(),
        }
    }

    /// Takes over that a slot has moved, and asks for the whole map, because other slots may have
    /// moved.
    pub(super) fn slot_moved(&self, slot: u16, to: NodeAddress) {
        let changed = self.state.send_if_modified(|state| match state {
            TopologyState::Known(slots) if slots.owner(slot) != Some(&to) => {
                *state = TopologyState::Known(Arc::new(slots.with(slot, to)));
                true
            }
            _ => false,
        });
        if changed {
            self.channels_moved(|channel| slot_of(channel.as_bytes()) == slot);
        }
        self.trouble.notify_one();
    }

    fn channels_moved(&self, has_moved: impl Fn(&str) -> bool) {
        self.new_connections.send_replace(());
        self.channels.lost(&has_moved);
        self.channels.recheck();
    }

    /// Records that no node replied. A map that was known before stays.
    pub(super) fn failed(&self, error: BackendError) {
        let was_failed = matches!(&*self.state.borrow(), TopologyState::Failed(_));
        let is_failed = self.state.send_if_modified(|state| {
            let is_failed = !matches!(state, TopologyState::Known(_));
            if is_failed {
                *state = TopologyState::Failed(error.clone());
            }
            is_failed
        });
        if is_failed && !was_failed {
            warn!(error = %Chain(&error), "no node of the cluster replies; trying again");
            self.channels.wake(|_| true);
        }
    }

    /// Records that the refresh task has ended with its runtime. A map that was known before stays.
    pub(super) fn abandon(&self) {
        self.state.send_if_modified(|state| {
            let is_waiting = !matches!(state, TopologyState::Known(_));
            if is_waiting {
                *state = TopologyState::Unknown;
            }
            is_waiting
        });
    }
}

/// The slots that one node serves.
#[derive(Clone)]
pub(super) struct NodeSlots {
    pub(super) topology: Arc<Topology>,
    pub(super) address: NodeAddress,
}

impl NodeSlots {
    pub(super) fn contain(&self, channel: &str) -> bool {
        match &*self.topology.state.borrow() {
            TopologyState::Known(slots) => {
                slots.owner(slot_of(channel.as_bytes())) == Some(&self.address)
            }
            _ => false,
        }
    }

    /// Takes over that a channel's slot has moved, as the node's error says.
    pub(super) fn moved(&self, channel: &str, error: &RedisError) {
        let to =
            error.redirect_node().and_then(|(to, _)| NodeAddress::read(to, &self.address.host));
        if let Some(to) = to {
            self.topology.slot_moved(slot_of(channel.as_bytes()), to);
        }
    }
}
