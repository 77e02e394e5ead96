//! The connections to a server that a task keeps: one or two for commands, and one for pushes.
//!
//! The first command starts the task. The task connects, serves until a connection breaks, and
//! connects again. A command uses the latest connection. After a break, a command waits for the
//! first attempt to connect. If that attempt failed, each command fails at once until an attempt
//! succeeds. So no commands queue up while the server is away.
//!
//! If a reply is due and no byte moves for the command time-out, the connection ends (`socket`).
//! The server may be dead. Or a reply was lost, and each later reply would go to the wrong command.

use std::{
    future::pending,
    pin::pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::future::join_all;
use redis::{ConnectionInfo, RedisError, aio::MultiplexedConnection};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, field, info, warn};

use super::{
    connect::{Connection, OnPush, connect, prepare, refuse_unfit},
    events::{ConnectedSince, NodeEvents},
    failure::{CommandFailure, ends_connection},
    push::{Pushes, keep_subscribed},
    settings::RedisConfig,
    task::{Finding, LatestFinding, OnDemandTask, RunningMark},
};
use crate::{
    error::{BackendError, BackendErrorKind, Chain},
    observe::Rarely,
    sync::lock,
    time::{Pauses, after},
};

/// The least pause after an attempt that failed. An attempt that hung was a pause itself.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

/// The longest pause after a connection that broke soon. Commands wait for the next connection
/// meanwhile, so the pause is shorter than their wait.
const LONGEST_AFTER_BREAK: Duration = Duration::from_millis(100);

/// A connection for commands that a task keeps. Clones share the connection.
#[derive(Clone)]
pub(super) struct Link {
    kept: Arc<KeptConnection>,
    task: Arc<ConnectionsTask>,
}

/// The task of all connections to one server. So these connections live in one runtime.
struct ConnectionsTask {
    all: Vec<Arc<KeptConnection>>,
    task: OnDemandTask,
}

struct KeptConnection {
    server: ConnectionInfo,
    config: RedisConfig,
    events: NodeEvents,
    /// The connection for commands, if this connection is for pushes. The connection for pushes is
    /// made after the connection for commands, because new subscriptions wake waiters, which then
    /// send commands.
    commands: Option<Arc<KeptConnection>>,
    latest: LatestFinding<Arc<Connection>>,
    /// Since when the connection stands, for operators. Set by the first connection for commands.
    connected_since: OnceLock<Arc<ConnectedSince>>,
    /// Limits the lines in the log about an outage, or about refused subscriptions.
    log_limit: Rarely,
}

impl Link {
    /// Returns this many connections for commands to a server. One task keeps all of them, and one
    /// more connection for pushes.
    pub(super) fn all<const COUNT: usize>(
        server: &ConnectionInfo,
        config: &RedisConfig,
        events: &NodeEvents,
    ) -> [Self; COUNT] {
        let new = |commands| {
            Arc::new(KeptConnection {
                server: server.clone(),
                config: config.clone(),
                events: events.clone(),
                commands,
                latest: LatestFinding::pending(config.first_connection_limit()),
                connected_since: OnceLock::new(),
                log_limit: Rarely::default(),
            })
        };
        let kept = [(); COUNT].map(|()| new(None));
        let pushes = new(kept.first().cloned());
        let all = kept.iter().cloned().chain([pushes]).collect();
        let task = Arc::new(ConnectionsTask { all, task: OnDemandTask::default() });
        kept.map(|kept| Self { kept, task: task.clone() })
    }

    /// Starts the task on the current runtime, unless the task runs.
    pub(super) fn start(&self) {
        self.task.task.start(|mark| {
            let all = self.task.all.clone();
            keep_all_connected(RunningConnections { all, mark: Some(mark) })
        });
    }

    /// Sends something on the latest connection. Returns the connection with the reply.
    pub(super) async fn exchange<T, F>(
        &self,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<(Arc<Connection>, Result<T, RedisError>), BackendError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let used = match self.kept.latest.known() {
            Some(latest) => latest,
            // Boxed, because the wait is rare, and would make the future of each command larger.
            None => Box::pin(self.kept.latest.wait(|| self.start())).await?,
        };
        let limit = self.kept.config.command_timeout;
        // Pinned on the stack, because the future is too large to be moved.
        let sending = pin!(send(used.client.clone()));
        let Some(reply) = used.progress.reply(sending, limit).await else {
            self.kept.give_up(&used);
            let why = format!("no reply within the command time-out of {limit:?}");
            return Err(BackendError::new(BackendErrorKind::Unknown, why));
        };
        Ok((used, reply))
    }

    /// Returns the failure of a command. If the error says that the connection must not be used
    /// again, gives the connection up.
    pub(super) fn failed(&self, error: RedisError, used: &Arc<Connection>) -> CommandFailure {
        if ends_connection(&error) {
            self.kept.give_up(used);
        }
        CommandFailure::of(error)
    }

    /// Gives up the latest connection, after a reply that does not match its command.
    pub(super) fn give_up(&self) {
        if let Some(latest) = self.kept.latest.known() {
            self.kept.give_up(&latest);
        }
    }

    /// Returns whether the last attempt to connect failed.
    pub(super) fn has_failed(&self) -> bool {
        self.kept.latest.has_failed()
    }

    /// Waits for the connection.
    pub(super) async fn until_connected(&self) -> Result<(), BackendError> {
        self.kept.latest.wait(|| self.start()).await?;
        Ok(())
    }
}

/// The connections of a task that runs. The drop notes that the task has ended with its runtime,
/// and the connections with the task.
struct RunningConnections {
    all: Vec<Arc<KeptConnection>>,
    mark: Option<RunningMark>,
}

