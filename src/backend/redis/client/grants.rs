//! Grants that replicas confirm, in batches with one `WAIT` each.
//!
//! A `WAIT` holds up whatever comes behind it on its connection. So while one is under way, the
//! next grants are gathered here. They are sent in one write with the next `WAIT`, which confirms
//! all writes of its connection before it.

use std::sync::{Arc, Mutex};

use redis::{Cmd, RedisError, Value};
use tokio::sync::oneshot;

use super::{
    deadline::CommandDeadline,
    failure::CommandFailure,
    link::{Confirmed, Link},
    replicas::{Replicas, WaitRefused},
};
use crate::{
    error::{BackendError, BackendErrorKind},
    sync::lock,
};

/// The grants of one connection that are not sent yet.
#[derive(Clone, Default)]
pub(super) struct Grants(Arc<Mutex<Gathered>>);

#[derive(Default)]
struct Gathered {
    grants: Vec<GrantCommand>,
    /// A task sends them.
    is_sending: bool,
}

struct GrantCommand {
    command: Cmd,
    /// An `ASKING` goes before it.
    asking: bool,
    told: oneshot::Sender<Result<Confirmed, CommandFailure>>,
}

impl GrantCommand {
    fn tell(self, reply: Result<Confirmed, CommandFailure>) {
        // The caller may have left. It undoes what was granted.
        let _ = self.told.send(reply);
    }
}

impl Grants {
    /// Sends a grant with the next batch, and waits for its reply.
    pub(super) async fn send(
        &self,
        link: &Link,
        (command, asking): (Cmd, bool),
        replicas: Replicas,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        let (told, reply) = oneshot::channel();
        let must_start = {
            let mut gathered = lock(&self.0);
            gathered.grants.push(GrantCommand { command, asking, told });
            !std::mem::replace(&mut gathered.is_sending, true)
        };
        if must_start {
            let mut sending = Sending { grants: self.clone(), has_ended: false };
            let link = link.clone();
            tokio::spawn(async move {
                while let Some(grants) = sending.next() {
                    send_all(&link, grants, replicas, deadline.restarted()).await;
                }
            });
        }
        reply.await.unwrap_or_else(|_ended| {
            let why = "the runtime that sent the grant has ended";
            Err(BackendError::new(BackendErrorKind::Unknown, why).into())
        })
    }
}

/// The task that sends. However it ends, the next grant starts another one.
struct Sending {
    grants: Grants,
    has_ended: bool,
}

impl Sending {
    /// Takes the grants whose callers still wait. Returns `None` if there are none.
    fn next(&mut self) -> Option<Vec<GrantCommand>> {
        let mut gathered = lock(&self.grants.0);
        let mut grants = std::mem::take(&mut gathered.grants);
        grants.retain(|grant| !grant.told.is_closed());
        if grants.is_empty() {
            (self.has_ended, gathered.is_sending) = (true, false);
            return None;
        }
        Some(grants)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        if !self.has_ended {
            *lock(&self.grants.0) = Gathered::default();
        }
    }
}

/// Sends grants and a `WAIT` in one write, and tells each caller.
async fn send_all(
    link: &Link,
    grants: Vec<GrantCommand>,
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
    let sent = link.exchange(deadline, |mut connection| async move {
        connection.send_packed_commands(&pipeline, 0, count).await
    });
    let sent = sent.await.and_then(|(used, replies)| match replies {
        Ok(replies) => Ok((used, replies)),
        Err(error) => Err(link.failure(error, &used).error),
    });
    let (used, mut replies) = match sent {
        Ok(sent) => sent,
        Err(error) => {
            return grants.into_iter().for_each(|grant| grant.tell(Err(error.clone().into())));
        }
    };
    let replicas = confirmations(replies.pop(), |error| link.failure(error, &used));
    let mut replies = replies.into_iter();
    for grant in grants {
        let value = replies.nth(usize::from(grant.asking)).unwrap_or(Value::Nil);
        grant.tell(match value.extract_error() {
            Ok(value) => Ok(Confirmed { value, replicas: replicas.clone(), time: None }),
            Err(error) => Err(link.failure(error, &used)),
        });
    }
}

/// Returns how many replicas a `WAIT` counted, or why the server refused to count them.
///
/// The grants in front of it happened all the same, so their callers must undo them.
fn confirmations(
    wait: Option<Value>,
    failure: impl FnOnce(RedisError) -> CommandFailure,
) -> Result<usize, BackendError> {
    match wait.map(Value::extract_error) {
        Some(Ok(Value::Int(count))) => Ok(usize::try_from(count).unwrap_or(0)),
        Some(Err(refusal)) => {
            let refused = WaitRefused(failure(refusal).error);
            Err(BackendError::new(BackendErrorKind::Unreplicated, refused))
        }
        _ => Ok(0),
    }
}
