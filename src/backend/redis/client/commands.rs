//! Commands, and what goes with them in one write.

use redis::{Cmd, Pipeline, Value};

use super::{
    failure::{CommandFailure, CommandRetry},
    link::{CommandDeadline, Link, Reply},
    node::NodeEvents,
    replicas::{Grants, Replicas},
    sentinel::Endpoint,
    settings::RedisConfig,
};
use crate::{backend::redis::scripts::Call, error::BackendError};

/// Sends commands on one connection.
#[derive(Clone)]
pub(super) struct CommandConnection {
    link: Link,
    grants: Grants,
}

/// The reply to a command.
pub(super) struct Confirmed {
    pub(super) value: Value,
    /// How many replicas confirmed the command, or why the server did not count them. Zero if no
    /// `WAIT` was sent.
    pub(super) replicas: Result<usize, BackendError>,
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
}

impl Confirmed {
    /// Creates the reply to a command that no replica had to confirm.
    pub(super) fn of(value: Value) -> Self {
        Self { value, replicas: Ok(0) }
    }
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
                Box::pin(self.run(&call.with_source(), extras, deadline)).await
            }
            reply => reply,
        }
    }

    /// Runs a script behind the command that stages its data, both in one write.
    async fn call_staged(
        &self,
        call: &Call<'_>,
        staged: &Pipeline,
        extras: Extras,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        let mut replies =
            self.run_all(staged, extras.asking, deadline.for_write(staged)).await?.into_iter();
        let (stage, script) = (replies.next(), replies.next());
        let failure = match script.unwrap_or(Ok(Value::Nil)) {
            Ok(value) => return Ok(Confirmed::of(value)),
            Err(CommandFailure { retry: Some(CommandRetry::WithSource), .. }) => {
                match self.run(&call.with_source(), extras, deadline).await {
                    Ok(reply) => return Ok(reply),
                    Err(failure) => failure,
                }
            }
            Err(failure) => failure,
        };
        // Without its data the script fails, but the reason is that of the stage.
        match (stage, &failure.retry) {
            (Some(Err(refusal)), None) => Err(refusal),
            _ => Err(failure),
        }
    }

    /// Runs commands, all in one write.
    pub(super) async fn run_all(
        &self,
        commands: &Pipeline,
        asking: bool,
        deadline: CommandDeadline,
    ) -> Result<Vec<Reply>, CommandFailure> {
        let asked = asking.then(|| asking_each(commands));
        let commands = asked.as_ref().unwrap_or(commands);
        let replies = self.link.run_all(commands, deadline).await?.into_iter();
        Ok(replies.skip(usize::from(asking)).step_by(1 + usize::from(asking)).collect())
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
            return Box::pin(self.run_behind_others(command, extras, deadline)).await;
        }
        let sent = self.link.exchange(deadline, |mut connection| async move {
            connection.send_packed_command(command).await
        });
        let (used, reply) = sent.await?;
        let reply = reply.and_then(Value::extract_error);
        reply.map(Confirmed::of).map_err(|error| self.link.failure(error, &used))
    }

    async fn run_behind_others(
        &self,
        command: &Cmd,
        extras: Extras,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        let mut commands = redis::pipe();
        if extras.ping_first {
            commands.cmd("PING");
        }
        if extras.asking {
            commands.cmd("ASKING");
        }
        commands.add_command(command.clone());
        let mut replies = self.run_all(&commands, false, deadline).await?;
        replies.pop().unwrap_or(Ok(Value::Nil)).map(Confirmed::of)
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
