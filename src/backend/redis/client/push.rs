//! The connection for pushes.
//!
//! One task owns it and keeps the server's subscriptions in step with the channels that
//! [`Channels`] wants ([`Subscriptions`]). A caller's future never subscribes itself, because it
//! may be dropped. The task connects when the first channel opens. After a break, all waiters are
//! woken once the subscriptions are restored.
//!
//! It is separate from the connection for commands. Redis applies the output limit of pub/sub to a
//! connection that subscribes, and closes it when large replies queue up.
//!
//! All channels that opened or closed since the last turn are one write. A single server gets all
//! channels in one command. If it refuses that, it gets one command for each channel, because one
//! forbidden channel makes it refuse all. A node of a cluster gets one command for each channel,
//! because a command must not touch two slots. Its channels are shard channels (`SSUBSCRIBE`, Redis
//! 7), on which a message goes to no other node.

use std::{
    collections::HashSet,
    io,
    pin::pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use redis::{
    ErrorKind, PushInfo, PushKind, RedisError, ServerErrorKind, Value, aio::MultiplexedConnection,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::{
    connect::{Connected, connect},
    link::rest,
    node::{ChannelScope, NodeEvents},
    sentinel::{Endpoint, EndpointWatch},
    settings::RedisConfig,
    task::OnDemandTask,
    topology::NodeSlots,
};
use crate::{
    backend::{Change, Channels, Handover, redis::keys},
    error::{BackendError, BackendErrorKind, Chain},
    observe::Rarely,
    sync::lock,
    time::Pauses,
};

/// How often a silent connection is tested with a `PING`.
///
/// Waiters rely on the connection without a sign that it is dead. With the time for the reply and
/// for a new connection, that lasts two seconds at most.
const PING_EVERY: Duration = Duration::from_secs(1);
/// How soon a subscription is tried again that cannot be made at the moment.
const RETRY_AFTER: Duration = Duration::from_millis(50);
/// Two nodes may redirect to each other for a moment, which must not become a busy loop.
const MOVED_PAUSE: Duration = Duration::from_millis(10);

pub(super) struct PushConnection {
    kept: Arc<KeptSubscriptions>,
    task: OnDemandTask,
}

/// The state that a push connection shares with its task.
struct KeptSubscriptions {
    endpoint: Endpoint,
    config: RedisConfig,
    events: NodeEvents,
    state: Mutex<PushState>,
    /// How often the log tells of refused subscriptions.
    refusals: Rarely,
}

enum PushState {
    /// There was no connection yet.
    New,
    /// There is a connection, or the first attempt behind a break has not ended. A command may take
    /// this long.
    Up(Duration),
    /// The last attempt to connect failed.
    Down(BackendError),
}

impl PushConnection {
    pub(super) fn new(endpoint: Endpoint, config: RedisConfig, events: NodeEvents) -> Self {
        let (state, refusals) = (Mutex::new(PushState::New), Rarely::default());
        let kept = KeptSubscriptions { endpoint, config, events, state, refusals };
        Self { kept: Arc::new(kept), task: OnDemandTask::default() }
    }

    /// Starts the task on the current runtime, if it does not run.
    pub(super) fn start(&self) {
        self.task.start(|| keep_subscribed(PushRun(self.kept.clone())));
    }

    /// Returns how long the answer to a subscription may take. Fails if the last attempt to connect
    /// failed. The task makes the next one.
    pub(super) fn answer_limit(&self) -> Result<Duration, BackendError> {
        self.start();
        let config = &self.kept.config;
        match &*lock(&self.kept.state) {
            // The server may have to be found first.
            PushState::New => Ok(config.connect_timeout.saturating_mul(2)),
            PushState::Up(silence_limit) => Ok(*silence_limit),
            PushState::Down(error) => Err(error.clone()),
        }
    }
}

/// A run of the task. When it ends with its runtime, no subscription is in place any more.
struct PushRun(Arc<KeptSubscriptions>);

impl Drop for PushRun {
    fn drop(&mut self) {
        *lock(&self.0.state) = PushState::New;
        self.0.events.lost();
    }
}

async fn keep_subscribed(run: PushRun) {
    let kept = &run.0;
    let mut turns = kept.events.channels.openings();
    let (mut pauses, mut watch) = (Pauses::default(), EndpointWatch::Never);
    while kept.is_wanted(&mut turns).await {
        let mut begun = Instant::now();
        if kept.connect_and_serve(&mut turns, &mut watch).await {
            (begun, pauses) = (Instant::now(), Pauses::default());
        }
        kept.events.trouble.notify_one();
        rest(begun, &mut pauses, &mut watch).await;
    }
}

impl KeptSubscriptions {
    /// Completes when a channel is open. Returns `false` if none will open any more.
    ///
    /// While the server is down no waiter listens for long, so the task then goes on by itself.
    async fn is_wanted(&self, turns: &mut watch::Receiver<u64>) -> bool {
        let any = || self.events.channels.any(|channel| self.events.scope.contains(channel));
        turns.wait_for(|_| any() || self.is_down()).await.is_ok()
    }

    fn is_down(&self) -> bool {
        matches!(&*lock(&self.state), PushState::Down(_))
    }

    /// Connects, and serves until the connection breaks. Returns whether there was a connection, or
    /// is to be one to another server at once.
    async fn connect_and_serve(
        &self,
        turns: &mut watch::Receiver<u64>,
        watch: &mut EndpointWatch,
    ) -> bool {
        let Self { endpoint, config, events, state, .. } = self;
        let (end, leaving) = (CancellationToken::new(), PendingUnsubscribes::default());
        let confirms = config.replicas.is_some();
        let (channels, leaves) = (events.channels.clone(), leaving.clone());
        let pushes = Pushes { channels, end: end.clone(), leaving: leaves, confirms };
        match connect(endpoint, watch, config, move |push| pushes.receive(push)).await {
            Ok(None) => true,
            Ok(Some(connected)) => {
                *lock(state) = PushState::Up(connected.silence_limit(config));
                let ended = connected.progress.ended.clone();
                let subscribed = HashSet::new();
                let subscriptions = Subscriptions { connected, kept: self, subscribed, leaving };
                let served = tokio::select! {
                    end = keep_in_step(subscriptions, turns) => end,
                    // The replies that are outstanding do not matter: the waiters must be woken.
                    () = end.cancelled() => Ok(()),
                    () = ended.cancelled() => Ok(()),
                    () = watch.outdated() => Ok(()),
                };
                end.cancel();
                // The server may stay away for long, so each waiter asks at once and learns of it.
                events.lost();
                if let Err(error) = served {
                    let error = Chain(&error);
                    debug!(%error, "the push connection to Redis broke; connecting again");
                }
                true
            }
            Err(error) => {
                tell(&error);
                events.failed(&error);
                *lock(state) = PushState::Down(error);
                false
            }
        }
    }
}

/// Logs that an attempt has failed, once a second.
fn tell(error: &BackendError) {
    static SAID: Rarely = Rarely::once_in(1);
    if SAID.first() {
        debug!(error = %Chain(error), "no push connection to Redis; trying again");
    }
}

/// Keeps the subscriptions in step for as long as the connection answers.
async fn keep_in_step(
    mut subscriptions: Subscriptions<'_>,
    turns: &mut watch::Receiver<u64>,
) -> Result<(), RedisError> {
    turns.mark_unchanged();
    subscriptions.kept.events.retry();
    let mut is_complete = subscriptions.reconcile().await?;
    let mut ping_at = Instant::now() + PING_EVERY;
    loop {
        tokio::select! {
            changed = turns.changed() => if changed.is_err() {
                return Ok(());
            },
            () = sleep(RETRY_AFTER), if !is_complete => {}
            () = sleep_until(ping_at) => {
                subscriptions.ping().await?;
                subscriptions.kept.events.retry();
                ping_at = Instant::now() + PING_EVERY;
            }
        }
        is_complete = subscriptions.reconcile().await?;
    }
}

/// Hands each push of a connection to the waiters on its channel.
struct Pushes {
    channels: Channels,
    /// The end of the connection, which a push may bring about.
    end: CancellationToken,
    leaving: PendingUnsubscribes,
    /// Replicas must confirm grants. A lease that is handed over wakes its waiter only, which then
    /// asks for the lease itself.
    confirms: bool,
}

impl Pushes {
    fn receive(&self, push: PushInfo) {
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
                    Some(sent) if !self.end.is_cancelled() => {
                        self.channels.complete_until(sent);
                    }
                    Some(_) => {}
                    None => self.message(channel, message.into()),
                }
            }
            // Unless it was asked for, the channel's slot has moved. The client library takes the
            // message for the reply to another command, so the connection cannot be used any more.
            PushKind::SUnsubscribe => {
                let was_asked_for = match data.next() {
                    Some(Value::BulkString(channel)) => self.leaving.take(&channel),
                    _ => false,
                };
                if !was_asked_for {
                    self.end.cancel();
                }
            }
            _ => {}
        }
    }

    fn message(&self, channel: &str, message: Bytes) {
        let Some((topic, at)) = keys::split_message(channel, &message) else { return };
        for change in Change::decode_all(&message.slice(at..)) {
            let change = match change {
                Change::Granted(handover) if self.confirms => {
                    Change::Granted(Handover { ends: Duration::ZERO, ..handover })
                }
                change => change,
            };
            self.channels.push(topic, change);
        }
    }
}

