//! The subscriptions of a connection for pushes.
//!
//! The connection's task keeps the server's subscriptions in step with the channels that
//! [`Channels`] wants ([`Subscriptions`]). A caller's future never subscribes itself, because it
//! may be dropped.
//!
//! The connection is separate from the one for commands. Redis applies the output limit of pub/sub
//! to a connection that subscribes, and closes it when large replies queue up.
//!
//! All channels that opened or closed since the last turn are one write, with one command for each.
//! A server refuses a command with one forbidden channel, and a command must not touch two slots.
//! In a cluster, the channels are shard channels (`SSUBSCRIBE`, Redis 7), on which a message goes
//! to no other node.

use std::{
    collections::HashSet,
    convert::Infallible,
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use redis::{
    ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection,
    from_redis_value,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{
    connect::Connection,
    events::{ChannelScope, NodeEvents},
    settings::RedisConfig,
};
use crate::{
    backend::{Change, Channels, Handover, redis::keys},
    error::Chain,
    observe::Rarely,
    sync::lock,
};

/// How often a silent connection is tested with a `PING`.
///
/// Waiters rely on the connection without a sign that it is dead. With the time for the reply and
/// for a new connection, that lasts two seconds at most.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How soon a subscription is tried again that cannot be made at the moment.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// The state that successive connections for pushes to one server share.
#[derive(Default)]
pub(super) struct PushService {
    leaving: LeavingChannels,
    /// How often the log tells of refused subscriptions.
    refusals: Rarely,
}

/// Hands each push of a connection to the waiters on its channel.
pub(super) struct Pushes {
    channels: Channels,
    /// The end of the connection, which a push may bring about.
    end: CancellationToken,
    leaving: LeavingChannels,
    /// Replicas must confirm grants. A lease that is handed over wakes its waiter only, which then
    /// asks for the lease itself.
    confirms: bool,
}

impl Pushes {
    pub(super) fn new(
        service: &PushService,
        events: &NodeEvents,
        config: &RedisConfig,
        end: &CancellationToken,
    ) -> Self {
        let (channels, leaving) = (events.channels.clone(), service.leaving.clone());
        Self { channels, end: end.clone(), leaving, confirms: config.replicas.is_some() }
    }

    pub(super) fn receive(&self, push: PushInfo) {
        let mut data = push.data.into_iter();
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                let (Some(Value::BulkString(channel)), Some(Value::BulkString(message))) =
                    (data.next(), data.next())
                else {
                    return;
                };
                let Ok(channel) = std::str::from_utf8(&channel) else { return };
                match keys::heartbeat_sent(&message) {
                    None => self.message(channel, message.into()),
                    Some(_) if self.end.is_cancelled() => {}
                    Some(sent) => self.channels.complete_until(sent),
                }
            }
            // Unless it was asked for, the channel's slot has moved. The client library takes the
            // message for the reply to another command, so the connection cannot be used any more.
            PushKind::SUnsubscribe => {
                let channel = data.next().and_then(|it| from_redis_value::<String>(it).ok());
                if !channel.is_some_and(|channel| lock(&self.leaving).remove(&*channel)) {
                    self.end.cancel();
                }
            }
            _ => {}
        }
    }

    fn message(&self, channel: &str, message: Bytes) {
        let Some((topic, at)) = keys::split_message(channel, &message) else { return };
        let change = match Change::decode(&message.slice(at..)) {
            Change::Granted(handover) if self.confirms => {
                Change::Granted(Handover { ends: Duration::ZERO, ..handover })
            }
            change => change,
        };
        self.channels.push(topic, change);
    }
}

/// The shard channels whose unsubscription was asked for.
///
/// The server ends the subscription to any other channel only when its slot has moved.
type LeavingChannels = Arc<Mutex<HashSet<Arc<str>>>>;

/// The subscriptions on one connection, which are kept in step with the channels that are open.
pub(super) struct Subscriptions<'a> {
    service: &'a PushService,
    events: &'a NodeEvents,
    current: &'a Connection,
    /// How long the connection may be silent before a reply.
    limit: Duration,
    subscribed: HashSet<Arc<str>>,
    /// The channels that the server refuses. They are asked for again with the next `PING`.
    refused: HashSet<Arc<str>>,
}

