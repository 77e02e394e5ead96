//! How commands are sent on a link: a script, one command, or several in one write.

use redis::{Cmd, Pipeline, Value, aio::MultiplexedConnection};

use super::{
    failure::{CommandFailure, CommandRetry},
    link::Link,
};
use crate::backend::redis::scripts::Call;

pub(super) type Reply = Result<Value, CommandFailure>;

impl Link {
    /// Runs a script, and sends its source if the server does not know the script.
    ///
    /// With `asking`, an `ASKING` goes before each command, because the node is about to receive
    /// the slot.
    pub(super) async fn call(&self, call: &Call<'_>, asking: bool) -> Reply {
        let (first, reply) = match &call.with_first {
            None => (None, self.run(&call.by_digest, asking).await),
            Some(both) => {
                let mut replies = Box::pin(self.run_all(both, asking)).await?;
                let reply = replies.pop().unwrap_or(Ok(Value::Nil));
                (replies.pop().and_then(Result::err), reply)
            }
        };
        let reply = match reply {
            Err(CommandFailure { retry: Some(CommandRetry::WithSource), .. }) => {
                Box::pin(self.run(&call.with_source(), asking)).await
            }
            reply => reply,
        };
        match (first, reply) {
            // If the script fails as well, the failure of the first command says why.
            (Some(reason), Err(CommandFailure { retry: None, .. })) => Err(reason),
            (_, reply) => reply,
        }
    }

    pub(super) async fn run(&self, command: &Cmd, asking: bool) -> Reply {
        if asking {
            let mut commands = redis::pipe();
            commands.add_command(command.clone());
            let replies = Box::pin(self.run_all(&commands, asking)).await?;
            return replies.into_iter().next().unwrap_or(Ok(Value::Nil));
        }
        let send = |mut client: MultiplexedConnection| async move {
            client.send_packed_command(command).await
        };
        let (used, reply) = self.exchange(send).await?;
        let reply = reply.and_then(Value::extract_error);
        reply.map_err(|error| self.failed(error, &used))
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

    pub(super) async fn send_all(&self, commands: &Pipeline) -> Result<Vec<Reply>, CommandFailure> {
        let send = |mut client: MultiplexedConnection| async move {
            client.send_packed_commands(commands, 0, commands.len()).await
        };
        let (used, replies) = self.exchange(send).await?;
        let failure = |error| self.failed(error, &used);
        let replies = replies.map_err(failure)?.into_iter();
        Ok(replies.map(|value| value.extract_error().map_err(failure)).collect())
    }
}
