//! The subscriptions of a connection for pushes.
//!
//! The task of the connection keeps the subscriptions in step with the open channels. A caller's
//! future never subscribes, because the future may be dropped. Commands have another connection,
//! because Redis closes a connection with subscriptions when large replies queue up.
//!
//! The channels that opened since the last turn are one write, and the channels that closed are
//! another. Each channel has a command of its own, because a server refuses a whole command for one
//! forbidden channel, and because a command must not touch two slots. In a cluster, the channels
//! are shard channels (`SSUBSCRIBE`, Redis 7).

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

/// How often a `PING` tests the connection, and refused subscriptions are tried again. Waiters rely
/// on a dead connection for this time and the command time-out.
const PING_EVERY: Duration = Duration::from_secs(1);

/// Hands each push of a connection to the waiters on its channel.
pub(super) struct Pushes {
    events: NodeEvents,
    /// Cancelled when the connection must not be used any more.
    pub(super) broken: CancellationToken,
    /// The channels for which an `UNSUBSCRIBE` is under way.
    leaving: Mutex<HashSet<Arc<str>>>,
    /// Replicas must confirm grants. So the push of a handover only wakes the waiter, which then
    /// sends a claim of its own.
    replicas_confirm: bool,
}

impl Pushes {
    pub(super) fn new(events: &NodeEvents, config: &RedisConfig) -> Self {
        Self {
            events: events.clone(),
            broken: CancellationToken::new(),
            leaving: Mutex::default(),
            replicas_confirm: config.replicas.is_some(),
        }
    }

    pub(super) fn receive(&self, push: PushInfo) {
        let mut data = push.data.into_iter();
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(channel)) = data.next()
                    && let Some(Value::BulkString(message)) = data.next()
                {
                    self.receive_message(&channel, message.into());
                }
            }
            PushKind::SUnsubscribe => {
                let is_reply = match data.next() {
                    Some(Value::BulkString(channel)) => self.take_leaving(&channel),
                    _ => false,
                };
                // The slot of the channel has moved. The client library takes the push for the
                // reply to some command, and each later reply for the reply to the next command.
                if !is_reply {
                    self.broken.cancel();
                }
            }
            _ => {}
        }
    }

    /// Returns whether an `UNSUBSCRIBE` from a channel is under way. A second call returns `false`.
    fn take_leaving(&self, channel: &[u8]) -> bool {
        let Ok(channel) = std::str::from_utf8(channel) else { return false };
        lock(&self.leaving).remove(channel)
    }

    fn receive_message(&self, channel: &[u8], message: Bytes) {
        let channels = &self.events.all.channels;
        if let Some(sent) = keys::heartbeat_sent(&message) {
            // A connection that is broken may have lost changes.
            if !self.broken.is_cancelled() {
                channels.each_tap(|tap| tap.complete_until(sent));
            }
            return;
        }
        let Ok(channel) = std::str::from_utf8(channel) else { return };
        let Some((topic, begin)) = keys::split_message(channel, &message) else { return };
        let change = match Change::decode(&message.slice(begin..)) {
            Change::Granted(handover) if self.replicas_confirm => {
                Change::Granted(Handover { ends: Duration::ZERO, ..handover })
            }
            change => change,
        };
        channels.push(topic, change);
    }
}

struct Subscriptions<'a> {
    pushes: &'a Pushes,
    connection: &'a Connection,
    /// How long the connection may be silent before a reply.
    limit: Duration,
    log_limit: &'a Rarely,
    subscribed: HashSet<Arc<str>>,
    /// The channels that the server has refused since the last `PING`.
    refused: HashSet<Arc<str>>,
}

