//! The connection for pushes.
//!
//! One task owns it and keeps the server's subscriptions in step with the channels that
//! [`Channels`] wants ([`Subscriptions`]). A caller's future never subscribes itself, because it
//! may be dropped. The task connects when the first channel opens. After a break, all waiters are
//! woken once the subscriptions are restored.
//!
//! It is separate from the connection for commands. Redis applies the output limit of pub/sub to a
//! connection that subscribes, and closes it when large replies queue up.

use std::{sync::Arc, time::Duration};

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
    backend::{Change, Channels, redis::keys},
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

pub(super) struct PushConnection {
    endpoint: Endpoint,
    config: RedisConfig,
    events: NodeEvents,
    state: Arc<watch::Sender<PushState>>,
    task: OnDemandTask,
}

#[derive(Clone)]
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

/// The time for the answer to a subscription.
pub(in super::super) struct PushAnswer {
    /// How long the server may take.
    pub(in super::super) limit: Duration,
    state: watch::Receiver<PushState>,
}

impl PushAnswer {
    /// Completes when an attempt to connect has failed.
    pub(in super::super) async fn failed(&mut self) -> BackendError {
        loop {
            let now = self.state.borrow_and_update().clone();
            if let PushState::Down(error) = now {
                return error;
            }
            if self.state.changed().await.is_err() {
                return BackendError::new(
                    BackendErrorKind::Unavailable,
                    "the connection was closed",
                );
            }
        }
    }
}

impl PushConnection {
    pub(super) fn new(endpoint: Endpoint, config: RedisConfig, events: NodeEvents) -> Self {
        let state = Arc::new(watch::Sender::new(PushState::New));
        Self { endpoint, config, events, state, task: OnDemandTask::default() }
    }

    /// Starts the task on the current runtime, if it does not run.
    ///
    /// Fails if the last attempt to connect failed. The task makes the next one.
    pub(super) fn start(&self) -> Result<PushAnswer, BackendError> {
        self.task.start(|| {
            let run = PushRun {
                endpoint: self.endpoint.clone(),
                config: self.config.clone(),
                events: self.events.clone(),
                state: self.state.clone(),
            };
            run.keep_subscribed()
        });
        let now = self.state.borrow().clone();
        let limit = match now {
            // The server may have to be found first.
            PushState::New => self.config.connect_timeout.saturating_mul(2),
            PushState::Up(silence_limit) => silence_limit,
            PushState::Broken => self.config.command_timeout,
            PushState::Down(error) => return Err(error),
        };
        Ok(PushAnswer { limit, state: self.state.subscribe() })
    }
}

/// A run of the task. When it ends with its runtime, no subscription is in place any more.
struct PushRun {
    endpoint: Endpoint,
    config: RedisConfig,
    events: NodeEvents,
    state: Arc<watch::Sender<PushState>>,
}

impl Drop for PushRun {
    fn drop(&mut self) {
        self.state.send_replace(PushState::New);
        self.events.forget_answers();
        self.events.wake();
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
        matches!(&*self.state.borrow(), PushState::Down(_))
    }

    /// Connects, and serves until the connection breaks.
    async fn connect_and_serve(
        &self,
        turns: &mut watch::Receiver<u64>,
        watch: &mut EndpointWatch,
        is_refused: &mut bool,
    ) -> Round {
        let Self { endpoint, config, events, state } = self;
        let (broken, leaving) = (Arc::new(Notify::new()), PendingUnsubscribes::default());
        let confirms = config.replicas.is_some();
        let on_push = receive(events.channels.clone(), broken.clone(), leaving.clone(), confirms);
        let ended = broken.clone();
        let on_end = move || ended.notify_one();
        match connect(endpoint, watch, config, on_end, on_push).await {
            Ok(None) => Round::Moved,
            Ok(Some(connected)) => {
                state.send_replace(PushState::Up(config.silence_limit(connected.round_trip)));
                let (since, subscriptions) = (
                    Instant::now(),
                    Subscriptions::new(connected, config, events, leaving, is_refused),
                );
                let end = serve(subscriptions, turns, &broken, watch).await;
                state.send_replace(PushState::Broken);
                events.forget_answers();
                // The server may stay away for long, so each waiter asks at once and learns of it.
                events.wake();
                if let Err(error) = end {
                    let error = Chain(&error);
                    debug!(%error, "the push connection to Redis broke; connecting again");
                }
                Round::Broke(since.elapsed())
            }
            Err(error) => {
                tell(&error);
                state.send_replace(PushState::Down(error));
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
            () = sleep(PING_EVERY) => subscriptions.ping().await?,
        }
    }
}

/// Returns the function that hands each push to the waiters on its channel.
///
/// If replicas must confirm grants (`confirms`), a lease that is handed over wakes its waiter only,
/// which then asks for the lease itself.
fn receive(
    channels: Channels,
    broken: Arc<Notify>,
    leaving: PendingUnsubscribes,
    confirms: bool,
) -> impl Fn(PushInfo) + Send + Sync + 'static {
    move |push| {
        let mut data = push.data.into_iter();
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                let (Some(Value::BulkString(channel)), Some(Value::BulkString(message))) =
                    (data.next(), data.next())
                else {
                    return;
                };
                let Ok(channel) = std::str::from_utf8(&channel) else { return };
                let message = Bytes::from(message);
                let (topic, at) = keys::split_message(channel, &message).unwrap_or((channel, 0));
                for change in Change::decode_all(&message.slice(at..)) {
                    let change = match change {
                        Change::Granted(handover) if confirms => Change::Turn(handover.owner),
                        change => change,
                    };
                    channels.push(topic, change);
                }
            }
            // Unless it was asked for, the channel's slot has moved. The client library takes the
            // message for the reply to another command, so the connection cannot be used any more.
            PushKind::SUnsubscribe => {
                let was_asked_for = match data.next() {
                    Some(Value::BulkString(channel)) => leaving.take(&channel),
                    _ => false,
                };
                if !was_asked_for {
                    broken.notify_one();
                }
            }
            _ => {}
        }
    }
}
