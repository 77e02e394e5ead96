//! A new connection: for commands or pushes, or for one question.

use std::{io, sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, PushInfo, RedisError, Value,
    aio::{MultiplexedConnection, PubSub},
    from_redis_value,
};
use tokio::time::{Instant, timeout_at};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::warn;

use super::{
    settings::RedisConfig,
    socket::{Progress, Socket},
};
use crate::{
    advice,
    backend::redis::scripts::SCRIPTS,
    error::{BackendError, BackendErrorKind},
    time::after,
};

/// A connection, and its driver, which ends with the connection.
pub(super) struct Connection {
    /// The client library's side of the connection.
    pub(super) client: MultiplexedConnection,
    pub(super) progress: Arc<Progress>,
    /// Cancelled when the connection must not be used any more. The task then makes the next one.
    pub(super) broken: CancellationToken,
    /// How long commands wait for the next connection after a break of this connection.
    pub(super) reconnect_limit: Duration,
    _driver: AbortOnDropHandle<()>,
}

pub(super) type OnPush = Box<dyn Fn(PushInfo) + Send + Sync>;

/// Connects to a server, and asks the first question, both within the connect time-out.
pub(super) async fn connect<T>(
    server: &ConnectionInfo,
    config: &RedisConfig,
    on_push: Option<OnPush>,
    first: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
) -> Result<(Connection, T), BackendError> {
    let limit = config.command_timeout;
    let progress = Progress::new();
    let end = after(Instant::now(), config.connect_timeout());
    let reach = async {
        let settings = config.log_in(server).await?;
        let socket = Socket::reach(server, progress.clone()).await?;
        Ok((settings, socket))
    };
    let reached = timeout_at(end, reach).await.unwrap_or_else(|_| late(config));
    let (settings, socket) =
        reached.map_err(|error| failed(format!("cannot connect to {}", server.addr()), error))?;
    let log_in = async {
        let stream = socket.secure(server, config).await?;
        let (mut client, driver) =
            MultiplexedConnection::new_with_config(&settings, stream, library(on_push)).await?;
        let mut driver = Box::pin(driver);
        let asked_at = Instant::now();
        // The answer may take as long as the connect time-out leaves.
        let answer = tokio::select! {
            answer = first(&mut client) => answer?,
            () = &mut driver => return Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        };
        // It takes up to four round trips to connect. A slower first answer was a busy moment.
        let round_trip = asked_at.elapsed().min(limit);
        let reconnect_limit = limit.saturating_add(round_trip.saturating_mul(4));
        let driven = progress.clone();
        let driver = tokio::spawn(async move { driven.drive(driver, limit).await });
        let _driver = AbortOnDropHandle::new(driver);
        let broken = CancellationToken::new();
        Ok((Connection { client, progress, broken, reconnect_limit, _driver }, answer))
    };
    let logged_in = timeout_at(end, log_in).await.unwrap_or_else(|_| late(config));
    logged_in.map_err(|error| unusable(server.addr(), error))
}

/// Connects to a server for subscriptions of its own, with RESP2.
pub(super) async fn open_pubsub(
    server: &ConnectionInfo,
    config: &RedisConfig,
) -> Result<PubSub, RedisError> {
    let settings = config.log_in(server).await?;
    let socket = Socket::reach(server, Progress::new()).await?;
    let stream = socket.secure(server, config).await?;
    PubSub::new(&settings, stream).await
}

/// Returns the client library's configuration, without a time-out, because this crate limits each
/// wait.
fn library(on_push: Option<OnPush>) -> AsyncConnectionConfig {
    let config =
        AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(1024);
    match on_push {
        None => config,
        Some(on_push) => config.set_push_sender(move |push: PushInfo| {
            on_push(push);
            Ok::<(), ()>(())
        }),
    }
}

fn late<T>(config: &RedisConfig) -> Result<T, RedisError> {
    let why = format!("no answer within {:?}", config.connect_timeout());
    Err(io::Error::new(io::ErrorKind::TimedOut, why).into())
}

