//! Keeps the subscriptions at a server in step with the channels that are open in this process.
//!
//! All channels that opened or closed since the last turn are one write. A single server gets all
//! channels in one command. If it refuses that, it gets one command for each channel, because one
//! forbidden channel makes it refuse all. A node of a cluster gets one command for each channel,
//! because a command must not touch two slots. Its channels are shard channels (`SSUBSCRIBE`, Redis
//! 7), on which a message goes to no other node.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{
    config::RedisConfig,
    events::{ChannelScope, NodeEvents},
    stream::Connected,
};
use crate::{
    error::{BackendError, BackendErrorKind, Chain},
    sync::lock,
};

/// Two nodes may redirect to each other for a moment, which must not become a busy loop.
const MOVED_PAUSE: Duration = Duration::from_millis(10);

/// The shard channels whose unsubscription was asked for.
///
/// The server ends the subscription to any other channel only when its slot has moved.
#[derive(Clone, Default)]
pub(super) struct PendingUnsubscribes(Arc<Mutex<HashSet<Arc<str>>>>);

impl PendingUnsubscribes {
    fn extend(&self, channels: &[Arc<str>]) {
        lock(&self.0).extend(channels.iter().cloned());
    }

    pub(super) fn take(&self, channel: &[u8]) -> bool {
        std::str::from_utf8(channel).is_ok_and(|channel| lock(&self.0).remove(channel))
    }
}

/// A channel, and why the server refuses a subscription to it.
type RefusedChannel = (Arc<str>, RedisError);

pub(super) struct Subscriptions<'a> {
    connected: Connected,
    config: &'a RedisConfig,
    events: &'a NodeEvents,
    subscribed: HashSet<Arc<str>>,
    leaving: PendingUnsubscribes,
    /// The server refuses subscriptions, and the refusal was logged.
    is_refused: &'a mut bool,
}

impl<'a> Subscriptions<'a> {
    pub(super) fn new(
        connected: Connected,
        config: &'a RedisConfig,
        events: &'a NodeEvents,
        leaving: PendingUnsubscribes,
        is_refused: &'a mut bool,
    ) -> Self {
        Self { connected, config, events, subscribed: HashSet::new(), leaving, is_refused }
    }

    /// Asks for the channels that the server refused when it next reconciles.
    pub(super) fn retry_refused(&self) {
        self.events.retry();
    }

    /// Subscribes to the channels that opened, and unsubscribes from those that closed.
    ///
    /// Returns whether all subscriptions are in place.
    pub(super) async fn reconcile(&mut self) -> Result<bool, RedisError> {
        let events = self.events;
        let wanted = events.channels.not_refused(|channel| events.scope.contains(channel));
        let opened: Vec<_> =
            wanted.iter().filter(|channel| !self.subscribed.contains(*channel)).cloned().collect();
        // A listener that is refused may open the same channels again. It must not be told a
        // refusal of those that was on its way before, so all refusals are told at once.
        let mut refused = Vec::new();
        let is_complete = match &events.scope {
            _ if opened.is_empty() => true,
            ChannelScope::All => self.enter(opened, &mut refused).await?,
            ChannelScope::Slots(_) => self.enter_shard(opened, &mut refused).await?,
        };
        for (channel, refusal) in refused {
            self.refuse(&channel, refusal);
        }
        for channel in wanted.iter().filter(|channel| self.subscribed.contains(*channel)) {
            events.channels.answer(channel, Ok(()));
        }
        let stays =
            |channel: &str| events.channels.wants(channel) && events.scope.contains(channel);
        let closed: Vec<_> =
            self.subscribed.iter().filter(|channel| !stays(channel)).cloned().collect();
        if !closed.is_empty() {
            self.leave(&closed).await?;
            for channel in &closed {
                self.subscribed.remove(channel);
            }
        }
        Ok(is_complete)
    }

    async fn enter(
        &mut self,
        opened: Vec<Arc<str>>,
        refused: &mut Vec<RefusedChannel>,
    ) -> Result<bool, RedisError> {
        if self.subscribe(&opened).await?.is_some() {
            for channel in opened {
                if let Some(refusal) = self.subscribe(std::slice::from_ref(&channel)).await? {
                    refused.push((channel, refusal));
                }
            }
        }
        Ok(true)
    }

