//! The check of a server before a service begins to use it.

use std::time::Duration;

use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::Instant;
use tracing::warn;

use super::{super::RedisBackend, replies};
use crate::{
    backend::{
        Owner,
        redis::scripts::{Call, SCRIPTS},
    },
    error::BackendError,
};

impl RedisBackend {
    /// Checks at each server what caches and locks need.
    ///
    /// Returns its future in a box, so that its code is compiled with this crate.
    #[inline(never)]
    pub(in super::super) fn check_servers(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        self.check().boxed()
    }

    async fn check(&self) -> Result<(), BackendError> {
        let servers = &self.0.servers;
        servers.ping().await?;
        // The first question has waited for the connection.
        let asked = Instant::now();
        servers.ping().await?;
        check_round_trip(asked.elapsed(), self.0.config.command_timeout);
        let call = Call::over(&SCRIPTS.rights, [].into_iter())
            .arg(format!("bellwether:rights:{}", Owner::fresh()))
            .arg(if servers.is_single() { "PUBLISH" } else { "SPUBLISH" });
        for missing in servers.call_at_each(&call).await? {
            let missing = replies::words(missing)?;
            if !missing.is_empty() {
                let why = format!(
                    "the user of the Redis server may not run {}; add `+{}` to its ACL rule",
                    missing.join(", "),
                    missing.join(" +")
                );
                return Err(BackendError::refused(why));
            }
        }
        // A script may not run it.
        servers.try_wait_at_each().await
    }
}

/// Warns if a server is so far away that a busy moment may count as an outage.
fn check_round_trip(round_trip: Duration, command_timeout: Duration) {
    if round_trip.saturating_mul(2) > command_timeout {
        warn!(
            ?round_trip,
            ?command_timeout,
            "the round trip to Redis is long; set command_timeout"
        );
    }
}