/// Returns an error of this kind with the words of the client library.
fn failed(what: String, error: RedisError) -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, format!("{what}: {error}"))
}

/// Returns the error of a server that accepted the connection.
fn unusable(server: &ConnectionAddr, error: RedisError) -> BackendError {
    use ErrorKind::{AuthenticationFailed, Client, RESP3NotSupported};
    let is_refusal =
        error.code().is_some() || matches!(error.kind(), AuthenticationFailed | Client);
    let lacks_hello = error.detail().is_some_and(|text| text.contains("'HELLO'"));
    if lacks_hello || error.kind() == RESP3NotSupported {
        return failed(format!("{server} is older than Redis 6, or HELLO is renamed"), error);
    }
    if is_refusal {
        return failed(format!("{server} cannot be used"), error);
    }
    if error.to_string().to_lowercase().contains("certificate") {
        let what = format!(
            "{server} shows a certificate that is not trusted; if its CA is not known here, name \
             the file of the CA in the variable `SSL_CERT_FILE`"
        );
        return failed(what, error);
    }
    let cause = match server {
        // No advice here is to do without TLS.
        ConnectionAddr::TcpTls { .. } => "is without TLS: then give its port for TLS",
        _ => "is for TLS: then use `rediss:`",
    };
    let text = format!(
        "{server} accepted the connection, but did not log in; it may be overloaded, or its port \
         {cause}"
    );
    failed(text, error)
}

/// Fails if the server is a replica, or of another kind than the settings say. Gives the connection
/// its name.
///
/// An ACL may forbid each of the commands. Then a replica answers the first write with READONLY,
/// and a node of a cluster answers most commands with MOVED.
pub(super) async fn refuse_unfit(
    connection: &mut MultiplexedConnection,
    name: Option<&str>,
    is_cluster: bool,
) -> Result<(), RedisError> {
    let mut questions = redis::pipe();
    questions.cmd("ROLE").cmd("INFO").arg("cluster");
    if let Some(name) = name {
        questions.cmd("CLIENT").arg("SETNAME").arg(name);
    }
    let replies = connection.send_packed_commands(&questions, 0, questions.len()).await?;
    let unfit = |why| Err(RedisError::from((ErrorKind::Client, why)));
    if let Some(Value::Array(fields)) = replies.first()
        && let Some(Value::BulkString(role)) = fields.first()
    {
        match &role[..] {
            b"slave" | b"replica" => return unfit("the server is a read-only replica"),
            b"sentinel" => return unfit("the server is a sentinel: use `sentinels`"),
            _ => {}
        }
    }
    let info = replies.into_iter().nth(1).and_then(|info| from_redis_value::<String>(info).ok());
    let is_node = info.is_some_and(|info| info.lines().any(|line| line == "cluster_enabled:1"));
    if is_node && !is_cluster {
        return unfit("the server is a node of a cluster: use `cluster`");
    }
    Ok(())
}

/// Explains the error of a server that does not know the question, such as a plain server in the
/// place of a sentinel. Keeps the words of the server.
pub(super) fn explain_unfit(error: RedisError, why: &'static str) -> RedisError {
    let said = error.detail().unwrap_or_default();
    if said.contains("cluster support disabled") || said.starts_with("unknown command") {
        return RedisError::from((ErrorKind::Client, why, said.to_owned()));
    }
    error
}

/// Loads the scripts into the server, and warns if the server may evict leases.
pub(super) async fn prepare(mut connection: MultiplexedConnection) {
    // An ACL may forbid either command. Each script is then sent with its first call.
    let _: Result<(), _> = SCRIPTS.load().query_async(&mut connection).await;
    let ask = redis::cmd("INFO").arg("memory").query_async::<String>(&mut connection).await;
    let memory = ask.unwrap_or_default();
    let policy = memory.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"));
    if let Some(policy) = policy.map(str::trim).filter(|policy| *policy != "noeviction") {
        warn!(
            target: advice::TARGET,
            policy,
            "the Redis server may evict leases when its memory is full; \
             set maxmemory-policy to noeviction"
        );
    }
}
