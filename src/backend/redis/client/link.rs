//! A connection for commands that a task keeps, with one for pushes.
//!
//! One task keeps the connections to a server, and starts with the first command. It connects,
//! serves until a connection breaks, and connects again. A command takes the current connection. If
//! the last attempt to connect failed, it fails at once. It waits for the first attempt after a
//! break. So nothing queues up while the server is away.
//!
//! A connection that was silent for the command time-out ends (`socket`). It may be dead, or it
//! lost a reply, and every later reply would go to the wrong command.

use std::{future::pending, pin::pin, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{ConnectionInfo, RedisError, aio::MultiplexedConnection};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::{debug, field, info, warn};

use super::{
    connect::{Connection, OnPush, connect, prepare, refuse_unfit},
    events::NodeEvents,
    failure::{CommandFailure, ends_connection},
    push::{Pushes, keep_subscribed},
    settings::RedisConfig,
    task::{Finding, LatestFinding, OnDemandTask},
};
use crate::{
    error::{BackendError, BackendErrorKind, Chain},
    observe::Rarely,
    time::{Pauses, after},
};

/// The least pause behind an attempt that failed. An attempt that hung was a pause itself.
const AFTER_FAILURE: Duration = Duration::from_millis(20);

/// A connection that a task keeps. Its clones share it.
#[derive(Clone)]
pub(super) struct Link {
    kept: Arc<KeptConnection>,
    task: Arc<ConnectionsTask>,
}

/// The task of all connections to a server, which so live in one runtime.
struct ConnectionsTask {
    all: Vec<Arc<KeptConnection>>,
    task: OnDemandTask,
}

struct KeptConnection {
    server: ConnectionInfo,
    config: RedisConfig,
    events: NodeEvents,
    /// Set for pushes: the connection for commands, which comes first. So waiters that are woken by
    /// the subscriptions do not ask in vain.
    commands: Option<Arc<KeptConnection>>,
    current: LatestFinding<Arc<Connection>>,
    /// How often the log tells of an outage, or of refused subscriptions.
    told: Rarely,
}

impl Link {
    /// Returns connections for commands to a server. One task keeps them, and one for pushes.
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
                current: LatestFinding::pending(config.first_connection_limit()),
                told: Rarely::default(),
            })
        };
        let kept = [(); COUNT].map(|()| new(None));
        let pushes = new(kept.first().cloned());
        let all = kept.iter().cloned().chain([pushes]).collect();
        let task = Arc::new(ConnectionsTask { all, task: OnDemandTask::default() });
        kept.map(|kept| Self { kept, task: task.clone() })
    }

    /// Starts the task on the current runtime, if it does not run.
    pub(super) fn start(&self) {
        self.task.task.start(|| {
            let all = RunningConnections(self.task.all.clone());
            async move { drop(join_all(all.0.iter().cloned().map(keep_connected)).await) }
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
            None => Box::pin(self.kept.current.wait(|| self.start())).await?,
        };
        let limit = self.kept.config.command_timeout;
        // Pinned on the stack, because the future is too large to be moved.
        let sending = pin!(send(used.commands.clone()));
        let Some(reply) = used.progress.reply(sending, limit).await else {
            self.kept.give_up(&used);
            let why = format!("no reply within the command time-out of {limit:?}");
            return Err(BackendError::new(BackendErrorKind::Unknown, why));
        };
        Ok((used, reply))
    }

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

    /// Returns whether the last attempt to connect failed.
    pub(super) fn has_failed(&self) -> bool {
        self.kept.current.has_failed()
    }

    /// Waits for the connection.
    pub(super) async fn connected(&self) -> Result<(), BackendError> {
        self.kept.current.wait(|| self.start()).await.map(drop)
    }
}

/// Notes that the task has ended with its runtime, and the connections with it.
struct RunningConnections(Vec<Arc<KeptConnection>>);

impl Drop for RunningConnections {
    fn drop(&mut self) {
        for kept in &self.0 {
            kept.current.set(Finding::Pending(kept.config.first_connection_limit()));
            if kept.commands.is_some() {
                kept.events.lost();
            }
        }
    }
}

