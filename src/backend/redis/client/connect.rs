//! A new connection to the server that an endpoint names.

use std::sync::Arc;

use futures_util::future::select_ok;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, PushInfo, PushKind, RedisError,
    aio::MultiplexedConnection,
};
use socket2::SockRef;
use tokio::{
    net::{TcpStream, lookup_host},
    sync::Notify,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    address::keepalive,
    config::RedisConfig,
    endpoint::{Endpoint, EndpointWatch},
    failure::ClientError,
    handshake::{config, refuse_replica},
    write_batcher::WriteBatcher,
};
use crate::error::{BackendError, BackendErrorKind};

/// A connection, and its driver, which ends with it.
pub(super) struct Connected {
    pub(super) connection: MultiplexedConnection,
    _driver: Option<AbortOnDropHandle<()>>,
}

/// Finds the server, connects, and checks that it can be written to.
///
/// Notifies `broken` when the connection has ended.
pub(super) async fn connect(
    endpoint: &Endpoint,
    settings: &RedisConfig,
    broken: Arc<Notify>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<(Connected, EndpointWatch), BackendError> {
    let (client, watch) = endpoint.find().await?;
    let ended = broken.clone();
    let config = config().set_push_sender(move |push: PushInfo| {
        match push.kind {
            PushKind::Disconnection => ended.notify_one(),
            _ => on_push(push),
        }
        Ok::<(), ()>(())
    });
    let attempt = async {
        let mut connected = open(&client, config, broken).await?;
        refuse_replica(&mut connected.connection).await?;
        Ok::<_, RedisError>(connected)
    };
    let unavailable = BackendErrorKind::Unavailable;
    let error = match timeout(settings.connect_timeout, attempt).await {
        Ok(Ok(connected)) => return Ok((connected, watch)),
        Ok(Err(error)) => BackendError::new(unavailable, ClientError(error)),
        Err(_elapsed) => {
            BackendError::new(unavailable, "no connection within the connect time-out")
        }
    };
    watch.report_failure();
    Err(error)
}

async fn open(
    client: &Client,
    config: AsyncConnectionConfig,
    broken: Arc<Notify>,
) -> Result<Connected, RedisError> {
    let info = client.get_connection_info();
    let ConnectionAddr::Tcp(host, port) = info.addr() else {
        // The client library makes the streams of TLS and of Unix sockets.
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        return Ok(Connected { connection, _driver: None });
    };
    let socket = connect_any(host, *port).await?;
    socket.set_nodelay(true)?;
    SockRef::from(&socket).set_tcp_keepalive(&keepalive())?;
    let stream = WriteBatcher::new(socket);
    let settings = info.redis_settings();
    let (connection, driver) =
        MultiplexedConnection::new_with_config(settings, stream, config).await?;
    let driver = async move {
        driver.await;
        // After a failed write, the driver ends without a `Disconnection` push.
        broken.notify_one();
    };
    let driver = AbortOnDropHandle::new(tokio::spawn(driver));
    Ok(Connected { connection, _driver: Some(driver) })
}

/// Connects to the address of the host that answers first.
async fn connect_any(host: &str, port: u16) -> Result<TcpStream, RedisError> {
    let addresses = lookup_host((host, port)).await?;
    let attempts: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if attempts.is_empty() {
        return Err(RedisError::from((ErrorKind::InvalidClientConfig, "the host has no address")));
    }
    let (socket, _others) = select_ok(attempts).await?;
    Ok(socket)
}