/// The shard channels whose unsubscription was asked for.
///
/// The server ends the subscription to any other channel only when its slot has moved.
#[derive(Clone, Default)]
struct PendingUnsubscribes(Arc<Mutex<HashSet<Arc<str>>>>);

impl PendingUnsubscribes {
    fn set(&self, channels: &[Arc<str>]) {
        *lock(&self.0) = channels.iter().cloned().collect();
    }

    fn take(&self, channel: &[u8]) -> bool {
        std::str::from_utf8(channel).is_ok_and(|channel| lock(&self.0).remove(channel))
    }
}

/// A channel, and why the server refuses a subscription to it.
type RefusedChannel = (Arc<str>, RedisError);

struct Subscriptions<'a> {
    connected: Connected,
    kept: &'a KeptSubscriptions,
    subscribed: HashSet<Arc<str>>,
    leaving: PendingUnsubscribes,
}

impl Subscriptions<'_> {
    /// Subscribes to the channels that opened, and unsubscribes from those that closed.
    ///
    /// Returns whether all subscriptions are in place.
    async fn reconcile(&mut self) -> Result<bool, RedisError> {
        let events = &self.kept.events;
        let wanted = events.channels.not_refused(|channel| events.scope.contains(channel));
        let opened: Vec<_> =
            wanted.iter().filter(|channel| !self.subscribed.contains(*channel)).cloned().collect();
        // A listener that is refused may open the same channels again. It must not be told a
        // refusal of those that was on its way before, so all refusals are told at once.
        let mut refused = Vec::new();
        let is_complete = match &events.scope {
            _ if opened.is_empty() => true,
            ChannelScope::All => self.enter(opened, &mut refused).await?,
            ChannelScope::Slots(slots) => self.enter_shard(slots, opened, &mut refused).await?,
        };
        for (channel, refusal) in refused {
            self.refuse(&channel, refusal);
        }
        // A slot may have moved meanwhile. Its new node answers for its channels.
        let is_subscribed = |channel: &str| self.subscribed.contains(channel);
        let is_here = |channel: &str| is_subscribed(channel) && events.scope.contains(channel);
        events.channels.answer(is_here, Ok(()));
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
        slots: &NodeSlots,
        opened: Vec<Arc<str>>,
        refused: &mut Vec<RefusedChannel>,
    ) -> Result<bool, RedisError> {
        let replies = self.each("SSUBSCRIBE", &opened).await?;
        let (mut is_complete, mut moved) = (true, Vec::new());
        for (channel, reply) in opened.into_iter().zip(replies) {
            let Err(error) = reply.extract_error() else {
                self.subscribed.insert(channel);
                continue;
            };
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => moved.push((channel, error)),
                ErrorKind::Server(kind) if passes_by_itself(kind) => is_complete = false,
                _ => refused.push((channel, error)),
            }
        }
        if moved.is_empty() {
            return Ok(is_complete);
        }
        sleep(MOVED_PAUSE).await;
        for (channel, error) in moved {
            slots.moved(&channel, &error);
        }
        Ok(false)
    }

    fn refuse(&mut self, channel: &str, refusal: RedisError) {
        if self.kept.refusals.first() {
            warn!(error = %Chain(&refusal), "Redis refuses subscriptions; waiters poll instead");
        }
        let refusal = BackendError::new(BackendErrorKind::Refused, refusal);
        self.kept.events.channels.answer(|refused| refused == channel, Err(refusal));
    }

    async fn leave(&self, closed: &[Arc<str>]) -> Result<(), RedisError> {
        if let ChannelScope::Slots(_) = self.kept.events.scope {
            self.leaving.set(closed);
            // The reply does not matter: if it is a refusal, the channel has moved to another node.
            self.each("SUNSUBSCRIBE", closed).await?;
            self.leaving.set(&[]);
            return Ok(());
        }
        let limit = self.kept.config.connect_timeout;
        self.within(limit, async |mut it| it.unsubscribe(texts(closed)).await).await
    }

    /// Subscribes. Returns the refusal if the server refuses, and fails if there is no reply.
    async fn subscribe(&mut self, opened: &[Arc<str>]) -> Result<Option<RedisError>, RedisError> {
        let limit = self.kept.config.connect_timeout;
        match self.within(limit, async |mut it| it.subscribe(texts(opened)).await).await {
            Ok(()) => {
                self.subscribed.extend(opened.iter().cloned());
                Ok(None)
            }
            Err(error) if error.code().is_some() => Ok(Some(error)),
            // The outcome is unknown. A new connection begins without subscriptions.
            Err(error) => Err(error),
        }
    }

    /// Sends one command for each channel, and returns the reply to each.
    async fn each(&self, command: &str, channels: &[Arc<str>]) -> Result<Vec<Value>, RedisError> {
        let mut pipeline = redis::pipe();
        for channel in channels {
            pipeline.cmd(command).arg(channel.as_ref());
        }
        let (limit, count) = (self.kept.config.connect_timeout, channels.len());
        self.within(limit, async |mut it| it.send_packed_commands(&pipeline, 0, count).await).await
    }

    async fn ping(&self) -> Result<(), RedisError> {
        let ping = redis::cmd("PING");
        let limit = self.connected.silence_limit(&self.kept.config).saturating_mul(2);
        self.within(limit, async |mut it| it.send_packed_command(&ping).await).await.map(drop)
    }

    /// Waits for a reply, which comes behind all pushes. It fails when none of them comes any more.
    async fn within<T, F>(
        &self,
        limit: Duration,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, RedisError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let sending = pin!(send(self.connected.connection.clone()));
        let reply = self.connected.progress.reply(sending, limit, Instant::now()).await;
        reply.unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
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

fn texts(channels: &[Arc<str>]) -> Vec<&str> {
    channels.iter().map(AsRef::as_ref).collect()
}