async fn keep_connected(kept: Arc<KeptConnection>) {
    let (mut pauses, mut away_since) = (Pauses::default(), None);
    loop {
        let mut begun = Instant::now();
        match kept.connect().await {
            Ok((current, pushes)) => {
                kept.connected(&current, away_since.take());
                tokio::select! {
                    () = current.broken.cancelled() => {}
                    () = current.progress.ended.cancelled() => {}
                    () = kept.serve(&current, pushes) => {}
                }
                kept.broke(&current);
                (begun, pauses) = (Instant::now(), Pauses::default());
                away_since = Some(begun);
            }
            Err(error) => kept.failed(error, *away_since.get_or_insert_with(Instant::now)),
        }
        kept.events.all.trouble.notify_one();
        // A pause counts from the beginning of the attempt.
        let pause = pauses.next();
        sleep_until(after(begun, pause).max(after(Instant::now(), pause.min(AFTER_FAILURE)))).await;
    }
}

impl KeptConnection {
    /// Replaces a connection. Commands that begin from now on wait for the next one.
    fn give_up(&self, used: &Arc<Connection>) {
        self.current.broke(|current| Arc::ptr_eq(current, used), used.reconnect_limit);
        used.broken.cancel();
    }

    async fn connect(&self) -> Result<(Arc<Connection>, Option<Arc<Pushes>>), BackendError> {
        let pushes = match &self.commands {
            Some(commands) => {
                commands.current.until_known().await;
                Some(Arc::new(Pushes::new(&self.events, &self.config)))
            }
            None => None,
        };
        let on_push = pushes.clone().map(|it| Box::new(move |push| it.receive(push)) as OnPush);
        let name = self.config.client_name.as_deref();
        let is_cluster = self.events.all.is_cluster;
        let first = async |connection: &mut _| refuse_unfit(connection, name, is_cluster).await;
        let (mut connection, ()) = connect(&self.server, &self.config, on_push, first).await?;
        if let Some(pushes) = &pushes {
            connection.broken = pushes.end.clone();
        }
        Ok((Arc::new(connection), pushes))
    }

    fn connected(&self, current: &Arc<Connection>, away_since: Option<Instant>) {
        self.current.set(Finding::Known(current.clone()));
        if self.commands.is_some() {
            return;
        }
        self.events.all.standing.connected(self.server.addr());
        self.events.all.new_connections.send_replace(());
        if let Some(since) = away_since {
            let (server, away) = (self.server.addr(), since.elapsed());
            info!(%server, ?away, "connected to Redis again");
        }
    }

    async fn serve(&self, current: &Connection, pushes: Option<Arc<Pushes>>) {
        if let Some(pushes) = pushes {
            let limit = self.config.command_timeout;
            let Err(error) = keep_subscribed(&pushes, current, limit, &self.told).await;
            debug!(error = %Chain(&error), "the push connection to Redis broke");
            return;
        }
        let _ = timeout(self.config.connect_timeout(), prepare(current.commands.clone())).await;
        pending().await
    }

    fn broke(&self, current: &Connection) {
        current.broken.cancel();
        self.current.set(Finding::Pending(current.reconnect_limit));
        if self.commands.is_some() {
            // The server may stay away for long, so each waiter asks at once and learns of it.
            self.events.lost();
            return;
        }
        let server = self.server.addr();
        self.events.all.standing.broke(server);
        info!(%server, "the connection to Redis broke; connecting again");
    }

    fn failed(&self, error: BackendError, away_since: Instant) {
        let is_first = self.current.set_unless_known(Finding::Failed(error.clone()));
        let (server, away) = (self.server.addr(), away_since.elapsed());
        // The first line tells of the begin, and has no time.
        let away = (away >= Duration::from_secs(1)).then(|| field::debug(away));
        let error = Chain(&error);
        if self.commands.is_some() {
            debug!(%server, %error, "no push connection to Redis; waiters poll instead");
        } else if self.told.first() || is_first {
            warn!(%server, away, %error, "no connection to Redis; trying again");
        }
    }
}
