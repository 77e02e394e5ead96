//! A connection that a task keeps: for commands, or for pushes.
//!
//! The task connects, serves until the connection breaks, and connects again. A command takes the
//! current connection. If the last attempt to connect failed, the command fails at once. If an
//! attempt is under way, the command waits for it within its own time-out. So nothing queues up
//! while the server is away.
//!
//! A command times out when its connection was silent for the command time-out (`socket`). Such a
//! connection gets no further commands. It may be dead, and a second try must not use it again. Or
//! it lost a reply, and every later reply would go to the wrong command. Commands that are under
//! way on it may still be answered.

use std::{pin::pin, sync::Arc, time::Duration};

use redis::{PushInfo, RedisError, aio::MultiplexedConnection};
use tokio::{
    sync::watch,
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    connect::{Connected, connect, prepare},
    failure::{CommandFailure, ends_connection},
    node::NodeEvents,
    push::{PushService, Pushes, Subscriptions},
    sentinel::{Endpoint, EndpointWatch},
    settings::RedisConfig,
    task::OnDemandTask,
};
use crate::{
    error::{BackendError, BackendErrorKind, Chain},
    time::{Pauses, after},
};

/// The least pause behind an attempt that failed. An attempt that hung was a pause itself.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

/// A connection that a task keeps. Its clones share it.
#[derive(Clone)]
pub(super) struct Link {
    kept: Arc<KeptConnection>,
    task: Arc<OnDemandTask>,
}

/// A connection and its state, shared by the senders of commands and the task.
pub(super) struct KeptConnection {
    endpoint: Endpoint,
    pub(super) config: RedisConfig,
    state: watch::Sender<ConnectionState>,
    pub(super) events: NodeEvents,
    /// `None` if the connection is for commands.
    pushes: Option<PushService>,
}

#[derive(Clone)]
enum ConnectionState {
    /// The task does not run, or its first attempt is under way.
    Idle,
    /// The first attempt after a break is under way, for which commands wait.
    Connecting,
    Established(Arc<Established>),
    /// The last attempt failed. The task makes the next one.
    Failed(BackendError),
}

pub(super) struct Established {
    pub(super) connected: Connected,
    /// Cancelled to have this connection replaced.
    pub(super) broken: CancellationToken,
}

impl Link {
    /// Creates the connection for commands.
    pub(super) fn for_commands(
        endpoint: Endpoint,
        config: RedisConfig,
        events: NodeEvents,
    ) -> Self {
        Self::new(endpoint, config, events, None)
    }

    /// Creates the connection for pushes.
    pub(super) fn for_pushes(endpoint: Endpoint, config: RedisConfig, events: NodeEvents) -> Self {
        Self::new(endpoint, config, events, Some(PushService::default()))
    }

    fn new(
        endpoint: Endpoint,
        config: RedisConfig,
        events: NodeEvents,
        pushes: Option<PushService>,
    ) -> Self {
        let state = watch::Sender::new(ConnectionState::Idle);
        let kept = KeptConnection { endpoint, config, state, events, pushes };
        Self { kept: Arc::new(kept), task: Arc::default() }
    }

    /// Starts the task on the current runtime, if it does not run.
    pub(super) fn start(&self) {
        self.task.start(|| keep_connected(LinkRun(self.kept.clone())));
    }

    /// Sends something on the current connection, and returns the connection with the reply.
    pub(super) async fn exchange<T, F>(
        &self,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<(Arc<Established>, Result<T, RedisError>), BackendError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let used = match self.current() {
            Some(current) => current,
            // Boxed to keep the future of a command small, for this is rarely needed.
            None => Box::pin(self.connected()).await?,
        };
        let unanswered = Unanswered { kept: &self.kept, used: &used };
        let limit = self.kept.config.command_timeout;
        // Pinned on the stack, because the future is too large to be moved.
        let sending = pin!(send(used.connected.connection.clone()));
        let reply = used.connected.progress.reply(sending, limit).await;
        std::mem::forget(unanswered);
        let Some(reply) = reply else {
            self.kept.give_up(&used);
            let why = format!("no reply within the command time-out of {limit:?}");
            return Err(BackendError::new(BackendErrorKind::Unknown, why));
        };
        Ok((used, reply))
    }