impl Drop for RunningConnections {
    fn drop(&mut self) {
        for kept in &self.all {
            let limit = kept.config.first_connection_limit();
            kept.latest.set_silently(Finding::Pending(limit));
            kept.note_disconnected();
            if kept.is_for_pushes() {
                kept.events.note_lost_subscriptions();
            }
        }
        // The next task can start now. Its findings come after the notes above.
        drop(self.mark.take());
        for kept in &self.all {
            kept.latest.wake();
        }
    }
}

async fn keep_all_connected(running: RunningConnections) {
    let each = running.all.iter().cloned().map(keep_connected);
    join_all(each).await;
}

async fn keep_connected(kept: Arc<KeptConnection>) {
    let mut pauses = Pauses::default();
    let mut away_since = None;
    loop {
        let mut pause_from = Instant::now();
        let longest;
        match kept.connect().await {
            Ok((connection, pushes)) => {
                let connected_at = Instant::now();
                kept.note_connected(&connection, away_since.take());
                tokio::select! {
                    () = connection.broken.cancelled() => {}
                    () = connection.progress.ended.cancelled() => {}
                    () = kept.serve(&connection, pushes) => {}
                }
                kept.note_broken(&connection);
                // A server may accept connections and be unusable. So the pauses grow, unless the
                // connection lasted.
                if connected_at.elapsed() >= kept.config.command_timeout {
                    pauses = Pauses::default();
                }
                longest = LONGEST_AFTER_BREAK;
                pause_from = Instant::now();
                away_since = Some(pause_from);
            }
            Err(error) => {
                let away_since = *away_since.get_or_insert_with(Instant::now);
                kept.note_failed(error, away_since);
                longest = Duration::MAX;
            }
        }
        kept.events.all.trouble.notify_one();
        let pause = pauses.next().min(longest);
        let from_begin = after(pause_from, pause);
        let from_now = after(Instant::now(), pause.min(AFTER_FAILURE));
        sleep_until(from_begin.max(from_now)).await;
    }
}

impl KeptConnection {
    /// Returns whether the connection is for pushes, and not for commands.
    fn is_for_pushes(&self) -> bool {
        self.commands.is_some()
    }

    /// Has the task replace a connection. Later commands wait for the next connection.
    fn give_up(&self, used: &Arc<Connection>) {
        let is_used = |latest: &Arc<Connection>| Arc::ptr_eq(latest, used);
        self.latest.give_up(is_used, used.reconnect_limit);
        used.broken.cancel();
    }

    async fn connect(&self) -> Result<(Arc<Connection>, Option<Arc<Pushes>>), BackendError> {
        let mut pushes = None;
        let mut on_push = None;
        if let Some(commands) = &self.commands {
            commands.latest.until_known().await;
            let new = Arc::new(Pushes::new(&self.events, &self.config));
            pushes = Some(new.clone());
            on_push = Some(Box::new(move |push| new.receive(push)) as OnPush);
        }
        let name = self.config.client_name.as_deref();
        let is_cluster = self.events.all.is_cluster;
        let first = async |connection: &mut _| refuse_unfit(connection, name, is_cluster).await;
        let (mut connection, ()) = connect(&self.server, &self.config, on_push, first).await?;
        if let Some(pushes) = &pushes {
            connection.broken = pushes.broken.clone();
        }
        Ok((Arc::new(connection), pushes))
    }

    fn note_connected(&self, connection: &Arc<Connection>, away_since: Option<Instant>) {
        self.latest.set(Finding::Known(connection.clone()));
        if self.is_for_pushes() {
            return;
        }
        let all = &self.events.all;
        let connected_since = self.connected_since.get_or_init(|| all.standing.add_connection());
        *lock(connected_since) = Some(Instant::now());
        all.new_connections.send_replace(());
        if let Some(since) = away_since {
            let server = self.server.addr();
            let away = since.elapsed();
            info!(%server, ?away, "connected to Redis again");
        }
    }

    /// Serves a connection until the connection breaks.
    async fn serve(&self, connection: &Connection, pushes: Option<Arc<Pushes>>) {
        if let Some(pushes) = pushes {
            let limit = self.config.command_timeout;
            let Err(error) = keep_subscribed(&pushes, connection, limit, &self.log_limit).await;
            debug!(error = %Chain(&error), "the push connection to Redis broke");
            return;
        }
        let _ = timeout(self.config.connect_timeout(), prepare(connection.client.clone())).await;
        pending().await
    }

    fn note_broken(&self, connection: &Connection) {
        connection.broken.cancel();
        self.latest.set(Finding::Pending(connection.reconnect_limit));
        self.note_disconnected();
        if self.is_for_pushes() {
            // The server may stay away for long. So each waiter asks at once, and notices.
            self.events.note_lost_subscriptions();
            return;
        }
        let server = self.server.addr();
        info!(%server, "the connection to Redis broke; connecting again");
    }

    /// Notes for operators that a connection for commands has ended.
    fn note_disconnected(&self) {
        if let Some(connected_since) = self.connected_since.get() {
            *lock(connected_since) = None;
            self.events.all.standing.forget_round_trip();
        }
    }

    fn note_failed(&self, error: BackendError, away_since: Instant) {
        let was_pending = self.latest.set_unless_known(Finding::Failed(error.clone()));
        let server = self.server.addr();
        let away = away_since.elapsed();
        // The first line of an outage has no time, because the outage begins.
        let away = (away >= Duration::from_secs(1)).then(|| field::debug(away));
        let error = Chain(&error);
        if self.is_for_pushes() {
            debug!(%server, %error, "no push connection to Redis; waiters poll instead");
        } else if self.log_limit.first() || was_pending {
            warn!(%server, away, %error, "no connection to Redis; trying again");
        }
    }
}
