//! The connection that commands are sent on.
//!
//! A task keeps it connected (`reconnect`). A command takes the current connection. If the last
//! attempt to connect failed, the command fails at once. If an attempt is under way, the command
//! waits for it within its own time-out. So nothing queues up while the server is away.
//!
//! A command times out when its connection was silent for the command time-out (`progress`).
//!
//! A connection on which one command timed out gets no further commands. It may be dead, and a
//! second try must not use it again. Or it lost a reply, and every later reply would go to the
//! wrong command. Commands that are under way on it may still be answered. If a caller drops a
//! command before its time-out, a `PING` tests the connection.
//!
//! When the driver of a connection ends, it drops the commands that it has, which tells their
//! callers. A command may be sent in the same moment, and then lies in a queue that is not read any
//! more. So all commands look when a driver has ended.

use std::{io, pin::pin, sync::Arc};

use futures_util::FutureExt;
use redis::{RedisError, Value, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    sync::watch,
    task::unconstrained,
    time::{Instant, timeout_at},
};

use super::{
    config::RedisConfig,
    deadline::CommandDeadline,
    endpoint::Endpoint,
    events::NodeEvents,
    failure::{CommandFailure, ends_connection},
    reconnect::{ConnectionState, Established, KeptConnection, ReconnectRun, keep_connected},
    task::OnDemandTask,
    timeout_wheel::TimeoutWheel,
};
use crate::{
    error::{BackendError, BackendErrorKind},
    time::after,
};

/// The round trips that a new connection takes, with some to spare.
const CONNECT_ROUND_TRIPS: u32 = 8;

/// A connection that a task keeps. Its clones share it.
#[derive(Clone)]
pub(super) struct Link {
    kept: Arc<KeptConnection>,
    task: Arc<OnDemandTask>,
}

/// The reply to a command, and what was learnt with it.
pub(super) struct Confirmed {
    pub(super) value: Value,
    /// How many replicas confirmed the command, or why the server did not count them. Zero if no
    /// `WAIT` was sent.
    pub(super) replicas: Result<usize, BackendError>,
    /// The time of the server in microseconds, if it was asked for.
    pub(super) time: Option<u64>,
}

impl Link {
    pub(super) fn new(endpoint: Endpoint, config: RedisConfig, events: NodeEvents) -> Self {
        let timeouts = Arc::new(TimeoutWheel::new(config.command_timeout));
        let state = watch::Sender::new(ConnectionState::Idle);
        let kept = KeptConnection { endpoint, config, state, timeouts, events };
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
        // Pinned on the stack, because the future is too large to be moved.
        let mut sending = pin!(send(used.connected.connection.clone()));
        let reply = tokio::select! {
            biased;
            reply = sending.as_mut() => Some(reply),
            () = self.expired(deadline, &used) => None,
        };
        // If the driver has ended, its last reply may have come since. There will be no other.
        let last = || unconstrained(sending).now_or_never().unwrap_or_else(connection_ended);
        let Some(reply) = reply.or_else(|| used.connected.progress.has_ended().then(last)) else {
            let why = "no reply within the command time-out";
            return Err(BackendError::new(BackendErrorKind::Unknown, why));
        };
        unanswered.disarm();
        Ok((used, reply))
    }

    /// Completes when a command has timed out, or its connection has ended.
    async fn expired(&self, deadline: CommandDeadline, used: &Established) {
        let progress = &used.connected.progress;
        // The wheel stops with its runtime, and another runtime must not stop with it.
        if deadline.is_whole && Handle::current().id() == used.runtime {
            let expired = self.kept.timeouts.expired();
            // Asked behind the wheel, which wakes all commands after the end.
            if !progress.has_ended() {
                expired.await;
            }
        }
        // While bytes move, the reply is on its way, or a large command is. On a slow link it takes
        // its time.
        let limit = deadline.limit.max(used.silence_limit);
        Box::pin(progress.silent_for(limit, deadline.begun)).await;
    }

    /// Classifies an error, and replaces the connection if the error asks for it.
    pub(super) fn failure(&self, error: RedisError, used: &Established) -> CommandFailure {
        if ends_connection(&error) {
            self.kept.give_up(&used.broken);
        }
        CommandFailure::of(error)
    }

    /// Returns the current connection, if there is one.
    pub(super) fn current(&self) -> Option<Arc<Established>> {
        match &*self.kept.state.borrow() {
            ConnectionState::Established(current) => Some(current.clone()),
            _ => None,
        }
    }

    /// Replaces the current connection, after a reply that does not match its command.
    pub(super) fn replace(&self) {
        if let Some(current) = self.current() {
            self.kept.give_up(&current.broken);
        }
    }

    /// Returns the current connection, or waits for the attempt that is under way.
    ///
    /// The first attempt has its own limit. A later one has that of a command, or the round trips
    /// that it needs on a slow link.
    async fn connected(&self, deadline: CommandDeadline) -> Result<Arc<Established>, BackendError> {
        let unavailable = |why| Err(BackendError::new(BackendErrorKind::Unavailable, why));
        let mut state = self.kept.state.subscribe();
        loop {
            // Cloned, because the start of the task writes the state.
            let now = state.borrow_and_update().clone();
            let limit = match now {
                ConnectionState::Established(current) => return Ok(current),
                ConnectionState::Failed(error) => return Err(error),
                ConnectionState::Connecting(round_trip) => {
                    round_trip.saturating_mul(CONNECT_ROUND_TRIPS)
                }
                ConnectionState::Idle => {
                    self.task.start(|| keep_connected(ReconnectRun(self.kept.clone())));
                    // The server may have to be found first.
                    self.kept.config.connect_timeout.saturating_mul(2)
                }
            };
            let end = deadline.at().max(after(deadline.begun, limit));
            match timeout_at(end, state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_closed)) => return unavailable("the connection was closed"),
                Err(_elapsed) => return unavailable("there is no connection yet"),
            }
        }
    }
}

fn connection_ended<T>() -> Result<T, RedisError> {
    Err(io::Error::from(io::ErrorKind::BrokenPipe).into())
}

/// A command that is under way.
///
/// If it is dropped, the command was not answered: its time-out ended, or its caller gave up
/// earlier.
struct Unanswered<'a> {
    kept: &'a KeptConnection,
    used: &'a Established,
    since: Instant,
}

impl Unanswered<'_> {
    fn disarm(self) {
        std::mem::forget(self);
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        let silence = self.since.elapsed().min(self.used.connected.progress.silence());
        // A caller may have the same time-out, which then ends a moment earlier than this one.
        if silence >= self.used.silence_limit.mul_f64(0.9) {
            self.kept.give_up(&self.used.broken);
        } else {
            self.used.suspected.notify_one();
        }
    }
}
