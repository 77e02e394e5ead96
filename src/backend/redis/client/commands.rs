//! Commands, and what goes with them in one write.

use std::sync::Arc;

use futures_util::future::join_all;
use redis::{Cmd, Pipeline, Value};

use super::{
    clock::ServerClock,
    config::RedisConfig,
    deadline::CommandDeadline,
    endpoint::Endpoint,
    events::NodeEvents,
    failure::{CommandFailure, CommandRetry},
    grants::Grants,
    link::{Confirmed, Link},
    reconnect::Established,
    replicas::Replicas,
};
use crate::{
    backend::redis::scripts::{Call, Staged},
    error::BackendError,
};

/// Sends commands on one connection.
#[derive(Clone)]
pub(super) struct CommandConnection {
    link: Link,
    grants: Grants,
}

/// The reply to one of several commands.
pub(super) type Reply = Result<Value, BackendError>;

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

impl CommandConnection {
    pub(super) fn new(endpoint: Endpoint, config: RedisConfig, events: NodeEvents) -> Self {
        Self { link: Link::new(endpoint, config, events), grants: Grants::default() }
    }

    /// Replaces the current connection, after a reply that does not match its command.
    pub(super) fn replace(&self) {
        self.link.replace();
    }

    /// Runs a script, and sends its source if the server does not know it.
    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        extras: Extras,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        if let Some(staged) = call.staged() {
            return Box::pin(self.call_staged(call, staged, extras, deadline)).await;
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
        staged: &Staged,
        extras: Extras,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        let at = usize::from(extras.asking);
        let asking;
        let pipeline = if extras.asking {
            asking = asking_each(&staged.both);
            &asking
        } else {
            &staged.both
        };
        let count = 2 * (1 + at);
        let sent = self.link.exchange(deadline.for_write(pipeline), |mut connection| async move {
            connection.send_packed_commands(pipeline, 0, count).await
        });
        let (used, replies) = sent.await?;
        let mut replies = replies.map_err(|error| self.link.failure(error, &used))?;
        let reply = replies.pop().unwrap_or(Value::Nil).extract_error();
        let staged = replies.swap_remove(at).extract_error();
        let failure = match reply.map_err(|error| self.link.failure(error, &used)) {
            Ok(value) => return Ok(Confirmed { value, replicas: Ok(0), time: None }),
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
            (Err(error), None) => Err(self.link.failure(error, &used)),
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
                self.grants.send(&self.link, grant, replicas, deadline)
            };
            return Ok(join_all(calls.iter().map(grant)).await);
        }
        let mut pipeline = redis::pipe();
        for call in calls {
            pipeline.add_command(call.by_digest().clone());
        }
        let count = calls.len();
        let sent = self.link.exchange(deadline, |mut connection| async move {
            connection.send_packed_commands(&pipeline, 0, count).await
        });
        let (used, replies) = sent.await?;
        let replies = replies.map_err(|error| self.link.failure(error, &used).error)?;
        let each = replies.into_iter().map(|value| match value.extract_error() {
            Ok(value) => Ok(Confirmed { value, replicas: Ok(0), time: None }),
            Err(error) => Err(self.link.failure(error, &used)),
        });
        Ok(each.collect())
    }

    /// Runs commands, all in one write. If they are `timed`, returns the time of the server, too.
    pub(super) async fn run_all(
        &self,
        mut commands: Pipeline,
        timed: bool,
        deadline: CommandDeadline,
    ) -> Result<(Vec<Reply>, Option<u64>), BackendError> {
        if timed {
            commands.cmd("TIME");
        }
        let (asked, count) = (ServerClock::ask(), commands.len());
        let sent = self.link.exchange(deadline, |mut connection| async move {
            connection.send_packed_commands(&commands, 0, count).await
        });
        let (used, replies) = sent.await?;
        let mut replies = replies.map_err(|error| self.link.failure(error, &used).error)?;
        if timed {
            used.clock.sample(&asked, replies.pop());
        }
        let each = replies.into_iter().map(Value::extract_error);
        let each = each.map(|reply| reply.map_err(|error| self.link.failure(error, &used).error));
        Ok((each.collect(), if timed { used.clock.now() } else { None }))
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
            return Box::pin(self.grants.send(&self.link, grant, replicas, deadline)).await;
        }
        if extras.ping_first || extras.asking {
            return Box::pin(self.run_with_extras(command, extras, deadline)).await;
        }
        let has_turn = |current: Arc<Established>| current.clock.takes_turn();
        if extras.timed && self.link.current().is_none_or(has_turn) {
            return Box::pin(self.run_timed(command, deadline)).await;
        }
        let sent = self.link.exchange(deadline, |mut connection| async move {
            connection.send_packed_command(command).await
        });
        let (used, reply) = sent.await?;
        match reply.and_then(Value::extract_error) {
            Ok(value) => {
                let time = if extras.timed { used.clock.now() } else { None };
                Ok(Confirmed { value, replicas: Ok(0), time })
            }
            Err(error) => Err(self.link.failure(error, &used)),
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
        let sent = self.link.exchange(deadline, |mut connection| async move {
            connection.send_packed_commands(&pipeline, 0, 2).await
        });
        let (used, replies) = sent.await?;
        let reply = replies.and_then(|mut replies| {
            // Without the right to ask, the age of an entry is not known.
            used.clock.sample(&asked, replies.pop());
            let value = replies.pop().unwrap_or(Value::Nil).extract_error()?;
            Ok(Confirmed { value, replicas: Ok(0), time: used.clock.now() })
        });
        reply.map_err(|error| self.link.failure(error, &used))
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
        let sent = self.link.exchange(deadline, |mut connection| async move {
            connection.send_packed_commands(&pipeline, skipped, 1).await
        });
        let (used, replies) = sent.await?;
        let reply = replies.and_then(|mut replies| {
            let value = replies.pop().unwrap_or(Value::Nil).extract_error()?;
            Ok(Confirmed { value, replicas: Ok(0), time: None })
        });
        reply.map_err(|error| self.link.failure(error, &used))
    }
}

/// Returns the same commands with an `ASKING` before each.
fn asking_each(commands: &Pipeline) -> Pipeline {
    let mut pipeline = redis::pipe();
    for command in commands.cmd_iter() {
        pipeline.cmd("ASKING").add_command(command.clone());
    }
    pipeline
}