/// Keeps the subscriptions of a connection in step, until the connection fails.
pub(super) async fn keep_subscribed(
    pushes: &Pushes,
    connection: &Connection,
    limit: Duration,
    log_limit: &Rarely,
) -> Result<Infallible, RedisError> {
    let events = &pushes.events;
    let mut subscriptions = Subscriptions {
        pushes,
        connection,
        limit,
        log_limit,
        subscribed: HashSet::default(),
        refused: HashSet::default(),
    };
    let mut openings = events.all.channels.openings();
    loop {
        let ping_at = Instant::now() + PING_EVERY;
        subscriptions.refused.clear();
        while Instant::now() < ping_at {
            subscriptions.reconcile().await?;
            // The watch cannot end, because this task keeps its sender.
            let _ = timeout_at(ping_at, openings.changed()).await;
        }
        // Without a channel, no waiter relies on the connection.
        if !subscriptions.subscribed.is_empty() {
            let sent = Instant::now();
            subscriptions.send(redis::pipe().cmd("PING")).await?;
            events.all.standing.measured(sent.elapsed());
        }
    }
}

impl Subscriptions<'_> {
    /// Subscribes to the channels that opened, and unsubscribes from the channels that closed.
    async fn reconcile(&mut self) -> Result<(), RedisError> {
        let events = &self.pushes.events;
        let channels = &events.all.channels;
        let is_known =
            |channel: &str| self.subscribed.contains(channel) || self.refused.contains(channel);
        let missing =
            channels.open_channels(|channel| events.serves(channel) && !is_known(channel));
        let replies = self.send_for_each("SUBSCRIBE", &missing).await?;
        for (channel, reply) in missing.into_iter().zip(replies) {
            match reply.extract_error() {
                Ok(_) => {
                    self.subscribed.insert(channel);
                }
                // The next turn tries again: after a new map of slots, or after the next `PING`.
                Err(error) if fails_by_slot(&error) => events.all.trouble.notify_one(),
                Err(error) => {
                    if self.log_limit.first() {
                        let error = Chain(&error);
                        warn!(%error, "Redis refuses subscriptions; waiters poll instead");
                    }
                    self.refused.insert(channel);
                }
            }
        }
        // If a slot has moved meanwhile, the connection to the new node confirms its channels.
        let is_here = |channel: &str| self.subscribed.contains(channel) && events.serves(channel);
        channels.set_confirmed(true, is_here);
        // The server ends the subscription to a channel whose slot moves, and refuses an
        // `UNSUBSCRIBE` that comes later. That is one reply too many, so no `UNSUBSCRIBE` is sent.
        if self.subscribed.iter().any(|channel| events.has_lost(channel)) {
            return Err(io::Error::other("the slot of a channel has moved").into());
        }
        let is_closed = |channel: &Arc<str>| !channels.is_open(channel);
        let closed: Vec<_> = self.subscribed.extract_if(is_closed).collect();
        lock(&self.pushes.leaving).extend(closed.iter().cloned());
        self.send_for_each("UNSUBSCRIBE", &closed).await?;
        lock(&self.pushes.leaving).clear();
        Ok(())
    }

    /// Sends a command for each channel.
    async fn send_for_each(
        &self,
        command: &str,
        channels: &[Arc<str>],
    ) -> Result<Vec<Value>, RedisError> {
        if channels.is_empty() {
            return Ok(Vec::new());
        }
        let shard = if self.pushes.events.all.is_cluster { "S" } else { "" };
        let mut pipeline = redis::pipe();
        for channel in channels {
            pipeline.cmd(&format!("{shard}{command}")).arg(channel.as_ref());
        }
        self.send(&pipeline).await
    }

    /// Sends commands in one write, and returns the replies. All earlier pushes were received then.
    async fn send(&self, commands: &Pipeline) -> Result<Vec<Value>, RedisError> {
        let mut client = self.connection.client.clone();
        let sending = pin!(client.send_packed_commands(commands, 0, commands.len()));
        let reply = self.connection.progress.reply(sending, self.limit).await;
        reply.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }
}

/// Returns whether a subscription failed because of the slot of its channel.
fn fails_by_slot(error: &RedisError) -> bool {
    use ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};
    matches!(error.kind(), ErrorKind::Server(Ask | ClusterDown | Moved | TryAgain))
}

