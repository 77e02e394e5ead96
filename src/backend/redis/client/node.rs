//! The connections to one server, and the events that they report to the rest of the process.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use super::{
    commands::Before,
    link::{CommandDeadline, Link},
    push::PushConnection,
    replicas::{GrantReply, Grants},
    sentinel::Endpoint,
    settings::RedisConfig,
    topology::NodeSlots,
};
use crate::{
    backend::{Channels, redis::scripts::Call},
    error::BackendError,
    sync::lock,
};

/// One server and its connections, each made when it is first needed.
pub(super) struct Node {
    commands: Link,
    /// Only if replicas confirm grants. A `WAIT` delays all later commands of its connection.
    grants: Option<Grants>,
    pub(super) push: PushConnection,
    pub(super) events: NodeEvents,
}

impl Node {
    pub(super) fn new(endpoint: &Endpoint, config: &RedisConfig, events: NodeEvents) -> Self {
        let link = || Link::new(endpoint.clone(), config.clone(), events.clone());
        Self {
            commands: link(),
            grants: config.replicas.map(|needed| Grants::new(link(), needed)),
            push: PushConnection::new(endpoint.clone(), config.clone(), events.clone()),
            events,
        }
    }

    /// Returns the connection for commands. A waiter may listen behind it, so pushes are ready.
    pub(super) fn commands(&self) -> &Link {
        self.push.start();
        &self.commands
    }

    /// Runs a script that grants something. Returns whether enough replicas confirmed it, too.
    pub(super) async fn grant(
        &self,
        call: &Call<'_>,
        before: Before,
        deadline: CommandDeadline,
    ) -> GrantReply {
        let commands = self.commands();
        match &self.grants {
            Some(grants) => Box::pin(grants.call(call, before.asking, deadline)).await,
            None => Ok((commands.call(call, before, deadline).await?, Ok(()))),
        }
    }

    /// Replaces the connections after a reply that does not match its command.
    pub(super) fn replace_connections(&self) {
        self.commands.replace();
        if let Some(grants) = &self.grants {
            grants.link.replace();
        }
    }
}

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

/// How often the log tells that a server is away.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Since when the server is away, and when the log told of it last.
#[derive(Default)]
pub(super) struct ServerOutage(Mutex<Option<(Instant, Instant)>>);

impl ServerOutage {
    pub(super) fn begins(&self) {
        let now = Instant::now();
        lock(&self.0).get_or_insert((now, now));
    }

    /// Returns how long it is away, if the log has not told of it for a minute.
    pub(super) fn lasts(&self) -> Option<Duration> {
        let mut outage = lock(&self.0);
        let (begun, told) = outage.as_mut()?;
        if told.elapsed() < TOLD_EVERY {
            return None;
        }
        *told = Instant::now();
        Some(begun.elapsed())
    }

    /// Returns how long it was away, to the first that asks.
    pub(super) fn ends(&self) -> Option<Duration> {
        lock(&self.0).take().map(|(begun, _)| begun.elapsed())
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

    /// Notes that the server cannot be reached for its channels.
    pub(super) fn failed(&self, error: &BackendError) {
        self.channels.answer(|channel| self.scope.contains(channel), Err(error.clone()));
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

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_outage_is_told_each_minute() {
        let (outage, second) = (ServerOutage::default(), Duration::from_secs(1));
        assert_eq!(outage.lasts(), None);
        outage.begins();
        let mut told = Vec::new();
        for _ in 0..200 {
            advance(second).await;
            outage.begins();
            told.extend(outage.lasts());
        }
        assert_eq!(told, [60, 120, 180].map(Duration::from_secs));
        assert_eq!((outage.ends(), outage.ends()), (Some(200 * second), None));
        assert_eq!(outage.lasts(), None);
    }
}
