use std::time::Duration;

use redis::Cmd;

use super::RedisOptions;
use crate::error::{Error, ErrorKind};

/// That a grant counts only when so many replicas have confirmed it: a `WAIT` behind it, on a connection of
/// its own.
///
/// With fewer, what was granted is given back, and the try fails with
/// [`Unreplicated`](crate::error::BackendErrorKind::Unreplicated); it is tried again like any other one. A renewal
/// counts no sooner than a grant, so a lease is lost when the replicas stay away for as long as it lasts.
///
/// # What it does not give
///
/// It makes it unlikely that a failover loses a lease, and not impossible (`WAIT` is no consensus):
///
/// - a replica that has *not* confirmed may be the one that takes the master's place. Only where `count` is
///   the number of *all* replicas has any that takes it the lease, and then each of them that is away keeps
///   everything from being granted;
/// - a replica confirms what it has in memory, and may lose it by a restart of its own;
/// - a master that is cut off grants nothing any more, but may answer others for a while;
/// - a release is not waited for, and may be undone by a failover: then its lease ends by itself.
///
/// So a fence is as needed with it as without. It costs a round trip from the server to its replicas for each
/// grant and each renewal, one behind the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replicas {
    count: u32,
    within: Duration,
}

impl Replicas {
    /// So many replicas of the server that grants, each time within 100 ms. The master itself does not count:
    /// with two replicas, one of them and the master are the majority of three.
    pub fn confirming(count: u32) -> Self {
        Self { count, within: Duration::from_millis(100) }
    }

    /// How long they may take: it must be shorter than the
    /// [command time-out](RedisOptions::command_timeout).
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }

    pub(super) fn check(self, options: &RedisOptions) -> Result<(), Error> {
        let fits = self.count > 0
            && self.within >= Duration::from_millis(1)
            && self.within < options.command_timeout;
        fits.then_some(()).ok_or_else(|| {
            let why = "replicas confirm within a time that is shorter than the command time-out, \
                       and one of them at least";
            Error::new(ErrorKind::InvalidConfig, why)
        })
    }

    /// The command that waits for them.
    pub(super) fn wait(self) -> Cmd {
        let mut wait = redis::cmd("WAIT");
        // A time of zero would be one without end.
        wait.arg(self.count).arg(self.within.as_millis().max(1).to_string());
        wait
    }

    /// Whether so many are enough.
    pub(super) fn are(self, confirmed: usize) -> bool {
        u32::try_from(confirmed).is_ok_and(|confirmed| confirmed >= self.count)
    }
}
