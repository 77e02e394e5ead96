//! Commands that are sent on a new connection before it is used.

use redis::{AsyncConnectionConfig, ErrorKind, RedisError, Value, aio::MultiplexedConnection};
use tracing::warn;

use crate::{advice, backend::redis::scripts::SCRIPTS};

/// Returns the configuration of a connection, without time-outs of the client library.
///
/// Each wait of this crate has a time-out of its own.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
}

/// Fails if the server is a replica, which cannot be written to.
pub(super) async fn refuse_replica(
    connection: &mut MultiplexedConnection,
) -> Result<(), RedisError> {
    let role: Result<Value, _> = redis::cmd("ROLE").query_async(connection).await;
    match role {
        Ok(Value::Array(fields)) if fields.first().is_some_and(is_replica) => {
            Err(RedisError::from((ErrorKind::Client, "the server is a read-only replica")))
        }
        Err(error) if error.is_unrecoverable_error() => Err(error),
        // An ACL may forbid ROLE. A replica then answers the first write with READONLY.
        _ => Ok(()),
    }
}

/// Names the connection for `CLIENT LIST`.
pub(super) async fn set_name(
    connection: &mut MultiplexedConnection,
    name: &str,
) -> Result<(), RedisError> {
    let set = redis::cmd("CLIENT").arg("SETNAME").arg(name).exec_async(connection).await;
    match set {
        Err(error) if error.is_unrecoverable_error() => Err(error),
        // An ACL may forbid it. The connection works without a name.
        _ => Ok(()),
    }
}

fn is_replica(role: &Value) -> bool {
    matches!(role, Value::BulkString(role) if role == b"slave" || role == b"replica")
}

/// Loads the scripts into the server, and warns if the server may evict leases.
pub(super) async fn prepare(connection: &mut MultiplexedConnection) {
    // An ACL may forbid either command. Each script is then sent with its first call.
    let _: Result<(), _> = SCRIPTS.load().query_async(connection).await;
    let memory: Result<String, _> = redis::cmd("INFO").arg("memory").query_async(connection).await;
    let policy = memory.ok().and_then(|memory| {
        let line = memory.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"))?;
        Some(line.trim().to_owned())
    });
    if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
        warn!(
            target: advice::TARGET,
            policy,
            "the Redis server may evict leases when its memory is full; \
             set maxmemory-policy to noeviction"
        );
    }
}
