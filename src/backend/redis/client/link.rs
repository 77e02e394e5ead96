//! The connection that commands are sent on, and the task that keeps it.
//!
//! The task connects, serves until the connection breaks, and connects again. A command takes the
//! current connection. If the last attempt to connect failed, the command fails at once. If an
//! attempt is under way, the command waits for it within its own time-out. So nothing queues up
//! while the server is away.
//!
//! A command times out when its connection was silent for the command time-out (`socket`). Both
//! times are longer where a round trip is long.
//!
//! A connection on which one command timed out gets no further commands. It may be dead, and a
//! second try must not use it again. Or it lost a reply, and every later reply would go to the
//! wrong command. Commands that are under way on it may still be answered.
//!
//! When the driver of a connection ends, it drops the commands that it has, which tells their
//! callers. A command may be sent in the same moment, and then lies in a queue that is not read any
//! more. So all commands look when a driver has ended.

use std::{pin::pin, sync::Arc, time::Duration};

use redis::{Arg, Cmd, Pipeline, RedisError, aio::MultiplexedConnection};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until, timeout, timeout_at},
};
use tracing::{info, warn};

use super::{
    connect::{Connected, connect, prepare},
    failure::{CommandFailure, ends_connection},
    node::NodeEvents,
    sentinel::{Endpoint, EndpointWatch},
    settings::RedisConfig,
    task::OnDemandTask,
};
use crate::{
    error::{BackendError, BackendErrorKind, Chain},
    time::{Pauses, after},
};

/// The rate at which buffers on the way are assumed to empty, in bytes each second.
const BUFFERED_RATE: f64 = 8e6;
/// The round trips that a new connection takes, with some to spare.
const CONNECT_ROUND_TRIPS: u32 = 8;
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
    state: watch::Sender<ConnectionState>,
    events: NodeEvents,
}

#[derive(Clone)]
enum ConnectionState {
    /// The task does not run.
    Idle,
    /// An attempt is under way, for which commands wait. A round trip took this long before.
    Connecting(Duration),
    Established(Arc<Established>),
    /// The last attempt failed. The task makes the next one.
    Failed(BackendError),
}

pub(super) struct Established {
    connected: Connected,
    silence_limit: Duration,
    /// Asks the task to replace this connection, but not a later one.
    broken: Notify,
}

/// When a command began, and how long its connection may be silent.
#[derive(Clone, Copy)]
pub(super) struct CommandDeadline {
    begun: Instant,
    limit: Duration,
}

impl CommandDeadline {
    /// Returns the deadline of a command that begins now.
    pub(super) fn from_now(config: &RedisConfig) -> Self {
        Self { begun: Instant::now(), limit: config.command_timeout }
    }

    /// Returns the deadline of commands with a large argument.
    ///
    /// The bytes that buffers on the way have taken may not have arrived for long.
    pub(super) fn for_write(self, pipeline: &Pipeline) -> Self {
        let size = |arg| match arg {
            Arg::Simple(bytes) => <[u8]>::len(bytes),
            _ => 0,
        };
        let bytes: usize = pipeline.cmd_iter().flat_map(Cmd::args_iter).map(size).sum();
        Self { limit: self.limit + Duration::from_secs_f64(bytes as f64 / BUFFERED_RATE), ..self }
    }

    /// Returns the deadline of a command that had to wait for its connection until now.
    pub(super) fn restarted(self) -> Self {
        Self { begun: Instant::now(), ..self }
    }

    /// Returns when the time of a command without progress ends.
    pub(super) fn at(self) -> Instant {
        after(self.begun, self.limit)
    }

    /// Returns when the first attempt to connect must have ended. The server may have to be found
    /// first.
    pub(super) fn at_first(self, config: &RedisConfig) -> Instant {
        after(self.begun, config.connect_timeout.saturating_mul(2)).max(self.at())
    }
}

impl Link {
    pub(super) fn new(endpoint: Endpoint, config: RedisConfig, events: NodeEvents) -> Self {
        let state = watch::Sender::new(ConnectionState::Idle);
        let kept = KeptConnection { endpoint, config, state, events };
        Self { kept: Arc::new(kept), task: Arc::default() }
    }

    /// Sends something on the current connection, and returns the connection with the reply.
    pub(super) async fn exchange<T, F>(
        &self,
        deadline: CommandDeadline,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<(Arc<Established>, Result<T, RedisError>), BackendError>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        let (used, deadline) = match self.current() {
            Some(current) => (current, deadline),
            // Boxed to keep the future of a command small, for this is rarely needed.
            None => {
                let used = Box::pin(self.connected(deadline)).await?;
                (used, deadline.restarted())
            }
        };
        let unanswered = Unanswered { kept: &self.kept, used: &used, since: deadline.begun };
        let limit = deadline.limit.max(used.silence_limit);
        // Pinned on the stack, because the future is too large to be moved.
        let sending = pin!(send(used.connected.connection.clone()));
        let reply = used.connected.progress.reply(sending, limit, deadline.begun);
        let Some(reply) = reply.await else {
            let why = format!("no reply within the command time-out of {limit:?}");
            return Err(BackendError::new(BackendErrorKind::Unknown, why));
        };
        unanswered.disarm();
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
    async fn connected(&self, deadline: CommandDeadline) -> Result<Arc<Established>, BackendError> {
        let unavailable = |why| Err(BackendError::new(BackendErrorKind::Unavailable, why));
        let mut state = self.kept.state.subscribe();
        loop {
            // Cloned, because the start of the task writes the state.
            let now = state.borrow_and_update().clone();
            let end = match now {
                ConnectionState::Established(current) => return Ok(current),
                ConnectionState::Failed(error) => return Err(error),
                ConnectionState::Connecting(round_trip) => {
                    let few = round_trip.saturating_mul(CONNECT_ROUND_TRIPS);
                    deadline.at().max(after(deadline.begun, few))
                }
                ConnectionState::Idle => {
                    self.task.start(|| keep_connected(LinkRun(self.kept.clone())));
                    deadline.at_first(&self.kept.config)
                }
            };
            match timeout_at(end, state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_closed)) => return unavailable("the connection was closed"),
                Err(_elapsed) => return unavailable("there is no connection yet"),
            }
        }
    }
}

