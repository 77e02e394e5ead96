//! A connection that a task keeps: for commands, or for pushes.
//!
//! The task connects, serves until the connection breaks, and connects again. A command takes the
//! current connection. If the last attempt to connect failed, the command fails at once. If an
//! attempt is under way, the command waits for it for a while. So nothing queues up while the
//! server is away.
//!
//! A connection that was silent for the command time-out ends (`socket`). It may be dead, and a
//! second try must not use it again. Or it lost a reply, and every later reply would go to the
//! wrong command.

use std::{sync::Arc, time::Duration};

use redis::{PushInfo, RedisError, aio::MultiplexedConnection};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{
    connect::{Connection, prepare},
    events::NodeEvents,
    failure::{CommandFailure, ends_connection},
    push::{PushService, Pushes, Subscriptions},
    sentinel::{Endpoint, EndpointWatch},
    settings::RedisConfig,
    task::{Finding, LatestFinding, OnDemandTask},
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
struct KeptConnection {
    endpoint: Endpoint,
    config: RedisConfig,
    current: LatestFinding<Arc<Connection>>,
    events: NodeEvents,
    /// `None` if the connection is for commands.
    pushes: Option<PushService>,
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
        let current = LatestFinding::new();
        let kept = KeptConnection { endpoint, config, current, events, pushes };
        Self { kept: Arc::new(kept), task: Arc::default() }
    }

    /// Starts the task on the current runtime, if it does not run.
    pub(super) fn start(&self) {
        self.task.start(|| {
            let kept = self.kept.clone();
            (keep_connected(self.kept.clone()), move || kept.ended())
        });
    }

    /// Sends something on the current connection, and returns the connection with the reply.
    pub(super) async fn exchange<T, F>(
        &self,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<(Arc<Connection>, Result<T, RedisError>), BackendError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let used = match self.kept.current.known() {
            Some(current) => current,
            // Boxed to keep the future of a command small, for this is rarely needed.
            None => Box::pin(self.kept.current.wait(&self.kept.config, || self.start())).await?,
        };
        let limit = self.kept.config.command_timeout;
        let Some(reply) = used.exchange(limit, send).await else {
            self.kept.give_up(&used);
            let why = format!("no reply within the command time-out of {limit:?}");
            return Err(BackendError::new(BackendErrorKind::Unknown, why));
        };
        Ok((used, reply))
    }

    /// Classifies an error, and replaces the connection if the error asks for it.
    pub(super) fn failure(&self, error: RedisError, used: &Arc<Connection>) -> CommandFailure {
        if ends_connection(&error) {
            self.kept.give_up(used);
        }
        CommandFailure::of(error)
    }

    /// Replaces the current connection, after a reply that does not match its command.
    pub(super) fn replace(&self) {
        if let Some(current) = self.kept.current.known() {
            self.kept.give_up(&current);
        }
    }

    /// Waits for the connection. Returns how long the answer to a subscription may take then.
    pub(super) async fn subscription_limit(&self) -> Result<Duration, BackendError> {
        let KeptConnection { current, config, .. } = &*self.kept;
        current.wait(config, || self.start()).await?;
        Ok(config.command_timeout)
    }
}

async fn keep_connected(kept: Arc<KeptConnection>) {
    let (mut pauses, mut watch) = (Pauses::default(), EndpointWatch::new(&kept.endpoint));
    loop {
        kept.is_wanted().await;
        let mut begun = Instant::now();
        match kept.connect(&mut watch).await {
            // The sentinels name another master meanwhile.
            Ok(None) => continue,
            Ok(Some(current)) => {
                kept.serve(&current, &watch).await;
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
    /// Notes that the task has ended with its runtime, and the connection with it.
    fn ended(&self) {
        self.current.set(Finding::Nothing);
        if self.pushes.is_some() {
            self.events.lost();
        }
    }

    /// Replaces a connection. Commands that begin from now on wait for the next one.
    fn give_up(&self, used: &Arc<Connection>) {
        self.current.broke(|current| Arc::ptr_eq(current, used), used.reconnect_limit);
        used.broken.cancel();
    }

    /// Completes when there must be a connection: the one for pushes is needed while a channel is
    /// open.
    ///
    /// While the server is down no waiter listens for long, so the task then goes on by itself.
    async fn is_wanted(&self) {
        if self.pushes.is_some() {
            let NodeEvents { channels, scope, .. } = &self.events;
            let any = || !channels.wanted(|channel| scope.contains(channel)).is_empty();
            let _ =
                channels.openings().wait_for(|_| any() || self.current.failure().is_some()).await;
        }
    }

    /// Connects, and hands the new connection to the commands. Returns `None` if the sentinels name
    /// another master meanwhile.
    async fn connect(
        &self,
        watch: &mut EndpointWatch,
    ) -> Result<Option<Arc<Connection>>, BackendError> {
        let (begun, broken) = (Instant::now(), CancellationToken::new());
        let pushes = self.pushes.as_ref();
        let pushes = pushes.map(|it| Pushes::new(it, &self.events, &self.config, &broken));
        let on_push = move |push: PushInfo| {
            if let Some(pushes) = &pushes {
                pushes.receive(push);
            }
        };
        let current = watch.connect(&self.config, broken, on_push).await?;
        let Some(current) = current.map(Arc::new) else { return Ok(None) };
        let is_late =
            self.current.failure().is_some() || begun.elapsed() > self.config.command_timeout;
        self.current.set(Finding::Known(current.clone()));
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
    async fn serve(&self, current: &Arc<Connection>, watch: &EndpointWatch) {
        let work = async {
            if let Some(service) = &self.pushes {
                let limit = self.config.command_timeout;
                let subscriptions = Subscriptions::new(service, &self.events, current, limit);
                let Err(error) = subscriptions.keep().await;
                debug!(error = %Chain(&error), "the push connection to Redis broke");
                return;
            }
            let mut preparing = current.commands.clone();
            let _ = timeout(self.config.connect_timeout(), prepare(&mut preparing)).await;
            drop(preparing);
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = current.broken.cancelled() => {}
            () = current.progress.ended.cancelled() => {}
            () = work => {}
            () = watch.outdated() => {}
        }
    }

    fn broke(&self, current: &Connection) {
        current.broken.cancel();
        // Commands wait for the first attempt after a break, and fail during later ones.
        self.current.set(Finding::Broken(current.reconnect_limit));
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
        let server = self.endpoint.shown();
        if self.pushes.is_some() {
            if self.current.set_unless_known(Finding::Failed(error.clone())) {
                debug!(%server, error = %Chain(&error), "no push connection to Redis");
            }
            return;
        }
        let is_first = self.current.set_unless_known(Finding::Failed(error.clone()));
        let away = self.events.outage.begins();
        if self.events.outage.told.first() || is_first {
            warn!(%server, ?away, error = %Chain(&error), "no connection to Redis; trying again");
        }
        if is_first {
            self.events.wake();
        }
    }
}
