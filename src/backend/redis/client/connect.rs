//! A new connection: for commands or pushes, or for one question.

use std::{io, pin::pin, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use redis::{
    AsyncConnectionConfig, ErrorKind, PushInfo, RedisError, Value,
    aio::{MultiplexedConnection, PubSub},
};
use tokio::time::{Instant, timeout_at};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};
use tracing::warn;

use super::{
    failure::ClientError,
    settings::{ConnectTarget, RedisConfig},
    socket::{Progress, Socket},
};
use crate::{advice, backend::redis::scripts::SCRIPTS, time::after};

/// A connection, and its driver, which ends with it.
pub(super) struct Connection {
    pub(super) commands: MultiplexedConnection,
    pub(super) progress: Arc<Progress>,
    /// Cancelled to have this connection replaced.
    pub(super) broken: CancellationToken,
    /// How long commands wait for the next connection when this one broke.
    pub(super) reconnect_limit: Duration,
    _driver: AbortOnDropHandle<()>,
}

impl Connection {
    /// Sends something, and waits for the reply. Returns `None` if the connection was silent for
    /// this long before.
    pub(super) async fn exchange<T, F>(
        &self,
        limit: Duration,
        send: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Option<Result<T, RedisError>>
    where
        F: Future<Output = Result<T, RedisError>>,
    {
        // Pinned on the stack, because the future is too large to be moved.
        let sending = pin!(send(self.commands.clone()));
        self.progress.reply(sending, limit).await
    }
}

/// An attempt to connect that failed.
#[derive(Debug, thiserror::Error)]
#[error("{text}")]
pub(super) struct ConnectError {
    text: String,
    source: ClientError,
}

/// Connects to a server, and checks that it can be written to.
pub(super) async fn connect(
    target: &ConnectTarget,
    settings: &RedisConfig,
    broken: CancellationToken,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<Connection, ConnectError> {
    let config = config().set_push_sender(move |push: PushInfo| {
        on_push(push);
        Ok::<(), ()>(())
    });
    let name = settings.client_name.as_deref();
    let attempt = attempt(target, settings.connect_timeout(), config, async |connection| {
        let asked = Instant::now();
        refuse_replica(connection, name).await?;
        Ok(asked.elapsed())
    });
    let Attempt { connection, driver, progress, answer: round_trip } = attempt.await?;
    let (driven, limit) = (progress.clone(), settings.command_timeout);
    let driver = tokio::spawn(async move { driven.drive(driver, limit).await });
    let driver = AbortOnDropHandle::new(driver);
    // It takes up to four round trips to make one. A slower first answer was a busy moment.
    let reconnect_limit = limit.saturating_add(round_trip.min(limit).saturating_mul(4));
    Ok(Connection { commands: connection, progress, broken, reconnect_limit, _driver: driver })
}

/// Asks a server one question on a connection of its own.
pub(super) async fn ask<T>(
    target: &ConnectTarget,
    limit: Duration,
    question: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
) -> Result<T, ConnectError> {
    attempt(target, limit, config(), question).await.map(|attempt| attempt.answer)
}

/// Connects to a server for subscriptions of its own, with RESP2.
pub(super) async fn open_pubsub(target: &ConnectTarget) -> Result<PubSub, RedisError> {
    let settings = target.settings().await?;
    let stream = Socket::reach(target, Progress::new()).await?.secure(target).await?;
    PubSub::new(&settings, stream).await
}

/// An attempt that worked: a connection, and the answer to the first question on it.
struct Attempt<T> {
    connection: MultiplexedConnection,
    driver: BoxFuture<'static, ()>,
    progress: Arc<Progress>,
    answer: T,
}

/// Connects and does the first thing on the connection, both within a limit.
async fn attempt<T>(
    target: &ConnectTarget,
    limit: Duration,
    config: AsyncConnectionConfig,
    first: impl AsyncFnOnce(&mut MultiplexedConnection) -> Result<T, RedisError>,
) -> Result<Attempt<T>, ConnectError> {
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
        let mut driver = driver.boxed();
        let answer = tokio::select! {
            answer = first(&mut connection) => answer?,
            () = &mut driver => return Err(io::Error::from(io::ErrorKind::BrokenPipe).into()),
        };
        Ok((connection, driver, answer))
    };
    let logged_in = timeout_at(end, log_in).await.unwrap_or_else(|_| late(limit));
    let (connection, driver, answer) =
        logged_in.map_err(|error| ConnectError::unusable(target, error))?;
    Ok(Attempt { connection, driver, progress, answer })
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

/// Fails if the server is a replica, which cannot be written to. Gives the connection its name.
///
/// An ACL may forbid either command. A replica then answers the first write with READONLY.
pub(super) async fn refuse_replica(
    connection: &mut MultiplexedConnection,
    name: Option<&str>,
) -> Result<(), RedisError> {
    let mut questions = redis::pipe();
    questions.cmd("ROLE");
    if let Some(name) = name {
        questions.cmd("CLIENT").arg("SETNAME").arg(name);
    }
    let replies = connection.send_packed_commands(&questions, 0, questions.len()).await?;
    let names = [&b"slave"[..], b"replica"];
    let is_replica =
        |role: &Value| matches!(role, Value::BulkString(role) if names.contains(&&role[..]));
    match replies.first() {
        Some(Value::Array(fields)) if fields.first().is_some_and(is_replica) => {
            Err(RedisError::from((ErrorKind::Client, "the server is a read-only replica")))
        }
        _ => Ok(()),
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
