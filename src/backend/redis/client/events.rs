//! What the connections to one server report to the rest of the process.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::topology::NodeSlots;
use crate::{backend::Channels, observe::Rarely, sync::lock};

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

/// Since when a server is away, for the log.
#[derive(Default)]
pub(super) struct ServerOutage {
    begun: Mutex<Option<Instant>>,
    /// The log tells of it once a minute.
    pub(super) told: Rarely,
}

impl ServerOutage {
    /// Notes that the server is away. Returns for how long it is.
    pub(super) fn begins(&self) -> Duration {
        lock(&self.begun).get_or_insert_with(Instant::now).elapsed()
    }

    /// Returns how long it was away, to the first that asks.
    pub(super) fn ends(&self) -> Option<Duration> {
        lock(&self.begun).take().map(|begun| begun.elapsed())
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
    pub(super) fn of_single() -> Self {
        let (channels, trouble, new_connections, outage) = Default::default();
        Self { channels, scope: ChannelScope::All, trouble, new_connections, outage }
    }

    /// Wakes the waiters on the server's channels, so that each asks again.
    pub(super) fn wake(&self) {
        self.channels.wake(|channel| self.scope.contains(channel));
    }

    /// Notes that the subscriptions to the server's channels are gone, and wakes the waiters.
    pub(super) fn lost(&self) {
        self.channels.lost(|channel| self.scope.contains(channel));
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

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use super::*;

    /// The opening took the lock of the channels, then the lock of their watch. The task of a node
    /// took them the other way round.
    #[test]
    fn channels_open_while_the_task_of_a_node_looks_for_one() {
        const TIMES: usize = 20_000;
        let events = NodeEvents::of_single();
        let (channels, mut openings) = (events.channels.clone(), events.channels.openings());
        let (done, ends) = mpsc::channel();
        let opened = done.clone();
        thread::spawn(move || {
            for at in 0..TIMES {
                let channel = at.to_string().into();
                channels.register(&"k".into(), vec![channel], None).subscribe();
            }
            opened.send(())
        });
        thread::spawn(move || {
            for _ in 0..TIMES {
                let looks = openings.wait_for(|_| events.channels.wanted(|_| false).is_empty());
                let _ = futures_util::FutureExt::now_or_never(looks);
            }
            done.send(())
        });
        for _ in 0..2 {
            assert!(ends.recv_timeout(Duration::from_secs(60)).is_ok(), "they wait for each other");
        }
    }
}
