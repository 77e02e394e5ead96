//! The check of a server before a service begins to use it.

use std::time::Duration;

use futures_util::{FutureExt, future::BoxFuture};
use redis::Value;
use tokio::time::Instant;
use tracing::warn;

use super::{super::RedisBackend, replies};
use crate::{
    backend::{
        Owner,
        redis::scripts::{Call, SCRIPTS},
    },
    error::{BackendError, BackendErrorKind},
};

/// The first version whose scripts and commands suffice.
const OLDEST: (u32, u32) = (6, 2);

impl RedisBackend {
    /// Checks each server: its version, and the rights that caches and locks need.
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
        match servers.run_at_each(redis::cmd("INFO").arg("server")).await {
            // An ACL may forbid the command, which says nothing.
            Err(error) if error.kind() == BackendErrorKind::Refused => {}
            replies => replies?.iter().try_for_each(check_version)?,
        }
        let call = Call::over(&SCRIPTS.rights, [].into_iter())
            .arg(format!("bellwether:rights:{}", Owner::fresh()))
            .arg(if self.0.process_channels.is_some() { "PUBLISH" } else { "SPUBLISH" });
        for missing in servers.call_at_each(&call).await? {
            let missing = replies::words(missing)?;
            if !missing.is_empty() {
                let why = format!(
                    "the user of the Redis server may not run {}; add `+{}` to its ACL rule",
                    missing.join(", "),
                    missing.join(" +")
                );
                return Err(BackendError::new(BackendErrorKind::Refused, why));
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

/// Checks a reply to `INFO server`.
fn check_version(info: &Value) -> Result<(), BackendError> {
    let text = match info {
        Value::BulkString(text) => String::from_utf8_lossy(text),
        Value::VerbatimString { text, .. } => text.as_str().into(),
        _ => return Ok(()),
    };
    let version = text.lines().find_map(|line| line.strip_prefix("redis_version:"));
    let mut parts = version.unwrap_or_default().split('.').map(|part| part.parse().ok());
    let (Some(Some(major)), Some(Some(minor))) = (parts.next(), parts.next()) else {
        return Ok(());
    };
    if (major, minor) < OLDEST {
        let why = format!("the server is Redis {major}.{minor}; Redis 6.2 or later is needed");
        return Err(BackendError::new(BackendErrorKind::Refused, why));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_is_too_old_is_named() {
        let check = |info: &str| check_version(&Value::BulkString(info.into()));
        for known in ["# Server\r\nredis_version:6.2.0\r\n", "redis_version:10.0.1", "", "x"] {
            assert!(check(known).is_ok(), "{known}");
        }
        let error = check("# Server\r\nredis_version:6.0.16\r\n").err();
        assert!(error.is_some_and(|error| format!("{error:#}").contains("is Redis 6.0")));
    }
}
