//! The connection for commands.
//!
//! A task keeps it connected (`reconnect`). A command takes the current connection. If the last
//! attempt to connect failed, the command fails at once, and the next attempt comes sooner; if an
//! attempt is under way, the command waits for it within its own time-out. So nothing queues up
//! while the server is away.
//!
//! A command times out when its connection was silent for the command time-out (`progress`).
//!
//! A connection on which one command timed out gets no further commands. It may be dead, and a
//! second try must not use it again. Or it lost a reply, and every later reply would go to the
//! wrong command. Commands that are under way on it may still be answered. If a caller drops a
//! command before its time-out, a `PING` tests the connection.

use std::{pin::pin, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{Arg, Cmd, RedisError, Value, aio::MultiplexedConnection};
use tokio::{
    runtime::Handle,
    sync::watch,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    clock::ServerClock,
    config::RedisConfig,
    endpoint::Endpoint,
    events::NodeEvents,
    failure::{CommandFailure, CommandRetry, ends_connection},
    grants::{Grant, Grants},
    pacer::Demand,
    reconnect::{ConnectionState, Established, KeptConnection, ReconnectRun, keep_connected},
    replicas::Replicas,
    task::OnDemandTask,
    timeout_wheel::TimeoutWheel,
};
use crate::{
    backend::redis::scripts::Call,
    error::{BackendError, BackendErrorKind},
    time::after,
};

#[derive(Clone)]
pub(super) struct CommandConnection {
    kept: Arc<KeptConnection>,
    task: Arc<OnDemandTask>,
    grants: Grants,
}

/// The round trips that a new connection takes, with some to spare.
const CONNECT_ROUND_TRIPS: u32 = 8;
/// The rate at which buffers on the way are assumed to empty, in bytes each second.
const BUFFERED_RATE: f64 = 8e6;

/// When a command began, and how long its connection may be silent.
#[derive(Clone, Copy)]
pub(super) struct CommandDeadline {
    begun: Instant,
    limit: Duration,
    /// The command begins now, and has the command time-out, so that the wheel can time it.
    is_whole: bool,
    demand: Demand,
}

impl CommandDeadline {
    /// Returns the deadline of a command that begins now.
    pub(super) fn from_now(config: &RedisConfig) -> Self {
        Self {
            begun: Instant::now(),
            limit: config.command_timeout,
            is_whole: true,
            demand: Demand::Request,
        }
    }

    /// Returns the deadline of a command with a large argument.
    ///
    /// What the buffers on the way have taken may not have arrived for long.
    fn for_write(self, command: &Cmd) -> Self {
        let bytes: usize = command
            .args_iter()
            .map(|arg| match arg {
                Arg::Simple(bytes) => bytes.len(),
                _ => 0,
            })
            .sum();
        let limit = self.limit + Duration::from_secs_f64(bytes as f64 / BUFFERED_RATE);
        Self { limit, is_whole: false, ..self }
    }

    /// Returns the same deadline for a later step of the command.
    pub(super) fn remainder(self) -> Self {
        Self { is_whole: false, ..self }
    }

    /// Returns the deadline of a command that had to wait for its connection until now.
    pub(super) fn restarted(self) -> Self {
        Self { begun: Instant::now(), is_whole: false, ..self }
    }

    /// Returns the deadline of a script, which grants, renews or ends a lease.
    pub(super) fn for_lease(self) -> Self {
        Self { demand: Demand::Lease, ..self }
    }

    pub(super) fn demand(self) -> Demand {
        self.demand
    }

    pub(super) fn begun(self) -> Instant {
        self.begun
    }

    /// Returns when the time of a command without progress ends.
    pub(super) fn at(self) -> Instant {
        after(self.begun, self.limit)
    }
}

/// Commands that are sent in the same write as a command, with nothing in between.
#[derive(Clone, Copy, Default)]
pub(super) struct Extras {
    /// A `PING` before it.
    ///
    /// Redis flushes replies in the reverse order in which clients became writable. A `PING` sent
    /// first puts this client at the end, so that a waiter hears of a release before its releaser
    /// does.
    pub(super) ping_first: bool,
    /// An `ASKING` before it, for a node that is about to receive the slot.
    pub(super) asking: bool,
    /// A `WAIT` behind it and other grants, for this many replicas.
    pub(super) replicas: Option<Replicas>,
    /// A `TIME` behind it, if a sample of the clock of the server is due.
    pub(super) timed: bool,
}

/// The reply to a command, and what was learnt with it.
pub(super) struct Confirmed {
    pub(super) value: Value,
    /// How many replicas confirmed the command, if a `WAIT` was sent.
    pub(super) replicas: usize,
    /// The time of the server in microseconds, if it was asked for.
    pub(super) time: Option<u64>,
}

impl CommandConnection {
    pub(super) fn new(endpoint: Endpoint, config: RedisConfig, events: NodeEvents) -> Self {
        let timeouts = TimeoutWheel::new(config.command_timeout);
        let state = watch::Sender::new(ConnectionState::Idle);
        let kept = KeptConnection { endpoint, config, state, timeouts, events };
        Self { kept: Arc::new(kept), task: Arc::default(), grants: Grants::default() }
    }

    /// Runs a script, and sends its source if the server does not know it.
    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        extras: Extras,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        let deadline = deadline.for_lease();
        if let Some(stage) = call.stage() {
            return Box::pin(self.call_staged(call, stage, extras, deadline)).await;
        }
        let extras = Extras { ping_first: call.is_answered_last(), ..extras };
        match self.run(call.by_digest(), extras, deadline).await {
            Err(CommandFailure { retry: Some(CommandRetry::WithSource), .. }) => {
                Box::pin(self.run(&call.with_source(), extras, deadline.remainder())).await
            }
            reply => reply,
        }
    }

    /// Runs a script behind the command that stages its data, both in one write.
    async fn call_staged(
        &self,
        call: &Call<'_>,
        stage: &Cmd,
        extras: Extras,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        let mut pipeline = redis::pipe();
        for command in [stage, call.by_digest()] {
            if extras.asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(command.clone());
        }
        let at = usize::from(extras.asking);
        let count = 2 * (1 + at);
        let sent = self.exchange(deadline.for_write(stage), |mut connection| async move {
            connection.send_packed_commands(&pipeline, 0, count).await
        });
        let (used, replies) = sent.await?;
        let mut replies = replies.map_err(|error| self.failure(error, &used))?;
        let reply = replies.pop().unwrap_or(Value::Nil).extract_error();
        let staged = replies.swap_remove(at).extract_error();
        let failure = match reply.map_err(|error| self.failure(error, &used)) {
            Ok(value) => return Ok(Confirmed { value, replicas: 0, time: None }),
            Err(CommandFailure { retry: Some(CommandRetry::WithSource), .. }) => {
                match self.run(&call.with_source(), extras, deadline.remainder()).await {
                    Ok(reply) => return Ok(reply),
                    Err(failure) => failure,
                }
            }
            Err(failure) => failure,
        };
        // Without its data the script fails, but the reason is that of the stage.
        match (staged, &failure.retry) {
            (Err(error), None) => Err(self.failure(error, &used)),
            _ => Err(failure),
        }
    }

    /// Runs scripts by their digests, all in one write.
    pub(super) async fn call_all(
        &self,
        calls: &[&Call<'_>],
        replicas: Option<Replicas>,
        deadline: CommandDeadline,
    ) -> Result<Vec<Result<Confirmed, CommandFailure>>, BackendError> {
        if let Some(replicas) = replicas {
            let grant = |call: &&Call<'_>| {
                let grant = (call.by_digest().clone(), false);
                self.grants.send(self, grant, replicas, deadline.for_lease())
            };
            return Ok(join_all(calls.iter().map(grant)).await);
        }
        let mut pipeline = redis::pipe();
        for call in calls {
            pipeline.add_command(call.by_digest().clone());
        }
        let count = calls.len();
        let sent = self.exchange(deadline.for_lease(), |mut connection| async move {
            connection.send_packed_commands(&pipeline, 0, count).await
        });
        let (used, replies) = sent.await?;
        let replies = replies.map_err(|error| self.failure(error, &used).error)?;
        let each = replies.into_iter().map(|value| match value.extract_error() {
            Ok(value) => Ok(Confirmed { value, replicas: 0, time: None }),
            Err(error) => Err(self.failure(error, &used)),
        });
        Ok(each.collect())
    }

    /// Runs a command.
    pub(super) async fn run(
        &self,
        command: &Cmd,
        extras: Extras,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        if let Some(replicas) = extras.replicas {
            let grant = (command.clone(), extras.asking);
            return Box::pin(self.grants.send(self, grant, replicas, deadline)).await;
        }
        if extras.ping_first || extras.asking {
            return Box::pin(self.run_with_extras(command, extras, deadline)).await;
        }
        let has_turn = |current: Arc<Established>| current.clock.takes_turn();
        if extras.timed && self.current().is_none_or(has_turn) {
            return Box::pin(self.run_timed(command, deadline)).await;
        }
        let sent = self.exchange(deadline, |mut connection| async move {
            connection.send_packed_command(command).await
        });
        let (used, reply) = sent.await?;
        match reply.and_then(Value::extract_error) {
            Ok(value) => {
                let time = if extras.timed { used.clock.now() } else { None };
                Ok(Confirmed { value, replicas: 0, time })
            }
            Err(error) => Err(self.failure(error, &used)),
        }
    }

    /// Runs a command and asks for the time of the server, in one write.
    async fn run_timed(
        &self,
        command: &Cmd,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        let mut pipeline = redis::pipe();
        pipeline.add_command(command.clone()).cmd("TIME");
        let asked = ServerClock::ask();
        let sent = self.exchange(deadline, |mut connection| async move {
            connection.send_packed_commands(&pipeline, 0, 2).await
        });
        let (used, replies) = sent.await?;
        let reply = replies.and_then(|mut replies| {
            // Without the right to ask, the age of an entry is not known.
            used.clock.sample(&asked, replies.pop());
            let value = replies.pop().unwrap_or(Value::Nil).extract_error()?;
            Ok(Confirmed { value, replicas: 0, time: used.clock.now() })
        });
        reply.map_err(|error| self.failure(error, &used))
    }

    async fn run_with_extras(
        &self,
        command: &Cmd,
        extras: Extras,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        let mut pipeline = redis::pipe();
        if extras.ping_first {
            pipeline.cmd("PING");
        }
        if extras.asking {
            pipeline.cmd("ASKING");
        }
        pipeline.add_command(command.clone());
        let skipped = usize::from(extras.ping_first) + usize::from(extras.asking);
        let sent = self.exchange(deadline, |mut connection| async move {
            connection.send_packed_commands(&pipeline, skipped, 1).await
        });
        let (used, replies) = sent.await?;
        let reply = replies.and_then(|mut replies| {
            let value = replies.pop().unwrap_or(Value::Nil).extract_error()?;
            Ok(Confirmed { value, replicas: 0, time: None })
        });
        reply.map_err(|error| self.failure(error, &used))
    }

    /// Sends grants and a `WAIT` in one write, and tells each caller.
    pub(super) async fn send_grants(
        &self,
        grants: Vec<Grant>,
        replicas: Replicas,
        deadline: CommandDeadline,
    ) {
        let (mut pipeline, mut count) = (redis::pipe(), 1);
        for grant in &grants {
            if grant.asking {
                pipeline.cmd("ASKING");
            }
            pipeline.add_command(grant.command.clone());
            count += 1 + usize::from(grant.asking);
        }
        pipeline.add_command(replicas.wait_command());
        let sent = self.exchange(deadline, |mut connection| async move {
            connection.send_packed_commands(&pipeline, 0, count).await
        });
        let sent = sent.await.and_then(|(used, replies)| match replies {
            Ok(replies) => Ok((used, replies)),
            Err(error) => Err(self.failure(error, &used).error),
        });
        let (used, mut replies) = match sent {
            Ok(sent) => sent,
            Err(error) => {
                return grants.into_iter().for_each(|grant| grant.tell(Err(error.clone().into())));
            }
        };
        let replicas = confirmations(replies.pop());
        let mut replies = replies.into_iter();
        for grant in grants {
            let value = replies.nth(usize::from(grant.asking)).unwrap_or(Value::Nil);
            grant.tell(match value.extract_error() {
                Ok(value) => Ok(Confirmed { value, replicas, time: None }),
                Err(error) => Err(self.failure(error, &used)),
            });
        }
    }

    /// Replaces the current connection, after a reply that does not match its command.
    pub(super) fn replace(&self) {
        if let Some(current) = self.current() {
            self.kept.give_up(&current.broken);
        }
    }

    /// Sends something on the current connection, and returns the connection with the reply.
    async fn exchange<T, F>(
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
        let CommandDeadline { begun, limit, is_whole, .. } = deadline;
        let unanswered = Unanswered { kept: &self.kept, used: &used, since: begun };
        // Pinned on the stack, because the future is too large to be moved.
        let sending = pin!(send(used.connected.connection.clone()));
        let expired = async {
            // The wheel stops with its runtime, and another runtime must not stop with it.
            match is_whole && Handle::current().id() == used.runtime {
                true => self.kept.timeouts.expired().await,
                false => Box::pin(sleep_until(deadline.at())).await,
            }
            // While bytes move, the reply is on its way, or a large command is. On a slow link it
            // takes its time.
            let limit = limit.max(used.patience);
            Box::pin(used.connected.progress.silent_for(limit, begun)).await;
        };
        tokio::select! {
            biased;
            reply = sending => {
                unanswered.disarm();
                Ok((used, reply))
            }
            () = expired => {
                let why = "no reply within the command time-out";
                Err(BackendError::new(BackendErrorKind::Unknown, why))
            }
        }
    }

    /// Classifies an error, and replaces the connection if the error asks for it.
    fn failure(&self, error: RedisError, used: &Established) -> CommandFailure {
        if ends_connection(&error) {
            self.kept.give_up(&used.broken);
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
                ConnectionState::Failed(error) => {
                    if self.kept.events.pacer.demand(deadline.demand)
                        && timeout_at(deadline.at(), state.changed()).await.is_ok()
                    {
                        continue;
                    }
                    return Err(error);
                }
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
        if silence >= self.used.patience.mul_f64(0.9) {
            self.kept.give_up(&self.used.broken);
        } else {
            self.used.doubted.notify_one();
        }
    }
}

/// Returns how many replicas a `WAIT` counted.
fn confirmations(wait: Option<Value>) -> usize {
    match wait {
        Some(Value::Int(count)) => usize::try_from(count).unwrap_or(0),
        _ => 0,
    }
}
