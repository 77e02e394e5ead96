//! A new connection to the server that an endpoint names.

use std::sync::Arc;

use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError};
use tokio::{
    sync::Notify,
    time::{Instant, timeout},
};

use super::{
    config::RedisConfig,
    connect_error::{ConnectError, ConnectPhase},
    endpoint::{Endpoint, EndpointWatch},
    handshake::{config, refuse_replica, set_name},
    stream::{Connected, open},
    target::Target,
};
use crate::error::{BackendError, BackendErrorKind};

/// Finds the server, connects, and checks that it can be written to.
///
/// Notifies `broken` when the connection has ended.
pub(super) async fn connect(
    endpoint: &Endpoint,
    settings: &RedisConfig,
    broken: Arc<Notify>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<(Connected, EndpointWatch), BackendError> {
    let (target, watch) = endpoint.find().await?;
    let ended = broken.clone();
    let config = config().set_push_sender(move |push: PushInfo| {
        match push.kind {
            PushKind::Disconnection => ended.notify_one(),
            _ => on_push(push),
        }
        Ok::<(), ()>(())
    });
    match connect_to(&target, config, broken, settings).await {
        Ok(connected) => Ok((connected, watch)),
        Err(error) => {
            watch.report_failure();
            Err(BackendError::new(BackendErrorKind::Unavailable, error))
        }
    }
}

async fn connect_to(
    target: &Target,
    config: AsyncConnectionConfig,
    broken: Arc<Notify>,
    settings: &RedisConfig,
) -> Result<Connected, ConnectError> {
    let limit = settings.connect_timeout;
    let mut phase = ConnectPhase::Credentials;
    let attempt = async {
        let mut connected = open(target, config, broken, &mut phase).await?;
        phase = ConnectPhase::Role;
        let asked = Instant::now();
        refuse_replica(&mut connected.connection).await?;
        connected.round_trip = asked.elapsed();
        if let Some(name) = &settings.client_name {
            set_name(&mut connected.connection, name).await?;
        }
        Ok::<_, RedisError>(connected)
    };
    let outcome = timeout(limit, attempt).await;
    let server = || target.info().addr().to_string();
    match outcome {
        Ok(Ok(connected)) => Ok(connected),
        Ok(Err(error)) => Err(ConnectError::failed(server(), phase, error)),
        Err(_elapsed) => Err(ConnectError::elapsed(server(), phase, limit)),
    }
}
