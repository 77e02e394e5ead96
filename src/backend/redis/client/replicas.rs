use std::{fmt, time::Duration};

use redis::Cmd;

use crate::error::{BackendError, BackendErrorKind, Error, ErrorKind};

/// The number of replicas that must confirm a grant before it counts.
///
/// The confirmation is a `WAIT` behind the grant, on a connection of its own. With fewer replicas,
/// the grant is given back, and the try fails with
/// [`Unreplicated`](crate::error::BackendErrorKind::Unreplicated); the caller's retry strategy
/// tries again. A renewal counts no sooner than a grant, so a lease is lost if the replicas stay
/// away for as long as it lasts. A server that refuses `WAIT` confirms nothing:
/// [`RedisBackend::ready`](crate::RedisBackend::ready) tells so at the start.
///
/// # What it does not give
///
/// It makes it unlikely that a failover loses a lease, but not impossible, for `WAIT` is no
/// consensus:
///
/// - A replica that has *not* confirmed may become the master. Each replica that can become the
///   master has the lease only if `count` is the number of *all* replicas. Then one replica that is
///   away prevents every grant.
/// - A replica confirms what it has in memory, and may lose it when it restarts.
/// - A master that is cut off from its replicas grants nothing any more, but may still answer
///   reads.
/// - A release does not wait for replicas, so a failover may undo it. The lease then ends by
///   itself.
///
/// So a fence is needed with it as without it. Each grant and each renewal takes one more round
/// trip, from the server to its replicas. The grants of one process are confirmed in batches: those
/// that are ready wait for the confirmation under way, and share the next one.
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

    /// Returns the `WAIT` command.
    pub(super) fn wait_command(self) -> Cmd {
        let mut wait = redis::cmd("WAIT");
        // A time-out of zero would have no end.
        wait.arg(self.count).arg(self.within.as_millis().max(1).to_string());
        wait
    }

    /// Checks that this number of confirmations is enough.
    pub(super) fn check_met_by(self, confirmed: usize) -> Result<(), BackendError> {
        if u32::try_from(confirmed).is_ok_and(|confirmed| confirmed >= self.count) {
            return Ok(());
        }
        let Self { count, within } = self;
        let why = format!("{confirmed} of {count} confirmed the grant within {within:?}");
        Err(BackendError::new(BackendErrorKind::Unreplicated, why))
    }
}

/// Returns a `WAIT` that the server answers at once, to learn whether it may be sent.
pub(super) fn wait_for_none() -> Cmd {
    let mut wait = redis::cmd("WAIT");
    wait.arg(0).arg(1);
    wait
}

/// The refusal of a `WAIT`.
#[derive(Debug)]
pub(super) struct WaitRefused(pub(super) BackendError);

impl fmt::Display for WaitRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "the server refused `WAIT`, which `replicas` needs; its user may lack `+wait` in its \
             ACL rule",
        )
    }
}

impl std::error::Error for WaitRefused {
    /// Returns the text of the server. The one of a [`BackendError`] says that nothing changed,
    /// which is wrong for the grant.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source()
    }
}
