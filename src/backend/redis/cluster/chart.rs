//! What is known of a cluster, and who is told when that changes.

use std::sync::Arc;

use redis::RedisError;
use tokio::sync::{Notify, watch};
use tracing::warn;

use super::slots::{Address, Slots, slot_of};
use crate::{backend::Channels, error::BackendError};

pub(super) struct Chart {
    map: watch::Sender<Map>,
    /// Told when something does not fit the map: a slot has moved, a connection broke.
    pub(super) trouble: Arc<Notify>,
    pub(super) channels: Channels,
}

#[derive(Clone)]
pub(super) enum Map {
    /// Nobody has asked yet.
    Unknown,
    Known(Arc<Slots>),
    /// The last attempt to ask failed; the next one comes by itself.
    Down(BackendError),
}

impl Chart {
    pub(super) fn new() -> Self {
        let map = watch::Sender::new(Map::Unknown);
        Self { map, trouble: Arc::default(), channels: Channels::default() }
    }

    pub(super) fn map(&self) -> watch::Receiver<Map> {
        self.map.subscribe()
    }

    pub(super) fn known(&self) -> Option<Arc<Slots>> {
        match &*self.map.borrow() {
            Map::Known(slots) => Some(slots.clone()),
            _ => None,
        }
    }

    /// Takes over what a node says.
    pub(super) fn take(&self, now: Slots) {
        let now = Arc::new(now);
        let mut before = Map::Unknown;
        let changed = self.map.send_if_modified(|map| {
            if matches!(map, Map::Known(known) if *known == now) {
                return false;
            }
            before = std::mem::replace(map, Map::Known(now.clone()));
            true
        });
        if !changed {
            return;
        }
        if let Map::Known(before) = before {
            let moved = |channel: &str| {
                let slot = slot_of(channel.as_bytes());
                before.owner(slot) != now.owner(slot)
            };
            self.channels.forget_answers(moved);
            self.channels.wake(moved);
        }
        self.channels.turn();
    }

    /// Takes over that a slot has moved. There may be others, so all of them are to be asked for.
    pub(super) fn moved(&self, slot: u16, to: Address) {
        let changed = self.map.send_if_modified(|map| match map {
            Map::Known(slots) if slots.owner(slot) != Some(&to) => {
                *map = Map::Known(Arc::new(slots.with(slot, to)));
                true
            }
            _ => false,
        });
        if changed {
            let moved = |channel: &str| slot_of(channel.as_bytes()) == slot;
            self.channels.forget_answers(moved);
            self.channels.wake(moved);
            self.channels.turn();
        }
        self.trouble.notify_one();
    }

    /// Nobody answers. What was known stays so.
    pub(super) fn failed(&self, error: BackendError) {
        let told = matches!(&*self.map.borrow(), Map::Down(_));
        let down = self.map.send_if_modified(|map| {
            let down = !matches!(map, Map::Known(_));
            if down {
                *map = Map::Down(error.clone());
            }
            down
        });
        if down && !told {
            warn!(error = %crate::error::Chain(&error), "no node of the cluster answers; trying again");
            self.channels.wake(|_| true);
        }
    }

    /// Nobody asks any more, for the runtime of who did is gone.
    pub(super) fn abandon(&self) {
        self.map.send_if_modified(|map| {
            let waiting = !matches!(map, Map::Known(_));
            if waiting {
                *map = Map::Unknown;
            }
            waiting
        });
    }
}

/// The slots that one node serves.
#[derive(Clone)]
pub(in super::super) struct Share {
    pub(super) chart: Arc<Chart>,
    pub(super) address: Address,
}

impl Share {
    pub(in super::super) fn has(&self, channel: &str) -> bool {
        match &*self.chart.map.borrow() {
            Map::Known(slots) => slots.owner(slot_of(channel.as_bytes())) == Some(&self.address),
            _ => false,
        }
    }

    /// Takes over that a channel's slot has moved, as the node said.
    pub(in super::super) fn moved(&self, channel: &str, error: &RedisError) {
        let to = error.redirect_node().and_then(|(to, _)| Address::read(to, &self.address.host));
        if let Some(to) = to {
            self.chart.moved(slot_of(channel.as_bytes()), to);
        }
    }
}