    async fn enter_shard(
        &mut self,
        opened: Vec<Arc<str>>,
        refused: &mut Vec<RefusedChannel>,
    ) -> Result<bool, RedisError> {
        let replies = self.each("SSUBSCRIBE", &opened).await?;
        let mut is_complete = true;
        for (channel, reply) in opened.into_iter().zip(replies) {
            let Err(error) = reply.extract_error() else {
                self.subscribed.insert(channel);
                *self.is_refused = false;
                continue;
            };
            match (error.kind(), &self.events.scope) {
                (ErrorKind::Server(ServerErrorKind::Moved), ChannelScope::Slots(slots)) => {
                    sleep(MOVED_PAUSE).await;
                    slots.moved(&channel, &error);
                    is_complete = false;
                }
                (ErrorKind::Server(kind), _) if passes_by_itself(kind) => is_complete = false,
                _ => refused.push((channel, error)),
            }
        }
        Ok(is_complete)
    }

    fn refuse(&mut self, channel: &str, refusal: RedisError) {
        if !std::mem::replace(self.is_refused, true) {
            warn!(error = %Chain(&refusal), "Redis refuses subscriptions; waiters poll instead");
        }
        let refusal = BackendError::new(BackendErrorKind::Refused, refusal);
        self.events.channels.answer(channel, Err(refusal));
    }

    async fn leave(&mut self, closed: &[Arc<str>]) -> Result<(), RedisError> {
        if let ChannelScope::Slots(_) = self.events.scope {
            self.leaving.extend(closed);
            // The reply does not matter: if it is a refusal, the channel has moved to another node.
            return self.each("SUNSUBSCRIBE", closed).await.map(drop);
        }
        let leaving = self.connected.connection.unsubscribe(texts(closed));
        within(self.config.connect_timeout, leaving).await
    }

    /// Subscribes. Returns the refusal if the server refuses, and fails if there is no reply.
    async fn subscribe(&mut self, opened: &[Arc<str>]) -> Result<Option<RedisError>, RedisError> {
        let subscribing = self.connected.connection.subscribe(texts(opened));
        match within(self.config.connect_timeout, subscribing).await {
            Ok(()) => {
                self.subscribed.extend(opened.iter().cloned());
                *self.is_refused = false;
                Ok(None)
            }
            Err(error) if error.code().is_some() => Ok(Some(error)),
            // The outcome is unknown. A new connection begins without subscriptions.
            Err(error) => Err(error),
        }
    }

    /// Sends one command for each channel, and returns the reply to each.
    async fn each(
        &mut self,
        command: &str,
        channels: &[Arc<str>],
    ) -> Result<Vec<Value>, RedisError> {
        let mut pipeline = redis::pipe();
        for channel in channels {
            pipeline.cmd(command).arg(channel.as_ref());
        }
        let sending = self.connected.connection.send_packed_commands(&pipeline, 0, channels.len());
        within(self.config.connect_timeout, sending).await
    }

    pub(super) async fn ping(&mut self) -> Result<(), RedisError> {
        let ping = redis::cmd("PING");
        let sending = self.connected.connection.send_packed_command(&ping);
        let limit = self.config.silence_limit(self.connected.round_trip).saturating_mul(2);
        within(limit, sending).await.map(drop)
    }
}

/// Returns whether a subscription that failed in this way may work a moment later.
fn passes_by_itself(kind: ServerErrorKind) -> bool {
    matches!(
        kind,
        ServerErrorKind::Ask
            | ServerErrorKind::TryAgain
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::BusyLoading
    )
}

async fn within<T>(
    limit: Duration,
    sending: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let timed_out = |_| Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)));
    timeout(limit, sending).await.unwrap_or_else(timed_out)
}

fn texts(channels: &[Arc<str>]) -> Vec<&str> {
    channels.iter().map(AsRef::as_ref).collect()
}
