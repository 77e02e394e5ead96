//! The backend traits. Each operation calls one script, and reads the reply.

mod leases;
mod replies;
mod store;
mod tier;

use std::{sync::atomic::Ordering, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use redis::Value;
use tokio::time::Instant;
use tracing::warn;

use super::{
    RedisBackend,
    client::Confirmation,
    scripts::{Call, SCRIPTS},
};
use crate::{
    backend::Owner,
    error::{BackendError, BackendErrorKind},
};

#[cfg(any(fuzzing, test))]
pub(super) use self::replies::check_any_reply;
pub(super) use self::tier::Heartbeat;

impl RedisBackend {
    /// Checks at each server what caches and locks need.
    ///
    /// Returns a boxed future, so that the code of the future is compiled with this crate.
    #[inline(never)]
    pub(super) fn check_servers(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        async {
            let servers = &self.0.servers;
            let command_timeout = servers.config.command_timeout;
            // The first ping waits for the connection.
            servers.ping().await?;
            let sent = Instant::now();
            servers.ping().await?;
            let round_trip = sent.elapsed();
            // A busy moment may count as an outage.
            if round_trip.saturating_mul(2) > command_timeout {
                warn!(
                    ?round_trip,
                    ?command_timeout,
                    "the round trip to Redis is long; set command_timeout"
                );
            }
            let call = Call::with_keys(&SCRIPTS.rights, [].into_iter())
                .arg(format!("bellwether:rights:{}", Owner::fresh()))
                .arg(if servers.is_single() { "PUBLISH" } else { "SPUBLISH" });
            for missing in servers.call_at_each(&call).await? {
                let missing = replies::text(missing)?;
                let missing: Vec<_> = missing.split_whitespace().collect();
                if !missing.is_empty() {
                    let commands = missing.join(", ");
                    let rights = missing.join(" +");
                    return Err(BackendError::refused(format!(
                        "the user of the Redis server may not run {commands}; add `+{rights}` to \
                         its ACL rule"
                    )));
                }
            }
            // A script may not run `WAIT`.
            servers.try_wait_at_each().await
        }
        .boxed()
    }

    async fn run<T>(
        &self,
        call: &Call<'_>,
        read: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<T, BackendError> {
        let reply = self.0.servers.call(call).await?;
        self.checked(read(reply))
    }

    /// Runs a script that grants a lease or writes a mark, and reads the reply.
    ///
    /// A script that could not do all its work in one run is called again, until the command
    /// time-out has passed.
    async fn grant<T>(
        &self,
        call: &Call<'_>,
        read: impl FnOnce(Value) -> Result<T, BackendError>,
    ) -> Result<(T, Confirmation), BackendError> {
        let end = Instant::now() + self.0.servers.config.command_timeout;
        loop {
            let (reply, confirmation) = self.0.servers.grant(call).await?;
            if replies::word(&reply) != b"again" || Instant::now() >= end {
                return Ok((self.checked(read(reply))?, confirmation));
            }
        }
    }

    /// Replaces the connections if a reply could not be read, because such a reply belongs to
    /// another command.
    fn checked<T>(&self, reply: Result<T, BackendError>) -> Result<T, BackendError> {
        if reply.as_ref().is_err_and(|error| error.kind() == BackendErrorKind::Unknown) {
            self.0.servers.give_up_connections();
        }
        reply
    }

    /// Warns once, if a script reports that the server refused to publish.
    fn note_refusal(&self, is_refused: bool) {
        if is_refused && !self.0.publish_refused.swap(true, Ordering::Relaxed) {
            warn!("Redis refuses to publish, so waiters learn late of what ends; permit PUBLISH");
        }
    }
}

/// Returns whole milliseconds, at least one, because Redis refuses a time of zero.
fn millis(time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    millis.clamp(1, 1 << 52)
}
