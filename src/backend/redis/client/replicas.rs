//! Grants that replicas confirm, in batches with one `WAIT` each.
//!
//! A `WAIT` holds up all later commands of its connection, so such grants have a connection of
//! their own. While a `WAIT` is under way, the next grants are gathered. The gathered grants are
//! sent in one write with the next `WAIT`, which confirms all earlier writes of its connection.

use std::{
    error::Error as _,
    sync::{Arc, Mutex},
};

use redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::{
    commands::Reply,
    failure::{CommandFailure, CommandRetry},
    link::Link,
    settings::Replicas,
};
use crate::{
    backend::redis::scripts::Call,
    error::{BackendError, BackendErrorKind},
    sync::lock,
};

impl Replicas {
    fn wait_command(self) -> Cmd {
        let mut wait = redis::cmd("WAIT");
        // A time-out of zero would have no end.
        wait.arg(self.count).arg(self.within.as_millis().max(1).to_string());
        wait
    }

    fn confirmation(self, reply: Option<Reply>) -> Confirmation {
        let confirmed = match reply {
            Some(Ok(Value::Int(confirmed))) => confirmed,
            // The server has granted, so the callers must undo their grants.
            Some(Err(CommandFailure { error, .. })) => {
                return Err(wait_refused(BackendErrorKind::Unreplicated, &error));
            }
            _ => 0,
        };
        let Self { count, within } = self;
        if confirmed >= i64::from(count) {
            return Ok(());
        }
        let why = format!("{confirmed} of {count} confirmed the grant within {within:?}");
        Err(BackendError::new(BackendErrorKind::Unreplicated, why))
    }
}

/// Returns the error for the refusal of a `WAIT`, with the words of the server.
pub(super) fn wait_refused(kind: BackendErrorKind, refusal: &BackendError) -> BackendError {
    let said = refusal.source().map(ToString::to_string).unwrap_or_default();
    let why = format!(
        "the server refused `WAIT`, which `replicas` needs; its user may lack `+wait` in its ACL \
         rule: {said}"
    );
    BackendError::new(kind, why)
}

/// Whether enough replicas confirmed a grant. A grant with an error does not count.
pub(in super::super) type Confirmation = Result<(), BackendError>;

pub(super) type GrantReply = Result<(Value, Confirmation), CommandFailure>;

/// The connection for grants that replicas confirm.
#[derive(Clone)]
pub(super) struct Grants {
    pub(super) link: Link,
    needed: Replicas,
    /// The grants that are not sent yet.
    gathered: Arc<Mutex<Vec<GrantCommand>>>,
    /// Held while a batch is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
}

struct GrantCommand {
    command: Cmd,
    /// An `ASKING` goes before the command.
    asking: bool,
    /// Closed if the caller has left. A caller that leaves undoes the grant.
    reply_to: oneshot::Sender<GrantReply>,
}

impl Grants {
    pub(super) fn new(link: Link, needed: Replicas) -> Self {
        Self { link, needed, gathered: Arc::default(), turn: Arc::default() }
    }

    /// Runs a script, and sends its source if the server does not know the script.
    pub(super) async fn call(&self, call: &Call<'_>, asking: bool) -> GrantReply {
        match self.send(call.by_digest.clone(), asking).await {
            Err(CommandFailure { retry: Some(CommandRetry::WithSource), .. }) => {
                self.send(call.with_source(), asking).await
            }
            reply => reply,
        }
    }

    /// Sends a grant with the next batch, and waits for its reply.
    ///
    /// Each grant has a task that waits for its turn, so no caller depends on the future of another
    /// caller. The first task also sends the grants whose tasks wait behind it.
    async fn send(&self, command: Cmd, asking: bool) -> GrantReply {
        let (reply_to, reply) = oneshot::channel();
        lock(&self.gathered).push(GrantCommand { command, asking, reply_to });
        let grants = self.clone();
        tokio::spawn(async move {
            let _turn = grants.turn.lock().await;
            let mut batch = std::mem::take(&mut *lock(&grants.gathered));
            batch.retain(|grant| !grant.reply_to.is_closed());
            if !batch.is_empty() {
                grants.send_all(batch).await;
            }
        });
        reply.await.unwrap_or_else(|_ended| {
            let why = "the runtime that sent the grant has ended";
            Err(BackendError::new(BackendErrorKind::Unknown, why).into())
        })
    }

    /// Sends grants and a `WAIT` in one write, and sends each caller its reply.
    async fn send_all(&self, grants: Vec<GrantCommand>) {
        let mut commands = redis::pipe();
        for grant in &grants {
            if grant.asking {
                commands.cmd("ASKING");
            }
            commands.add_command(grant.command.clone());
        }
        commands.add_command(self.needed.wait_command());
        let mut replies = match self.link.send_all(&commands).await {
            Ok(replies) => replies,
            Err(CommandFailure { error, .. }) => {
                for grant in grants {
                    let _ = grant.reply_to.send(Err(error.clone().into()));
                }
                return;
            }
        };
        let confirmation = self.needed.confirmation(replies.pop());
        let mut replies = replies.into_iter();
        for grant in grants {
            let reply = replies.nth(usize::from(grant.asking)).unwrap_or(Ok(Value::Nil));
            let _ = grant.reply_to.send(reply.map(|value| (value, confirmation.clone())));
        }
    }
}
