//! Commands, and what goes with them in one write.

use redis::{Cmd, Pipeline, Value};

use super::{
    failure::{CommandFailure, CommandRetry},
    link::Link,
};
use crate::backend::redis::scripts::Call;

/// The reply to a command.
pub(super) type Reply = Result<Value, CommandFailure>;

/// Returns the failure of a first command in place of the second's, for which it is the reason.
fn with_reason(first: Option<CommandFailure>, reply: Reply) -> Reply {
    match (first, reply) {
        (Some(reason), Err(CommandFailure { retry: None, .. })) => Err(reason),
        (_, reply) => reply,
    }
}

impl Link {
    /// Runs a script, and sends its source if the server does not know it.
    ///
    /// With `asking`, an `ASKING` goes before each command, for a node that is about to receive the
    /// slot.
    pub(super) async fn call(&self, call: &Call<'_>, asking: bool) -> Reply {
        let (first, reply) = match call.with_first() {
            Some(both) => Box::pin(self.run_both(both, asking)).await?,
            None => (None, self.run(call.by_digest(), asking).await),
        };
        let reply = match reply {
            Err(CommandFailure { retry: Some(CommandRetry::WithSource), .. }) => {
                Box::pin(self.run(&call.with_source(), asking)).await
            }
            reply => reply,
        };
        with_reason(first, reply)
    }

    /// Runs a command behind another one, both in one write. Returns the failure of the first, and
    /// the reply to the second.
    async fn run_both(
        &self,
        commands: &Pipeline,
        asking: bool,
    ) -> Result<(Option<CommandFailure>, Reply), CommandFailure> {
        let mut replies = self.run_all(commands, asking).await?;
        let (second, first) = (replies.pop(), replies.pop());
        Ok((first.and_then(Result::err), second.unwrap_or(Ok(Value::Nil))))
    }

    /// Runs a command.
    pub(super) async fn run(&self, command: &Cmd, asking: bool) -> Reply {
        if asking {
            let mut commands = redis::pipe();
            commands.add_command(command.clone());
            return Box::pin(self.run_both(&commands, asking)).await?.1;
        }
        let sent =
            self.exchange(
                |mut connection| async move { connection.send_packed_command(command).await },
            );
        let (used, reply) = sent.await?;
        let reply = reply.and_then(Value::extract_error);
        reply.map_err(|error| self.failure(error, &used))
    }

    /// Runs commands, all in one write. Returns the reply to each.
    pub(super) async fn run_all(
        &self,
        commands: &Pipeline,
        asking: bool,
    ) -> Result<Vec<Reply>, CommandFailure> {
        if !asking {
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
