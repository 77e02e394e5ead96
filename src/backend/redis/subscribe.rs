//! Keeping a server's subscriptions in step with who listens.
//!
//! Whatever opened or closed meanwhile is one write. A single server is asked for all in one command; where it
//! refuses that, one by one, for it refuses all when one is forbidden. A node of a cluster is asked for each
//! channel apart, for a command may not touch two slots, and its channels are those of the shard (`SSUBSCRIBE`,
//! Redis 7): what is published there goes to no other node.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};
use tokio::time::{sleep, timeout};
use tracing::warn;

use super::{
    RedisOptions,
    connect::Connected,
    node::{Scope, Signs},
};
use crate::{
    backend::channels::Subscription,
    error::{BackendError, BackendErrorKind},
};

/// Two nodes may send us to each other for a moment; that must not make us spin.
const MOVED_PAUSE: Duration = Duration::from_millis(10);

/// The shard channels that are being left: what the server says of any other was not asked for.
#[derive(Clone, Default)]
pub(super) struct Leaving(Arc<Mutex<HashSet<Arc<str>>>>);

impl Leaving {
    fn extend(&self, channels: &[Arc<str>]) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(channels.iter().cloned());
    }

    pub(super) fn take(&self, channel: &[u8]) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::str::from_utf8(channel).is_ok_and(|channel| all.remove(channel))
    }
}

pub(super) struct Subscriptions<'a> {
    connected: Connected,
    options: &'a RedisOptions,
    signs: &'a Signs,
    subscribed: HashSet<Arc<str>>,
    leaving: Leaving,
    /// The server refuses subscriptions, and that was told.
    refused: &'a mut bool,
}

impl<'a> Subscriptions<'a> {
    pub(super) fn new(
        connected: Connected,
        options: &'a RedisOptions,
        signs: &'a Signs,
        leaving: Leaving,
        refused: &'a mut bool,
    ) -> Self {
        Self { connected, options, signs, subscribed: HashSet::new(), leaving, refused }
    }

    /// Subscribes to what opened and leaves what closed. Says whether everything is in place now.
    pub(super) async fn reconcile(&mut self) -> Result<bool, RedisError> {
        let signs = self.signs;
        let wanted = signs.channels.not_refused(|channel| signs.scope.has(channel));
        let opened: Vec<_> =
            wanted.iter().filter(|channel| !self.subscribed.contains(*channel)).cloned().collect();
        let complete = match &signs.scope {
            _ if opened.is_empty() => true,
            Scope::All => self.enter(opened).await?,
            Scope::Share(_) => self.enter_shard(opened).await?,
        };
        for channel in wanted.iter().filter(|channel| self.subscribed.contains(*channel)) {
            signs.channels.answer(channel, Subscription::Confirmed);
        }
        let stays = |channel: &str| signs.channels.wants(channel) && signs.scope.has(channel);
        let closed: Vec<_> =
            self.subscribed.iter().filter(|channel| !stays(channel)).cloned().collect();
        if !closed.is_empty() {
            self.leave(&closed).await?;
            for channel in &closed {
                self.subscribed.remove(channel);
            }
        }
        Ok(complete)
    }

    async fn enter(&mut self, opened: Vec<Arc<str>>) -> Result<bool, RedisError> {
        if self.subscribe(&opened).await?.is_some() {
            for channel in opened {
                if let Some(refusal) = self.subscribe(std::slice::from_ref(&channel)).await? {
                    self.refuse(&channel, refusal);
                }
            }
        }
        Ok(true)
    }

    async fn enter_shard(&mut self, opened: Vec<Arc<str>>) -> Result<bool, RedisError> {
        let answers = self.each("SSUBSCRIBE", &opened).await?;
        let mut complete = true;
        for (channel, answer) in opened.into_iter().zip(answers) {
            let Err(error) = answer.extract_error() else {
                self.subscribed.insert(channel);
                *self.refused = false;
                continue;
            };
            match (error.kind(), &self.signs.scope) {
                (ErrorKind::Server(ServerErrorKind::Moved), Scope::Share(share)) => {
                    sleep(MOVED_PAUSE).await;
                    share.moved(&channel, &error);
                    complete = false;
                }
                (
                    ErrorKind::Server(
                        ServerErrorKind::Ask
                        | ServerErrorKind::TryAgain
                        | ServerErrorKind::ClusterDown
                        | ServerErrorKind::BusyLoading,
                    ),
                    _,
                ) => complete = false,
                _ => self.refuse(&channel, error),
            }
        }
        Ok(complete)
    }

    fn refuse(&mut self, channel: &str, refusal: RedisError) {
        if !std::mem::replace(self.refused, true) {
            warn!(error = %crate::error::Chain(&refusal), "Redis refuses subscriptions; waiting by timers alone");
        }
        let refusal = BackendError::new(BackendErrorKind::Refused, refusal);
        self.signs.channels.answer(channel, Subscription::Refused(refusal));
    }

    async fn leave(&mut self, closed: &[Arc<str>]) -> Result<(), RedisError> {
        if let Scope::Share(_) = self.signs.scope {
            self.leaving.extend(closed);
            // Refused or not, the channel is not this node's any more.
            return self.each("SUNSUBSCRIBE", closed).await.map(drop);
        }
        let leaving = self.connected.connection.unsubscribe(texts(closed));
        answered(self.options.connect_timeout, leaving).await
    }

    /// Subscribes; an answer of the server that refuses it is returned, and no answer is an error.
    async fn subscribe(&mut self, opened: &[Arc<str>]) -> Result<Option<RedisError>, RedisError> {
        let subscribing = self.connected.connection.subscribe(texts(opened));
        match answered(self.options.connect_timeout, subscribing).await {
            Ok(()) => {
                self.subscribed.extend(opened.iter().cloned());
                *self.refused = false;
                Ok(None)
            }
            Err(error) if error.code().is_some() => Ok(Some(error)),
            // It may be in place or not. A new connection begins with none.
            Err(error) => Err(error),
        }
    }

    /// One command for each channel, and an answer to each.
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
        answered(self.options.connect_timeout, sending).await
    }

    pub(super) async fn ping(&mut self) -> Result<(), RedisError> {
        let ping = redis::cmd("PING");
        let sending = self.connected.connection.send_packed_command(&ping);
        answered(self.options.command_timeout.saturating_mul(2), sending).await.map(drop)
    }
}

async fn answered<T>(
    limit: Duration,
    sending: impl Future<Output = Result<T, RedisError>>,
) -> Result<T, RedisError> {
    let timed_out = |_| Err(RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)));
    timeout(limit, sending).await.unwrap_or_else(timed_out)
}

fn texts(channels: &[Arc<str>]) -> Vec<&str> {
    channels.iter().map(AsRef::as_ref).collect()
}