    /// Classifies an error, and replaces the connection if the error asks for it.
    pub(super) fn failure(&self, error: RedisError, used: &Arc<Established>) -> CommandFailure {
        if ends_connection(&error) {
            self.kept.give_up(used);
        }
        CommandFailure::of(error)
    }

    /// Returns the current connection, if there is one.
    fn current(&self) -> Option<Arc<Established>> {
        match &*self.kept.state.borrow() {
            ConnectionState::Established(current) => Some(current.clone()),
            _ => None,
        }
    }

    /// Replaces the current connection, after a reply that does not match its command.
    pub(super) fn replace(&self) {
        if let Some(current) = self.current() {
            self.kept.give_up(&current);
        }
    }

    /// Returns the current connection, or waits for the attempt that is under way.
    async fn connected(&self) -> Result<Arc<Established>, BackendError> {
        let begun = Instant::now();
        let unavailable = |why| Err(BackendError::new(BackendErrorKind::Unavailable, why));
        let mut state = self.kept.state.subscribe();
        loop {
            // Cloned, because the start of the task writes the state.
            let now = state.borrow_and_update().clone();
            let limit = match now {
                ConnectionState::Established(current) => return Ok(current),
                ConnectionState::Failed(error) => return Err(error),
                ConnectionState::Connecting => self.kept.config.command_timeout,
                ConnectionState::Idle => {
                    self.start();
                    self.kept.config.first_connection_limit()
                }
            };
            match timeout_at(after(begun, limit), state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_closed)) => return unavailable("the connection was closed"),
                Err(_elapsed) => return unavailable("there is no connection yet"),
            }
        }
    }

    /// Returns how long the answer to a subscription may take. Fails if the last attempt to connect
    /// failed.
    pub(super) fn subscription_limit(&self) -> Result<Duration, BackendError> {
        self.start();
        match &*self.kept.state.borrow() {
            ConnectionState::Idle => Ok(self.kept.config.first_connection_limit()),
            ConnectionState::Failed(error) => Err(error.clone()),
            _ => Ok(self.kept.config.command_timeout),
        }
    }
}

/// A command that is under way. If it is dropped, its caller gave up.
struct Unanswered<'a> {
    kept: &'a KeptConnection,
    used: &'a Arc<Established>,
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        // A caller may have the same time-out, which then ends a moment earlier than that of the
        // command.
        let limit = self.kept.config.command_timeout.mul_f64(0.9);
        if self.used.connected.progress.silence() >= limit {
            self.kept.give_up(self.used);
        }
    }
}

/// A run of the task. When it ends with its runtime, there is no connection any more.
struct LinkRun(Arc<KeptConnection>);

impl Drop for LinkRun {
    fn drop(&mut self) {
        self.0.state.send_replace(ConnectionState::Idle);
        if self.0.pushes.is_some() {
            self.0.events.lost();
        }
    }
}

async fn keep_connected(run: LinkRun) {
    let kept = &run.0;
    let (mut pauses, mut watch) = (Pauses::default(), EndpointWatch::default());
    loop {
        kept.is_wanted().await;
        let mut begun = Instant::now();
        match kept.connect(&mut watch).await {
            // The sentinels name another master meanwhile.
            Ok(None) => continue,
            Ok(Some(current)) => {
                kept.serve(&current, &mut watch).await;
                kept.broke(&current);
                (begun, pauses) = (Instant::now(), Pauses::default());
            }
            Err(error) => kept.failed(error),
        }
        kept.events.trouble.notify_one();
        // A pause counts from the beginning of the attempt. Another master ends it.
        let pause = pauses.next();
        let until = after(begun, pause).max(after(Instant::now(), pause.min(AFTER_FAILURE)));
        tokio::select! {
            () = sleep_until(until) => {}
            () = watch.outdated() => {}
        }
    }
}

