//! The connection for pushes.
//!
//! One task owns it and keeps the server's subscriptions in step with the channels that
//! [`Channels`] wants ([`Subscriptions`]). A caller's future never subscribes itself, because it
//! may be dropped. The task connects when the first channel opens. After a break, all waiters are
//! woken once the subscriptions are restored.
//!
//! It is separate from the connection for commands. Redis applies the output limit of pub/sub to a
//! connection that subscribes, and closes it when large replies queue up.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep},
};
use tracing::debug;

use super::{
    config::RedisConfig,
    connect::connect,
    endpoint::{Endpoint, EndpointWatch},
    events::NodeEvents,
    reconnect::{Pacing, Round},
    subscriptions::{PendingUnsubscribes, Subscriptions},
    task::OnDemandTask,
};
use crate::{
    backend::{Change, Channels, Handover, redis::keys},
    error::{BackendError, Chain},
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

pub(super) struct PushConnection {
    endpoint: Endpoint,
    config: RedisConfig,
    events: NodeEvents,
    state: Arc<Mutex<PushState>>,
    task: OnDemandTask,
}

enum PushState {
    /// There was no connection yet.
    New,
    /// There is a connection, on which a command may take this long.
    Up(Duration),
    /// The connection broke, and the first attempt to make another has not ended.
    Broken,
    /// The last attempt to connect failed.
    Down(BackendError),
}

impl PushConnection {
    pub(super) fn new(endpoint: Endpoint, config: RedisConfig, events: NodeEvents) -> Self {
        let state = Arc::new(Mutex::new(PushState::New));
        Self { endpoint, config, events, state, task: OnDemandTask::default() }
    }

    /// Starts the task on the current runtime, if it does not run.
    pub(super) fn start(&self) {
        self.task.start(|| {
            let run = PushRun {
                endpoint: self.endpoint.clone(),
                config: self.config.clone(),
                events: self.events.clone(),
                state: self.state.clone(),
            };
            run.keep_subscribed()
        });
    }

    /// Returns how long the answer to a subscription may take. Fails if the last attempt to connect
    /// failed. The task makes the next one.
    pub(super) fn answer_limit(&self) -> Result<Duration, BackendError> {
        self.start();
        match &*lock(&self.state) {
            // The server may have to be found first.
            PushState::New => Ok(self.config.connect_timeout.saturating_mul(2)),
            PushState::Up(silence_limit) => Ok(*silence_limit),
            PushState::Broken => Ok(self.config.command_timeout),
            PushState::Down(error) => Err(error.clone()),
        }
    }
}

/// A run of the task. When it ends with its runtime, no subscription is in place any more.
struct PushRun {
    endpoint: Endpoint,
    config: RedisConfig,
    events: NodeEvents,
    state: Arc<Mutex<PushState>>,
}

impl Drop for PushRun {
    fn drop(&mut self) {
        *lock(&self.state) = PushState::New;
        self.events.lost();
    }
}

impl PushRun {
    async fn keep_subscribed(self) {
        let mut turns = self.events.channels.openings();
        let mut is_refused = false;
        let (mut pacing, mut watch) = (Pacing::default(), EndpointWatch::Never);
        while self.is_wanted(&mut turns).await {
            let begun = Instant::now();
            let round = self.connect_and_serve(&mut turns, &mut watch, &mut is_refused).await;
            self.events.trouble.notify_one();
            pacing.rest(begun, &round, &mut watch).await;
        }
    }

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

    /// Connects, and serves until the connection breaks.
    async fn connect_and_serve(
        &self,
        turns: &mut watch::Receiver<u64>,
        watch: &mut EndpointWatch,
        is_refused: &mut bool,
    ) -> Round {
        let Self { endpoint, config, events, state } = self;
        let (end, leaving) = (Arc::<PushEnd>::default(), PendingUnsubscribes::default());
        let confirms = config.replicas.is_some();
        let (channels, leaves) = (events.channels.clone(), leaving.clone());
        let pushes = Pushes { channels, end: end.clone(), leaving: leaves, confirms };
        let on_push = move |push| pushes.receive(push);
        let ended = end.clone();
        let on_end = move || ended.broken.notify_one();
        match connect(endpoint, watch, config, on_end, on_push).await {
            Ok(None) => Round::Moved,
            Ok(Some(connected)) => {
                *lock(state) = PushState::Up(config.silence_limit(connected.round_trip));
                let (since, subscriptions) = (
                    Instant::now(),
                    Subscriptions::new(connected, config, events, leaving, is_refused),
                );
                let served = serve(subscriptions, turns, &end.broken, watch).await;
                *lock(state) = PushState::Broken;
                end.is_over.store(true, Ordering::Release);
                // The server may stay away for long, so each waiter asks at once and learns of it.
                events.lost();
                if let Err(error) = served {
                    let error = Chain(&error);
                    debug!(%error, "the push connection to Redis broke; connecting again");
                }
                Round::Broke(since.elapsed())
            }
            Err(error) => {
                tell(&error);
                events.failed(&error);
                *lock(state) = PushState::Down(error);
                Round::Failed
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

/// Keeps the subscriptions in step until the connection is broken, or another server is the master.
///
/// Does not wait for the replies that are outstanding then, because the waiters must be woken.
async fn serve(
    subscriptions: Subscriptions<'_>,
    turns: &mut watch::Receiver<u64>,
    broken: &Notify,
    watch: &mut EndpointWatch,
) -> Result<(), RedisError> {
    tokio::select! {
        end = keep_in_step(subscriptions, turns) => end,
        () = broken.notified() => Ok(()),
        () = watch.outdated() => Ok(()),
    }
}

async fn keep_in_step(
    mut subscriptions: Subscriptions<'_>,
    turns: &mut watch::Receiver<u64>,
) -> Result<(), RedisError> {
    turns.mark_unchanged();
    subscriptions.retry_refused();
    let mut is_complete = subscriptions.reconcile().await?;
    loop {
        tokio::select! {
            changed = turns.changed() => match changed {
                Ok(()) => is_complete = subscriptions.reconcile().await?,
                Err(_) => return Ok(()),
            },
            () = sleep(RETRY_AFTER), if !is_complete => {
                is_complete = subscriptions.reconcile().await?;
            }
            () = sleep(PING_EVERY) => {
                subscriptions.ping().await?;
                subscriptions.retry_refused();
                is_complete = subscriptions.reconcile().await?;
            }
        }
    }
}

/// The end of a connection.
#[derive(Default)]
struct PushEnd {
    broken: Notify,
    /// It was given up.
    is_over: AtomicBool,
}

/// Hands each push of a connection to the waiters on its channel.
struct Pushes {
    channels: Channels,
    end: Arc<PushEnd>,
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
                    Some(sent) if !self.end.is_over.load(Ordering::Acquire) => {
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
                    self.end.broken.notify_one();
                }
            }
            _ => {}
        }
    }

    fn message(&self, channel: &str, message: Bytes) {
        let (topic, at) = keys::split_message(channel, &message).unwrap_or((channel, 0));
        for change in Change::decode_all(&message.slice(at..)) {
            let change = match change {
                Change::Granted(handover) if self.confirms => {
                    Change::Granted(Handover { ends: Duration::ZERO, ..handover })
                }
                change => change,
            };
            self.channels.receive(channel, topic, &change);
        }
    }
}