impl<'a> Subscriptions<'a> {
    pub(super) fn new(
        service: &'a PushService,
        events: &'a NodeEvents,
        current: &'a Connection,
        limit: Duration,
    ) -> Self {
        lock(&service.leaving).clear();
        Self {
            service,
            events,
            current,
            limit,
            subscribed: HashSet::new(),
            refused: HashSet::new(),
        }
    }

    /// Keeps the subscriptions in step for as long as the connection answers.
    pub(super) async fn keep(mut self) -> Result<Infallible, RedisError> {
        let events = self.events;
        let mut openings = events.channels.openings();
        let mut is_complete = self.reconcile().await?;
        let mut ping_at = Instant::now() + PING_EVERY;
        loop {
            tokio::select! {
                // The registry lives as long as this.
                _ = openings.changed() => {}
                () = sleep(RETRY_AFTER), if !is_complete => {}
                () = sleep_until(ping_at) => {
                    let ping = redis::cmd("PING");
                    self.exchange(async |mut it| it.send_packed_command(&ping).await).await?;
                    self.refused.clear();
                    ping_at = Instant::now() + PING_EVERY;
                }
            }
            is_complete = self.reconcile().await?;
        }
    }

    /// Subscribes to the channels that opened, and unsubscribes from those that closed.
    ///
    /// Returns whether all subscriptions are in place.
    async fn reconcile(&mut self) -> Result<bool, RedisError> {
        let NodeEvents { channels, scope, trouble, .. } = self.events;
        let is_new =
            |channel: &str| !self.subscribed.contains(channel) && !self.refused.contains(channel);
        let opened = channels.wanted(|channel| scope.contains(channel) && is_new(channel));
        let (mut is_complete, mut has_moved) = (true, false);
        let replies = self.each("SUBSCRIBE", &opened).await?;
        for (channel, reply) in opened.into_iter().zip(replies) {
            match reply.extract_error() {
                Ok(_) => drop(self.subscribed.insert(channel)),
                Err(error) if passes_by_itself(&error) => {
                    is_complete = false;
                    has_moved |= error.kind() == ErrorKind::Server(ServerErrorKind::Moved);
                }
                Err(error) => {
                    if self.service.refusals.first() {
                        let error = Chain(&error);
                        warn!(%error, "Redis refuses subscriptions; waiters poll instead");
                    }
                    self.refused.insert(channel);
                }
            }
        }
        if has_moved {
            trouble.notify_one();
        }
        // A slot may have moved meanwhile. Its new node answers for its channels.
        let is_here = |channel: &str| self.subscribed.contains(channel) && scope.contains(channel);
        channels.confirmed(is_here);
        let stays = |channel: &str| channels.wants(channel) && scope.contains(channel);
        let closed: Vec<_> =
            self.subscribed.iter().filter(|channel| !stays(channel)).cloned().collect();
        lock(&self.service.leaving).extend(closed.iter().cloned());
        // A refusal says that the channel has moved to another node.
        self.each("UNSUBSCRIBE", &closed).await?;
        lock(&self.service.leaving).clear();
        self.subscribed.retain(|channel| !closed.contains(channel));
        Ok(is_complete)
    }

    /// Sends one command for each channel, and returns the reply to each.
    async fn each(&self, command: &str, channels: &[Arc<str>]) -> Result<Vec<Value>, RedisError> {
        if channels.is_empty() {
            return Ok(Vec::new());
        }
        let shard = match self.events.scope {
            ChannelScope::All => "",
            ChannelScope::Slots(_) => "S",
        };
        let mut pipeline = redis::pipe();
        for channel in channels {
            pipeline.cmd(&format!("{shard}{command}")).arg(channel.as_ref());
        }
        let count = channels.len();
        self.exchange(async |mut it| it.send_packed_commands(&pipeline, 0, count).await).await
    }

    /// Waits for a reply, which comes behind all pushes.
    async fn exchange<T, F>(
        &self,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, RedisError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let reply = self.current.exchange(self.limit, send).await;
        reply.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }
}

/// Returns whether a subscription that failed in this way may work a moment later.
fn passes_by_itself(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, BusyLoading, ClusterDown, Moved, TryAgain};
    let ErrorKind::Server(kind) = error.kind() else { return false };
    matches!(kind, Ask | BusyLoading | ClusterDown | Moved | TryAgain)
}
