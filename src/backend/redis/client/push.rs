//! The subscriptions of a connection for pushes.
//!
//! The task of the connection keeps them in step with the channels that are open. A caller's future
//! never subscribes, because it may be dropped. The connection is separate from the one for
//! commands: Redis closes a connection that subscribes when large replies queue up.
//!
//! All channels that opened or closed since the last turn are one write, with one command for each.
//! A server refuses a command with one forbidden channel, and a command must not touch two slots.
//! In a cluster, the channels are shard channels (`SSUBSCRIBE`, Redis 7).

use std::{
    convert::Infallible,
    io,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use redis::{ErrorKind, Pipeline, PushInfo, PushKind, RedisError, ServerErrorKind, Value};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{connect::Connection, events::NodeEvents, settings::RedisConfig};
use crate::{
    backend::{Change, Handover, redis::keys},
    error::Chain,
    observe::Rarely,
    random::HashSet,
    sync::lock,
};

/// How often the connection is tested with a `PING`, and the server asked again for what it could
/// not subscribe to. Waiters rely on a dead connection for this long, and the time of the reply.
const PING_EVERY: Duration = Duration::from_secs(1);

/// Hands each push of a connection to the waiters on its channel.
pub(super) struct Pushes {
    events: NodeEvents,
    /// The end of the connection, which a push may bring about.
    pub(super) end: CancellationToken,
    /// The shard channels that the connection is about to leave.
    leaving: Mutex<HashSet<Arc<str>>>,
    /// Replicas must confirm grants. A lease that is handed over wakes its waiter only, which then
    /// asks for the lease itself.
    confirms: bool,
}

impl Pushes {
    pub(super) fn new(events: &NodeEvents, config: &RedisConfig) -> Self {
        let (end, leaving) = Default::default();
        Self { events: events.clone(), end, leaving, confirms: config.replicas.is_some() }
    }

    pub(super) fn receive(&self, push: PushInfo) {
        match (push.kind, &mut push.data.into_iter()) {
            (PushKind::Message | PushKind::SMessage, data) => {
                if let (Some(Value::BulkString(channel)), Some(Value::BulkString(message))) =
                    (data.next(), data.next())
                {
                    self.message(&channel, message.into());
                }
            }
            // Unless it was asked for, the channel's slot has moved. The client library takes the
            // message for the reply to another command, so the connection cannot be used any more.
            (PushKind::SUnsubscribe, data) => {
                let leaves = |channel| lock(&self.leaving).remove(channel);
                let is_asked = matches!(data.next(), Some(Value::BulkString(channel))
                    if std::str::from_utf8(&channel).is_ok_and(leaves));
                if !is_asked {
                    self.end.cancel();
                }
            }
            _ => {}
        }
    }

    fn message(&self, channel: &[u8], message: Bytes) {
        let channels = &self.events.all.channels;
        if let Some(sent) = keys::heartbeat_sent(&message) {
            if !self.end.is_cancelled() {
                channels.each_tap(|tap| tap.complete_until(sent));
            }
            return;
        }
        let Ok(channel) = std::str::from_utf8(channel) else { return };
        let Some((topic, at)) = keys::split_message(channel, &message) else { return };
        let change = match Change::decode(&message.slice(at..)) {
            Change::Granted(handover) if self.confirms => {
                Change::Granted(Handover { ends: Duration::ZERO, ..handover })
            }
            change => change,
        };
        channels.push(topic, change);
    }
}

struct Subscriptions<'a> {
    pushes: &'a Pushes,
    current: &'a Connection,
    /// How long the connection may be silent before a reply.
    limit: Duration,
    told: &'a Rarely,
    subscribed: HashSet<Arc<str>>,
    /// The channels that the server refuses, until the next `PING`.
    refused: HashSet<Arc<str>>,
}

/// Keeps the subscriptions of a connection in step for as long as it answers.
pub(super) async fn keep_subscribed(
    pushes: &Pushes,
    current: &Connection,
    limit: Duration,
    told: &Rarely,
) -> Result<Infallible, RedisError> {
    let subscribed = HashSet::default();
    let refused = HashSet::default();
    let events = &pushes.events;
    let mut subscriptions = Subscriptions { pushes, current, limit, told, subscribed, refused };
    let mut openings = events.all.channels.openings();
    loop {
        let ping_at = Instant::now() + PING_EVERY;
        subscriptions.refused.clear();
        while Instant::now() < ping_at {
            subscriptions.reconcile().await?;
            // The registry lives as long as this.
            let _ = timeout_at(ping_at, openings.changed()).await;
        }
        // Without a channel, no waiter relies on the connection.
        if !subscriptions.subscribed.is_empty() {
            let asked = Instant::now();
            subscriptions.exchange(redis::pipe().cmd("PING")).await?;
            events.all.standing.measured(asked.elapsed());
        }
    }
}

impl Subscriptions<'_> {
    /// Subscribes to the channels that opened, and unsubscribes from those that closed.
    async fn reconcile(&mut self) -> Result<(), RedisError> {
        let events = &self.pushes.events;
        let channels = &events.all.channels;
        let is_known =
            |channel: &str| self.subscribed.contains(channel) || self.refused.contains(channel);
        let opened = channels.open_channels(|channel| events.serves(channel) && !is_known(channel));
        let replies = self.each("SUBSCRIBE", &opened).await?;
        for (channel, reply) in opened.into_iter().zip(replies) {
            match reply.extract_error() {
                Ok(_) => drop(self.subscribed.insert(channel)),
                // It is asked for again when the map of slots changes, or behind the next `PING`.
                Err(error) if fails_by_slot(&error) => events.all.trouble.notify_one(),
                Err(error) => {
                    if self.told.first() {
                        let error = Chain(&error);
                        warn!(%error, "Redis refuses subscriptions; waiters poll instead");
                    }
                    self.refused.insert(channel);
                }
            }
        }
        // A slot may have moved meanwhile. Its new node answers for its channels.
        let is_here = |channel: &str| self.subscribed.contains(channel) && events.serves(channel);
        channels.set_confirmed(true, is_here);
        let stays = |channel: &Arc<str>| channels.is_open(channel) && events.serves(channel);
        let closed: Vec<_> = self.subscribed.extract_if(|channel| !stays(channel)).collect();
        lock(&self.pushes.leaving).extend(closed.iter().cloned());
        // A refusal says that the channel has moved to another node.
        self.each("UNSUBSCRIBE", &closed).await?;
        lock(&self.pushes.leaving).clear();
        Ok(())
    }

    async fn each(&self, command: &str, channels: &[Arc<str>]) -> Result<Vec<Value>, RedisError> {
        if channels.is_empty() {
            return Ok(Vec::new());
        }
        let shard = if self.pushes.events.all.is_cluster { "S" } else { "" };
        let mut pipeline = redis::pipe();
        for channel in channels {
            pipeline.cmd(&format!("{shard}{command}")).arg(channel.as_ref());
        }
        self.exchange(&pipeline).await
    }

    /// Sends commands in one write. The replies come behind all pushes.
    async fn exchange(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut connection = self.current.commands.clone();
        let sending = pin!(connection.send_packed_commands(commands, 0, commands.len()));
        let reply = self.current.progress.reply(sending, self.limit).await;
        reply.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }
}

/// Returns whether a subscription failed because of the slot of its channel.
fn fails_by_slot(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    matches!(error.kind(), ErrorKind::Server(Ask | ClusterDown | Moved | TryAgain))
}