impl KeptConnection {
    /// Replaces a connection. Commands that begin from now on wait for the next one.
    fn give_up(&self, used: &Arc<Established>) {
        self.state.send_if_modified(|state| match state {
            ConnectionState::Established(current) if Arc::ptr_eq(current, used) => {
                *state = ConnectionState::Connecting;
                true
            }
            _ => false,
        });
        used.broken.cancel();
    }

    fn is_failed(&self) -> bool {
        matches!(&*self.state.borrow(), ConnectionState::Failed(_))
    }

    /// Completes when there must be a connection: the one for pushes is needed while a channel is
    /// open.
    ///
    /// While the server is down no waiter listens for long, so the task then goes on by itself.
    async fn is_wanted(&self) {
        if self.pushes.is_some() {
            let NodeEvents { channels, scope, .. } = &self.events;
            let any = || channels.any(|channel| scope.contains(channel));
            let _ = channels.openings().wait_for(|_| any() || self.is_failed()).await;
        }
    }

    /// Connects, and hands the new connection to the commands. `watch` then belongs to the server
    /// that was found.
    async fn connect(
        &self,
        watch: &mut EndpointWatch,
    ) -> Result<Option<Arc<Established>>, BackendError> {
        let (begun, broken) = (Instant::now(), CancellationToken::new());
        let pushes = self.pushes.as_ref().map(|service| Pushes::new(self, service, &broken));
        let on_push = move |push: PushInfo| {
            if let Some(pushes) = &pushes {
                pushes.receive(push);
            }
        };
        let connected = connect(&self.endpoint, watch, &self.config, on_push).await?;
        let Some(connected) = connected else { return Ok(None) };
        let is_late = self.is_failed() || begun.elapsed() > self.config.command_timeout;
        let current = Arc::new(Established { connected, broken });
        self.state.send_replace(ConnectionState::Established(current.clone()));
        if self.pushes.is_none() {
            self.events.new_connections.send_replace(());
            if let Some(away) = self.events.outage.ends() {
                info!(server = %self.endpoint.shown(), ?away, "connected to Redis again");
            }
            if is_late {
                // Each waiter asks in vain at the moment, with pauses.
                self.events.wake();
            }
        }
        Ok(Some(current))
    }

    /// Returns when the connection is broken, or another server is the master.
    async fn serve(&self, current: &Arc<Established>, watch: &mut EndpointWatch) {
        let work = async {
            if let Some(service) = &self.pushes {
                let Err(error) = Subscriptions::new(self, service, current).keep().await;
                debug!(error = %Chain(&error), "the push connection to Redis broke");
                return;
            }
            let mut preparing = current.connected.connection.clone();
            let _ = timeout(self.config.connect_timeout(), prepare(&mut preparing)).await;
            drop(preparing);
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = current.broken.cancelled() => {}
            () = current.connected.progress.ended.cancelled() => {}
            () = work => {}
            () = watch.outdated() => {}
        }
    }

    fn broke(&self, current: &Established) {
        current.broken.cancel();
        // Commands wait for the first attempt after a break, and fail during later ones.
        self.state.send_replace(ConnectionState::Connecting);
        if self.pushes.is_some() {
            // The server may stay away for long, so each waiter asks at once and learns of it.
            self.events.lost();
            return;
        }
        let server = self.endpoint.shown();
        info!(%server, "the connection to Redis broke; connecting again");
        self.events.outage.begins();
    }

    fn failed(&self, error: BackendError) {
        let (is_known, server) = (self.is_failed(), self.endpoint.shown());
        if self.pushes.is_some() {
            if !is_known {
                debug!(%server, error = %Chain(&error), "no push connection to Redis");
            }
            self.events.failed(&error);
            self.state.send_replace(ConnectionState::Failed(error));
            return;
        }
        let away = self.events.outage.begins();
        if self.events.outage.told.first() || !is_known {
            warn!(%server, ?away, error = %Chain(&error), "no connection to Redis; trying again");
        }
        self.state.send_replace(ConnectionState::Failed(error));
        if !is_known {
            self.events.wake();
        }
    }
}
