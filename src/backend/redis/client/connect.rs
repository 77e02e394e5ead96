//! A new connection: to the server that an endpoint names, or for one question.

use std::{io, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, ErrorKind, PushInfo, RedisError, Value,
    aio::{MultiplexedConnection, PubSub},
};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::{
    failure::ClientError,
    sentinel::{Endpoint, EndpointWatch},
    settings::{ConnectTarget, RedisConfig},
    socket::{Progress, Socket},
};
use crate::{
    advice,
    backend::redis::scripts::SCRIPTS,
    error::{BackendError, BackendErrorKind},
    time::after,
};

/// A connection, and its driver, which ends with it.
pub(super) struct Connected {
    pub(super) connection: MultiplexedConnection,
    pub(super) progress: Arc<Progress>,
    _driver: AbortOnDropHandle<()>,
}

/// An attempt to connect that failed.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct ConnectError {
    text: String,
    source: ClientError,
}

/// Finds the server, connects, and checks that it can be written to.
///
/// Replaces `watch` by that of the server. Returns `None` if it reports another server meanwhile,
/// because an attempt at a host that is down may last until its time-out.
pub(super) async fn connect(
    endpoint: &Endpoint,
    watch: &mut EndpointWatch,
    settings: &RedisConfig,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<Option<Connected>, BackendError> {
    let (target, found) = endpoint.find().await?;
    *watch = found;
    let config = config().set_push_sender(move |push: PushInfo| {
        on_push(push);
        Ok::<(), ()>(())
    });
    let attempt = attempt(&target, settings.connect_timeout(), config, async |connection| {
        refuse_replica(connection).await?;
        if let Some(name) = &settings.client_name {
            let mut set = redis::cmd("CLIENT");
            set.arg("SETNAME").arg(name);
            permitted(set.exec_async(connection).await)?;
        }
        Ok(())
    });
    let connected = tokio::select! {
        connected = attempt => connected.map(|(connected, ())| Some(connected)),
        () = watch.outdated() => Ok(None),
    };
    if !matches!(connected, Ok(Some(_))) {
        watch.report_failure();
    }
    connected.map_err(|error| BackendError::new(BackendErrorKind::Unavailable, error))
}

/// Asks a server one question on a connection of its own.
pub(super) async fn ask<T>(
    target: &ConnectTarget,
    limit: Duration,
    question: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
) -> Result<T, ConnectError> {
    attempt(target, limit, config(), question).await.map(|(_, answer)| answer)
}

/// Connects to a server for subscriptions of its own, with RESP2.
pub(super) async fn open_pubsub(target: &ConnectTarget) -> Result<PubSub, RedisError> {
    let settings = target.settings().await?;
    let stream = Socket::reach(target, Progress::new()).await?.secure(target).await?;
    PubSub::new(&settings, stream).await
}

/// Connects and does the first thing on the connection, both within a limit.
async fn attempt<T>(
    target: &ConnectTarget,
    limit: Duration,
    config: AsyncConnectionConfig,
    first: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
) -> Result<(Connected, T), ConnectError> {
    let (end, progress) = (after(Instant::now(), limit), Progress::new());
    let reach = async {
        let settings = target.settings().await?;
        Ok::<_, RedisError>((settings, Socket::reach(target, progress.clone()).await?))
    };
    let reached = timeout_at(end, reach).await.unwrap_or_else(|_| late(limit));
    let (settings, socket) = reached.map_err(|error| ConnectError::unreached(target, error))?;
    let log_in = async {
        let stream = socket.secure(target).await?;
        let (mut connection, driver) =
            MultiplexedConnection::new_with_config(&settings, stream, config).await?;
        let driven = progress.clone();
        let driver = tokio::spawn(async move { driven.drive(driver).await });
        let driver = AbortOnDropHandle::new(driver);
        let answer = first(&mut connection).await?;
        Ok((Connected { connection, progress, _driver: driver }, answer))
    };
    let logged_in = timeout_at(end, log_in).await.unwrap_or_else(|_| late(limit));
    logged_in.map_err(|error| ConnectError::unusable(target, error))
}

fn late<T>(limit: Duration) -> Result<T, RedisError> {
    let why = format!("no answer within {limit:?}");
    Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
}

impl ConnectError {
    fn unreached(target: &ConnectTarget, error: RedisError) -> Self {
        let text = format!("cannot connect to {}", target.info.addr());
        Self { text, source: ClientError(error) }
    }

    /// Creates the error of a server that accepted the connection.
    fn unusable(target: &ConnectTarget, error: RedisError) -> Self {
        let server = target.info.addr();
        use ErrorKind::{AuthenticationFailed, Client, RESP3NotSupported};
        let kind = error.kind();
        let is_refusal = error.code().is_some()
            || matches!(kind, AuthenticationFailed | Client | RESP3NotSupported);
        let text = if is_refusal {
            format!("{server} cannot be used")
        } else {
            let (kind, use_this) = match server {
                redis::ConnectionAddr::TcpTls { .. } => ("without TLS", "`redis:`"),
                _ => ("for TLS", "`rediss:`"),
            };
            format!(
                "{server} accepted the connection, but did not log in; it may be overloaded, or \
                 its port is {kind}: then use {use_this}"
            )
        };
        Self { text, source: ClientError(error) }
    }
}

/// Returns the configuration of a connection, without time-outs of the client library.
///
/// Each wait of this crate has a time-out of its own.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
}

/// Fails if the server is a replica, which cannot be written to.
pub(super) async fn refuse_replica(
    connection: &mut MultiplexedConnection,
) -> Result<(), RedisError> {
    let names = [&b"slave"[..], b"replica"];
    let is_replica =
        |role: &Value| matches!(role, Value::BulkString(role) if names.contains(&&role[..]));
    match permitted(redis::cmd("ROLE").query_async(connection).await)? {
        Some(Value::Array(fields)) if fields.first().is_some_and(is_replica) => {
            Err(RedisError::from((ErrorKind::Client, "the server is a read-only replica")))
        }
        // A replica answers the first write with READONLY.
        _ => Ok(()),
    }
}

/// Returns the reply, or `None` where an ACL forbids the command.
fn permitted<T>(reply: Result<T, RedisError>) -> Result<Option<T>, RedisError> {
    match reply {
        Err(error) if error.is_unrecoverable_error() => Err(error),
        reply => Ok(reply.ok()),
    }
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