#[cfg(test)]
mod tests {
    use futures_util::join;
    use redis::IntoConnectionInfo;
    use tokio::{
        io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
        net::TcpListener,
        time::{sleep, timeout},
    };

    use super::*;
    use crate::backend::redis::client::{
        connect::{OnPush, connect},
        events::Events,
        settings::Address,
        task::Finding,
        topology::SlotMap,
    };

    /// Serves one connection as a node does, and keeps the names of the commands.
    async fn serve(listener: TcpListener, commands: &Mutex<Vec<String>>) -> io::Result<()> {
        let (stream, _) = listener.accept().await?;
        let mut stream = BufReader::new(stream);
        loop {
            let mut words = Vec::new();
            let count = read_number(&mut stream).await?;
            for _ in 0..count {
                read_number(&mut stream).await?;
                let mut word = String::new();
                stream.read_line(&mut word).await?;
                words.push(word.trim_end().to_owned());
            }
            let reply = match words[0].as_str() {
                "HELLO" => "%1\r\n$5\r\nproto\r\n:3\r\n".to_owned(),
                "PING" => "+PONG\r\n".to_owned(),
                "SSUBSCRIBE" => {
                    let channel = &words[1];
                    let length = channel.len();
                    format!(">3\r\n$10\r\nssubscribe\r\n${length}\r\n{channel}\r\n:1\r\n")
                }
                _ => "+OK\r\n".to_owned(),
            };
            lock(commands).push(words.swap_remove(0));
            stream.write_all(reply.as_bytes()).await?;
        }
    }

    /// Reads a line such as `*2` or `$5`.
    async fn read_number(stream: &mut (impl AsyncBufReadExt + Unpin)) -> io::Result<usize> {
        let mut line = String::new();
        stream.read_line(&mut line).await?;
        line.trim_end()[1..].parse().map_err(io::Error::other)
    }

    /// A node that has lost a slot has ended the subscription. The node refuses an `UNSUBSCRIBE`
    /// then, and the client library would take the refusal for the reply to the next command.
    #[tokio::test]
    async fn a_connection_ends_when_the_slot_of_a_channel_has_moved() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let map_of = |port| SlotMap::of_one(Address { host: "127.0.0.1".into(), port });
        let config = RedisConfig::default();
        let all = Events::new(&config, true);
        all.slots.set(Finding::Known(Arc::new(map_of(port))));
        let node = Some(Address { host: "127.0.0.1".into(), port });
        let pushes = Arc::new(Pushes::new(&NodeEvents { all: all.clone(), node }, &config));
        let receiver = pushes.clone();
        let on_push: OnPush = Box::new(move |push| receiver.receive(push));
        let channel = Arc::<str>::from("{k}:s");
        all.channels.open(&channel);
        let commands = Mutex::new(Vec::new());

        let keep = async {
            let url = format!("redis://127.0.0.1:{port}?protocol=resp3");
            let node = url.into_connection_info().unwrap();
            let connected = connect(&node, &config, Some(on_push), async |_| Ok(())).await;
            let (connection, ()) = connected.unwrap();
            let limit = Duration::from_secs(10);
            let Err(error) = keep_subscribed(&pushes, &connection, limit, &Rarely::default()).await;
            error.to_string()
        };
        let change_map = async {
            while !all.channels.is_confirmed(&channel) {
                sleep(Duration::from_millis(1)).await;
            }
            all.slots.set(Finding::Known(Arc::new(map_of(port ^ 1))));
            all.channels.recheck();
        };
        let both = async { join!(keep, change_map) };
        let (error, ()) = tokio::select! {
            ended = timeout(Duration::from_secs(10), both) => ended.unwrap(),
            served = serve(listener, &commands) => panic!("{served:?}"),
        };
        assert!(error.contains("has moved"), "{error}");
        let commands = lock(&commands);
        assert!(commands.contains(&"SSUBSCRIBE".to_owned()), "{commands:?}");
        assert!(!commands.contains(&"SUNSUBSCRIBE".to_owned()), "{commands:?}");
    }
}
