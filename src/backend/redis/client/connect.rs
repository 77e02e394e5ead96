//! A new connection: to the server that an endpoint names, or for one question.

use std::time::Duration;

use redis::{AsyncConnectionConfig, PushInfo, RedisError, aio::MultiplexedConnection};
use tokio::time::{Instant, timeout};

use super::{
    config::RedisConfig,
    connect_error::{ConnectError, ConnectPhase},
    endpoint::{Endpoint, EndpointWatch},
    handshake::{config, refuse_replica, set_name},
    stream::{Connected, Reached},
    target::ConnectTarget,
};
use crate::error::{BackendError, BackendErrorKind};

/// The rest of an attempt may take this many times as long as it took to reach the server. It has
/// three round trips, where the socket has one.
const REST: u32 = 6;

/// Finds the server, connects, and checks that it can be written to.
///
/// Replaces `watch` by that of the server. Returns `None` if it reports another server meanwhile,
/// because an attempt at a host that is down may last until its time-out. Calls `on_end` when the
/// connection has ended.
pub(super) async fn connect(
    endpoint: &Endpoint,
    watch: &mut EndpointWatch,
    settings: &RedisConfig,
    on_end: impl FnOnce() + Send + 'static,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<Option<Connected>, BackendError> {
    let (target, found) = endpoint.find().await?;
    *watch = found;
    let config = config().set_push_sender(move |push: PushInfo| {
        on_push(push);
        Ok::<(), ()>(())
    });
    let connected = tokio::select! {
        connected = connect_to(&target, config, on_end, settings) => connected.map(Some),
        () = watch.outdated() => Ok(None),
    };
    if !matches!(connected, Ok(Some(_))) {
        watch.report_failure();
    }
    connected.map_err(|error| BackendError::new(BackendErrorKind::Unavailable, error))
}

async fn connect_to(
    target: &ConnectTarget,
    config: AsyncConnectionConfig,
    on_end: impl FnOnce() + Send + 'static,
    settings: &RedisConfig,
) -> Result<Connected, ConnectError> {
    let (begun, limit) = (Instant::now(), settings.connect_timeout);
    let mut phase = ConnectPhase::Credentials;
    let reached = timeout(limit, Reached::new(target, &mut phase)).await;
    let reached = reached.map_err(|_elapsed| ConnectError::elapsed(target, phase, limit))?;
    let reached = reached.map_err(|error| ConnectError::failed(target, phase, error))?;
    // A server that is far away could be reached, and may need as long again.
    let took = begun.elapsed();
    let limit = limit.saturating_sub(took).max(took.saturating_mul(REST).min(limit));
    phase = ConnectPhase::Login;
    let attempt = async {
        let mut connected = reached.log_in(config, on_end).await?;
        phase = ConnectPhase::Role;
        let asked = Instant::now();
        refuse_replica(&mut connected.connection).await?;
        connected.round_trip = asked.elapsed();
        if let Some(name) = &settings.client_name {
            set_name(&mut connected.connection, name).await?;
        }
        Ok::<_, RedisError>(connected)
    };
    let connected = timeout(limit, attempt).await;
    let connected = connected.map_err(|_elapsed| ConnectError::elapsed(target, phase, limit))?;
    connected.map_err(|error| ConnectError::failed(target, phase, error))
}

/// Asks a server one question on a connection of its own. `what` it is asked for stands in the
/// error.
pub(super) async fn ask<T, F: Future<Output = Result<T, RedisError>>>(
    target: &ConnectTarget,
    what: &'static str,
    limit: Duration,
    question: impl FnOnce(MultiplexedConnection) -> F,
) -> Result<T, ConnectError> {
    let mut phase = ConnectPhase::Credentials;
    let attempt = async {
        let reached = Reached::new(target, &mut phase).await?;
        phase = ConnectPhase::Login;
        let connected = reached.log_in(config(), || ()).await?;
        phase = ConnectPhase::Question(what);
        question(connected.connection.clone()).await
    };
    let answer = timeout(limit, attempt).await;
    let answer = answer.map_err(|_elapsed| ConnectError::elapsed(target, phase, limit))?;
    answer.map_err(|error| ConnectError::failed(target, phase, error))
}
