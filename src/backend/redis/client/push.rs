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
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use redis::{
    ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{connect::Connection, events::NodeEvents, settings::RedisConfig};
use crate::{
    backend::{Change, Handover, redis::keys},
    error::{BackendError, BackendErrorKind, Chain},
    observe::Rarely,
};

/// How often a silent connection is tested with a `PING`.
///
/// Waiters rely on the connection without a sign that it is dead. With the time for the reply and
/// for a new connection, that lasts two seconds at most.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How soon a subscription is tried again that cannot be made at the moment.
const RETRY_AFTER: Duration = Duration::from_millis(50);

/// Hands each push of a connection to the waiters on its channel.
pub(super) struct Pushes {
    events: NodeEvents,
    /// The end of the connection, which a push may bring about.
    pub(super) end: CancellationToken,
    /// How many shard channels the connection is about to leave.
    leaving: AtomicUsize,
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
            (PushKind::SUnsubscribe, _) => {
                let less = |leaving: usize| leaving.checked_sub(1);
                if self.leaving.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_err() {
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
                channels.complete_until(sent);
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

/// The subscriptions on one connection, which are kept in step with the channels that are open.
pub(super) struct Subscriptions<'a> {
    pushes: &'a Pushes,
    current: &'a Connection,
    /// How long the connection may be silent before a reply.
    limit: Duration,
    /// How often the log tells of refused subscriptions.
    told: &'a Rarely,
    subscribed: HashSet<Arc<str>>,
}

impl<'a> Subscriptions<'a> {
    pub(super) fn new(
        pushes: &'a Pushes,
        current: &'a Connection,
        limit: Duration,
        told: &'a Rarely,
    ) -> Self {
        Self { pushes, current, limit, told, subscribed: HashSet::new() }
    }

    /// Keeps the subscriptions in step for as long as the connection answers.
    pub(super) async fn keep(mut self) -> Result<Infallible, RedisError> {
        let mut openings = self.pushes.events.all.channels.openings();
        self.ask_again();
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
                    self.ask_again();
                    ping_at = Instant::now() + PING_EVERY;
                }
            }
            is_complete = self.reconcile().await?;
        }
    }

    /// Has the server asked again for the channels that it refused.
    fn ask_again(&self) {
        let events = &self.pushes.events;
        events.all.channels.retry(|channel| events.serves(channel));
    }

    /// Subscribes to the channels that opened, and unsubscribes from those that closed.
    ///
    /// Returns whether all subscriptions are in place.
    async fn reconcile(&mut self) -> Result<bool, RedisError> {
        let events = &self.pushes.events;
        let channels = &events.all.channels;
        let mut opened = channels.not_refused(|channel| events.serves(channel));
        opened.retain(|channel| !self.subscribed.contains(channel));
        let (mut is_complete, mut refused) = (true, Vec::new());
        let replies = self.each("SUBSCRIBE", &opened).await?;
        for (channel, reply) in opened.into_iter().zip(replies) {
            match reply.extract_error() {
                Ok(_) => drop(self.subscribed.insert(channel)),
                Err(error) if passes_by_itself(&error) => {
                    is_complete = false;
                    if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
                        events.all.trouble.notify_one();
                    }
                }
                Err(error) => refused.push((channel, error)),
            }
        }
        // A listener that is refused may open the same channels again. It must not be told a
        // refusal that was on its way before, so all refusals are told at once.
        for (channel, refusal) in refused {
            self.refuse(&channel, refusal);
        }
        // A slot may have moved meanwhile. Its new node answers for its channels.
        let is_here = |channel: &str| self.subscribed.contains(channel) && events.serves(channel);
        channels.answer(is_here, Ok(()));
        let stays = |channel: &Arc<str>| channels.wants(channel) && events.serves(channel);
        let closed: Vec<_> = self.subscribed.extract_if(|channel| !stays(channel)).collect();
        self.pushes.leaving.store(closed.len(), Ordering::Release);
        // A refusal says that the channel has moved to another node.
        self.each("UNSUBSCRIBE", &closed).await?;
        self.pushes.leaving.store(0, Ordering::Release);
        Ok(is_complete)
    }

    fn refuse(&self, channel: &str, refusal: RedisError) {
        if self.told.first() {
            warn!(error = %Chain(&refusal), "Redis refuses subscriptions; waiters poll instead");
        }
        let refusal = BackendError::new(BackendErrorKind::Refused, refusal);
        self.pushes.events.all.channels.answer(|refused| refused == channel, Err(refusal));
    }

    /// Sends one command for each channel, and returns the reply to each.
    async fn each(&self, command: &str, channels: &[Arc<str>]) -> Result<Vec<Value>, RedisError> {
        if channels.is_empty() {
            return Ok(Vec::new());
        }
        let shard = if self.pushes.events.node.is_some() { "S" } else { "" };
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
