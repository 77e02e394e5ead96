//! Grants that replicas confirm, in batches with one `WAIT` each.
//!
//! A `WAIT` holds up whatever comes behind it on its connection. So such grants have a connection
//! of their own. While one `WAIT` is under way, the next grants are gathered. They are sent in one
//! write with the next `WAIT`, which confirms all writes of its connection before it.

use std::{
    error::Error as _,
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{Cmd, Value};
use tokio::sync::oneshot;

use super::{
    failure::{CommandFailure, CommandRetry},
    link::Link,
};
use crate::{
    backend::redis::scripts::Call,
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    sync::lock,
};

/// The number of replicas that must confirm a grant before it counts.
///
/// The confirmation is a `WAIT` behind the grant. With fewer replicas, the grant is given back, and
/// the try fails with [`Unreplicated`](crate::error::BackendErrorKind::Unreplicated); the caller's
/// retry strategy tries again. A renewal counts no sooner than a grant, so a lease is lost if the
/// replicas stay away for as long as it lasts. Each grant and each renewal takes one more round
/// trip, from the server to its replicas.
///
/// # What it does not give
///
/// It makes it unlikely that a failover loses a lease, but not impossible, for `WAIT` is no
/// consensus. So a fence is needed with it as without it:
///
/// - A replica that has *not* confirmed may become the master. Only if `count` is the number of
///   *all* replicas, each of them has the lease. Then one replica that is away prevents every
///   grant.
/// - A replica confirms what it has in memory, and may lose it when it restarts.
/// - A master that is cut off from its replicas grants nothing any more, but may still answer
///   reads.
/// - A release does not wait for replicas, so a failover may undo it. The lease then ends by
///   itself.
///
/// # Examples
///
/// ```
/// use std::{fmt, time::Duration};
/// use bellwether::{RedisBackend, backend::Replicas};
///
/// let backend = RedisBackend::builder()
///     .server("redis://127.0.0.1/")
///     .replicas(Replicas::confirming(1).within(Duration::from_millis(50)))
///     .build()?;
/// # Ok::<_, bellwether::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    count: u32,
    within: Duration,
}

impl Replicas {
    /// Requires `count` replicas of the server that grants, each time within 100 ms.
    ///
    /// The master itself does not count: with two replicas, one replica and the master are the
    /// majority of three.
    pub fn confirming(count: u32) -> Self {
        Self { count, within: Duration::from_millis(100) }
    }

    /// Sets how long the replicas may take.
    ///
    /// It must be at least 1 ms, and shorter than the [command
    /// time-out](crate::backend::RedisBackendBuilder::command_timeout). Defaults to 100 ms.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }

    pub(in super::super) fn check(self, command_timeout: Duration) -> Result<(), Error> {
        let invalid = |why| Err(Error::new(ErrorKind::InvalidConfig, why));
        if self.count == 0 {
            return invalid(
                "`Replicas::confirming(0)` waits for no replica; \
                 give 1 or more, or leave `replicas` out"
                    .to_owned(),
            );
        }
        if self.within < Duration::from_millis(1) || self.within >= command_timeout {
            return invalid(format!(
                "replicas may take {:?} to confirm, but it must be at least 1 ms and less than the \
                 command time-out of {command_timeout:?}; set `Replicas::within` or \
                 `command_timeout`",
                self.within
            ));
        }
        Ok(())
    }

    fn wait_command(self) -> Cmd {
        let mut wait = redis::cmd("WAIT");
        // A time-out of zero would have no end.
        wait.arg(self.count).arg(self.within.as_millis().max(1).to_string());
        wait
    }

    /// Checks that this number of confirmations is enough.
    fn check_met_by(self, confirmed: usize) -> Confirmation {
        if u32::try_from(confirmed).is_ok_and(|confirmed| confirmed >= self.count) {
            return Ok(());
        }
        let Self { count, within } = self;
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

/// Whether enough replicas confirmed a grant, or the error of one that does not count.
pub(in super::super) type Confirmation = Result<(), BackendError>;

/// The reply to a grant.
pub(super) type GrantReply = Result<(Value, Confirmation), CommandFailure>;

/// The connection for grants that replicas confirm.
#[derive(Clone)]
pub(super) struct Grants {
    pub(super) link: Link,
    needed: Replicas,
    /// Those that are not sent yet.
    gathered: Arc<Mutex<Vec<GrantCommand>>>,
    /// Held while a batch is under way.
    turn: Arc<tokio::sync::Mutex<()>>,
}

struct GrantCommand {
    command: Cmd,
    /// An `ASKING` goes before it.
    asking: bool,
    told: oneshot::Sender<GrantReply>,
}

impl GrantCommand {
    fn tell(self, reply: GrantReply) {
        // The caller may have left. It undoes what was granted.
        let _ = self.told.send(reply);
    }
}

impl Grants {
    pub(super) fn new(link: Link, needed: Replicas) -> Self {
        Self { link, needed, gathered: Arc::default(), turn: Arc::default() }
    }

    /// Runs a script, and sends its source if the server does not know it.
    pub(super) async fn call(&self, call: &Call<'_>, asking: bool) -> GrantReply {
        match self.send(call.by_digest().clone(), asking).await {
            Err(CommandFailure { retry: Some(CommandRetry::WithSource), .. }) => {
                self.send(call.with_source(), asking).await
            }
            reply => reply,
        }
    }

    /// Sends a grant with the next batch, and waits for its reply.
    ///
    /// Each grant has a task that waits for its turn, so no caller depends on another. The first
    /// task sends the grants of those behind it, too.
    async fn send(&self, command: Cmd, asking: bool) -> GrantReply {
        let (told, reply) = oneshot::channel();
        lock(&self.gathered).push(GrantCommand { command, asking, told });
        let grants = self.clone();
        tokio::spawn(async move {
            let _turn = grants.turn.lock().await;
            let mut batch = std::mem::take(&mut *lock(&grants.gathered));
            batch.retain(|grant| !grant.told.is_closed());
            if !batch.is_empty() {
                grants.send_all(batch).await;
            }
        });
        reply.await.unwrap_or_else(|_ended| {
            let why = "the runtime that sent the grant has ended";
            Err(BackendError::new(BackendErrorKind::Unknown, why).into())
        })
    }

    /// Sends grants and a `WAIT` in one write, and tells each caller.
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
                return grants.into_iter().for_each(|grant| grant.tell(Err(error.clone().into())));
            }
        };
        let confirmation = match replies.pop() {
            Some(Ok(Value::Int(count))) => {
                self.needed.check_met_by(usize::try_from(count).unwrap_or(0))
            }
            // The grants happened all the same, so their callers must undo them.
            Some(Err(CommandFailure { error, .. })) => {
                Err(wait_refused(BackendErrorKind::Unreplicated, &error))
            }
            _ => self.needed.check_met_by(0),
        };
        let mut replies = replies.into_iter();
        for grant in grants {
            let reply = replies.nth(usize::from(grant.asking)).unwrap_or(Ok(Value::Nil));
            grant.tell(reply.map(|value| (value, confirmation.clone())));
        }
    }
}