/// A command that is under way.
///
/// If it is dropped, the command was not answered: its time-out ended, or its caller gave up
/// earlier.
struct Unanswered<'a> {
    kept: &'a KeptConnection,
    used: &'a Arc<Established>,
    since: Instant,
}

impl Unanswered<'_> {
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let progress = &self.used.connected.progress;
        // A caller may have the same time-out, which then ends a moment earlier than this one.
        let limit = self.used.silence_limit.mul_f64(0.9);
        let is_silent = self.since.elapsed().min(progress.unmoved()) >= limit;
        // Callers with shorter time-outs leave one after another.
        if is_silent || progress.silence() >= limit {
            self.kept.give_up(self.used);
        }
    }
}

impl KeptConnection {
    /// Replaces a connection. Commands that begin from now on wait for the next one.
    fn give_up(&self, used: &Arc<Established>) {
        self.state.send_if_modified(|state| match state {
            ConnectionState::Established(current) if Arc::ptr_eq(current, used) => {
                *state = ConnectionState::Connecting(current.connected.round_trip);
                true
            }
            _ => false,
        });
        used.broken.notify_one();
    }

    /// Connects, and serves until the connection breaks. `watch` belongs to the last server found.
    async fn connect_and_serve(&self, watch: &mut EndpointWatch, pauses: &mut Pauses) {
        let begun = Instant::now();
        match connect(&self.endpoint, watch, &self.config, |_| ()).await {
            Ok(None) => {}
            Ok(Some(connected)) => {
                let is_late = self.is_failed() || begun.elapsed() > self.config.command_timeout;
                let round_trip = connected.round_trip;
                let current = self.establish(connected);
                if is_late {
                    // Each waiter asks in vain at the moment, with pauses.
                    self.events.wake();
                }
                self.serve(current, watch).await;
                self.broke(round_trip);
                *pauses = Pauses::default();
                rest(Instant::now(), pauses, watch).await;
            }
            Err(error) => {
                self.failed(error);
                rest(begun, pauses, watch).await;
            }
        }
    }

    /// Hands a new connection to the commands.
    fn establish(&self, connected: Connected) -> Arc<Established> {
        let silence_limit = connected.silence_limit(&self.config);
        let current = Arc::new(Established { connected, silence_limit, broken: Notify::new() });
        self.state.send_replace(ConnectionState::Established(current.clone()));
        self.events.new_connections.send_replace(());
        if let Some(away) = self.events.outage.ends() {
            info!(server = %self.endpoint.shown(), ?away, "connected to Redis again");
        }
        current
    }

    fn broke(&self, round_trip: Duration) {
        let server = self.endpoint.shown();
        info!(%server, "the connection to Redis broke; connecting again");
        self.events.outage.begins();
        self.events.trouble.notify_one();
        // Commands wait for the first attempt after a break, and fail during later ones.
        self.state.send_replace(ConnectionState::Connecting(round_trip));
    }

    fn is_failed(&self) -> bool {
        matches!(&*self.state.borrow(), ConnectionState::Failed(_))
    }

    fn failed(&self, error: BackendError) {
        let (is_known, server) = (self.is_failed(), self.endpoint.shown());
        if !is_known {
            warn!(%server, error = %Chain(&error), "no connection to Redis; trying again");
            self.events.outage.begins();
        } else if let Some(away) = self.events.outage.lasts() {
            warn!(%server, ?away, error = %Chain(&error), "still no connection to Redis");
        }
        self.state.send_replace(ConnectionState::Failed(error));
        self.events.trouble.notify_one();
        if !is_known {
            self.events.wake();
        }
    }

    /// Returns when the connection is broken, or another server is the master.
    async fn serve(&self, current: Arc<Established>, watch: &mut EndpointWatch) {
        let mut preparing = current.connected.connection.clone();
        let prepare = async {
            let _ = timeout(self.config.connect_timeout, prepare(&mut preparing)).await;
            drop(preparing);
            std::future::pending::<()>().await
        };
        tokio::select! {
            () = current.broken.notified() => {}
            () = current.connected.progress.ended.cancelled() => {}
            () = prepare => {}
            () = watch.outdated() => {}
        }
    }
}

/// Pauses after an attempt that began then. Another master ends the pause.
pub(super) async fn rest(begun: Instant, pauses: &mut Pauses, watch: &mut EndpointWatch) {
    let pause = pauses.next();
    let until = after(begun, pause).max(after(Instant::now(), pause.min(AFTER_FAILURE)));
    tokio::select! {
        () = sleep_until(until) => {}
        () = watch.outdated() => {}
    }
}

/// A run of the task. When it ends with its runtime, there is no connection any more.
struct LinkRun(Arc<KeptConnection>);

impl Drop for LinkRun {
    fn drop(&mut self) {
        self.0.state.send_replace(ConnectionState::Idle);
    }
}

async fn keep_connected(run: LinkRun) {
    let (mut pauses, mut watch) = (Pauses::default(), EndpointWatch::Never);
    loop {
        run.0.connect_and_serve(&mut watch, &mut pauses).await;
    }
}
