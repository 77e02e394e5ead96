//! Commands, and what goes with them in one write.

use redis::{Cmd, Pipeline, Value};

use super::{
    failure::{CommandFailure, CommandRetry},
    link::Link,
};
use crate::backend::redis::scripts::Call;

/// The reply to a command.
pub(super) type Reply = Result<Value, CommandFailure>;

/// Commands that are sent in the same write before a command, with nothing in between.
#[derive(Clone, Copy, Default)]
pub(super) struct Before {
    /// A `PING`.
    ///
    /// Redis flushes replies in the reverse order in which clients became writable. A `PING` sent
    /// first puts this client at the end, so that a waiter hears of a release before its releaser
    /// does.
    ping: bool,
    /// An `ASKING`, for a node that is about to receive the slot.
    pub(super) asking: bool,
}

impl Link {
    /// Runs a script, and sends its source if the server does not know it.
    pub(super) async fn call(&self, call: &Call<'_>, before: Before) -> Reply {
        if let Some(staged) = call.staged() {
            return Box::pin(self.call_staged(call, staged, before)).await;
        }
        let before = Before { ping: call.is_answered_last(), ..before };
        match self.run(call.by_digest(), before).await {
            Err(CommandFailure { retry: Some(CommandRetry::WithSource), .. }) => {
                Box::pin(self.run(&call.with_source(), before)).await
            }
            reply => reply,
        }
    }

    /// Runs a script behind the command that stages its data, both in one write.
    async fn call_staged(&self, call: &Call<'_>, staged: &Pipeline, before: Before) -> Reply {
        let mut replies = self.run_all(staged, before).await?.into_iter();
        let (stage, script) = (replies.next(), replies.next());
        let failure = match script.unwrap_or(Ok(Value::Nil)) {
            Ok(value) => return Ok(value),
            Err(CommandFailure { retry: Some(CommandRetry::WithSource), .. }) => {
                match self.run(&call.with_source(), before).await {
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

    /// Runs a command.
    pub(super) async fn run(&self, command: &Cmd, before: Before) -> Reply {
        if before.ping || before.asking {
            return Box::pin(self.run_behind(command, before)).await;
        }
        let sent =
            self.exchange(
                |mut connection| async move { connection.send_packed_command(command).await },
            );
        let (used, reply) = sent.await?;
        let reply = reply.and_then(Value::extract_error);
        reply.map_err(|error| self.failure(error, &used))
    }

    async fn run_behind(&self, command: &Cmd, before: Before) -> Reply {
        let mut commands = redis::pipe();
        if before.ping {
            commands.cmd("PING");
        }
        if before.asking {
            commands.cmd("ASKING");
        }
        commands.add_command(command.clone());
        let mut replies = self.send_all(&commands).await?;
        replies.pop().unwrap_or(Ok(Value::Nil))
    }

    /// Runs commands, all in one write. Returns the reply to each.
    pub(super) async fn run_all(
        &self,
        commands: &Pipeline,
        before: Before,
    ) -> Result<Vec<Reply>, CommandFailure> {
        if !before.asking {
            return self.send_all(commands).await;
        }
        let mut asking = redis::pipe();
        for command in commands.cmd_iter() {
            asking.cmd("ASKING").add_command(command.clone());
        }
        let replies = self.send_all(&asking).await?;
        Ok(replies.into_iter().skip(1).step_by(2).collect())
    }

    /// Sends commands in one write, and returns the reply to each.
    pub(super) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Reply>, CommandFailure> {
        let sent = self.exchange(|mut connection| async move {
            connection.send_packed_commands(commands, 0, commands.len()).await
        });
        let (used, replies) = sent.await?;
        let failure = |error| self.failure(error, &used);
        let replies = replies.map_err(failure)?.into_iter();
        Ok(replies.map(|value| value.extract_error().map_err(failure)).collect())
    }
}
