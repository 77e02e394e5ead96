//! Making a connection, and the pauses between failed attempts.

use std::{sync::Arc, time::Duration};

use futures_util::future::select_ok;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisError, Value, aio::MultiplexedConnection,
    io::tcp::TcpSettings,
};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    net::{TcpStream, lookup_host},
    sync::Notify,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use super::{
    RedisOptions,
    gather::Gathering,
    script::SCRIPTS,
    target::{Place, Target},
};
use crate::error::{BackendError, BackendErrorKind, Error, ErrorKind as Kind};

/// What a URL says, with our settings of the protocol and of the socket.
pub(super) fn info(url: &str) -> Result<ConnectionInfo, Error> {
    let refused = |why| Err(Error::new(Kind::InvalidConfig, why));
    if !cfg!(feature = "tls") && ["rediss:", "valkeys:"].iter().any(|tls| url.starts_with(tls)) {
        return refused("for a URL with TLS, enable the feature `tls` of bellwether");
    }
    let info = url.into_connection_info().map_err(invalid)?;
    match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            return refused("TLS that trusts any certificate is not offered");
        }
        #[cfg(feature = "tls")]
        ConnectionAddr::TcpTls { .. } => provide_cryptography(),
        _ => {}
    }
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp()))
}

/// The client library panics where a process has not settled which cryptography rustls is to use, and the features of
/// all crates together do not either. Whoever settled it is not overruled.
#[cfg(feature = "tls")]
pub(super) fn provide_cryptography() {
    use rustls::crypto::{CryptoProvider, ring};
    if CryptoProvider::get_default().is_none() {
        // Another may be a moment faster.
        let _ = ring::default_provider().install_default();
    }
}

pub(super) fn client(info: ConnectionInfo) -> Result<Client, Error> {
    Client::open(info).map_err(invalid)
}

fn invalid(error: RedisError) -> Error {
    Error::with_source(Kind::InvalidConfig, "the Redis URL is not valid", error)
}

pub(super) fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive())
}

/// A peer that swallows packets is given up after about 15 s even when nothing is being sent.
fn keepalive() -> TcpKeepalive {
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(3));
    #[cfg(not(any(target_os = "openbsd", target_os = "windows")))]
    let keepalive = keepalive.with_retries(3);
    keepalive
}

/// A connection and its driver, which ends with it.
pub(super) struct Connected {
    pub(super) connection: MultiplexedConnection,
    _driver: Option<AbortOnDropHandle<()>>,
}

/// Finds the server, connects, and checks that it can be written to. Tells `broken` when the connection has ended.
pub(super) async fn connect(
    target: &Target,
    options: &RedisOptions,
    broken: Arc<Notify>,
    on_push: impl Fn(PushInfo) + Send + Sync + 'static,
) -> Result<(Connected, Place), BackendError> {
    let (client, place) = target.find().await?;
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
    let failed = match timeout(options.connect_timeout, attempt).await {
        Ok(Ok(connected)) => return Ok((connected, place)),
        Ok(Err(error)) => BackendError::new(BackendErrorKind::Unavailable, error),
        Err(elapsed) => BackendError::new(BackendErrorKind::Unavailable, elapsed),
    };
    place.doubt();
    Err(failed)
}

async fn open(
    client: &Client,
    config: AsyncConnectionConfig,
    broken: Arc<Notify>,
) -> Result<Connected, RedisError> {
    let info = client.get_connection_info();
    let ConnectionAddr::Tcp(host, port) = info.addr() else {
        // Over TLS the client makes the stream.
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        return Ok(Connected { connection, _driver: None });
    };
    let addresses = lookup_host((host.as_str(), *port)).await?;
    let attempts: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if attempts.is_empty() {
        return Err(RedisError::from((ErrorKind::InvalidClientConfig, "the host has no address")));
    }
    let (socket, _others) = select_ok(attempts).await?;
    socket.set_nodelay(true)?;
    SockRef::from(&socket).set_tcp_keepalive(&keepalive())?;
    let (connection, driver) = MultiplexedConnection::new_with_config(
        info.redis_settings(),
        Gathering::new(socket),
        config,
    )
    .await?;
    let driver = async move {
        driver.await;
        // It may end without having said so, where what failed was a write.
        broken.notify_one();
    };
    let driver = AbortOnDropHandle::new(tokio::spawn(driver));
    Ok(Connected { connection, _driver: Some(driver) })
}

/// Without limits of the client's own: every wait here has one.
pub(super) fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(1024)
}

/// Gives the server its scripts, and warns of a server that may evict leases.
pub(super) async fn prepare(connection: &mut MultiplexedConnection) {
    // Either may be forbidden; then scripts are sent when they are first needed.
    let _: Result<(), _> = SCRIPTS.load().query_async(connection).await;
    let memory: Result<String, _> = redis::cmd("INFO").arg("memory").query_async(connection).await;
    let policy = memory.ok().and_then(|memory| {
        let line = memory.lines().find_map(|line| line.strip_prefix("maxmemory_policy:"))?;
        Some(line.trim().to_owned())
    });
    if let Some(policy) = policy.filter(|policy| policy != "noeviction") {
        warn!(
            policy,
            "the Redis server may evict leases when its memory is full; use maxmemory-policy noeviction"
        );
    }
}

pub(super) async fn refuse_replica(
    connection: &mut MultiplexedConnection,
) -> Result<(), RedisError> {
    let role: Result<Value, _> = redis::cmd("ROLE").query_async(connection).await;
    match role {
        Ok(Value::Array(fields)) if fields.first().is_some_and(is_replica) => {
            Err(RedisError::from((ErrorKind::Client, "the server is a read-only replica")))
        }
        Err(error) if error.is_unrecoverable_error() => Err(error),
        // ROLE may be forbidden; then a READONLY answer will tell.
        _ => Ok(()),
    }
}

fn is_replica(role: &Value) -> bool {
    matches!(role, Value::BulkString(role) if role == b"slave" || role == b"replica")
}

/// Pauses between attempts: from 20 ms, doubled up to a quarter of a second, each less up to a half.
///
/// The longest one is what a process may be behind another when the server is back: so long a lease that it
/// could not release stands in the other's way.
pub(super) struct Backoff(u32);

impl Backoff {
    pub(super) fn new() -> Self {
        Self(0)
    }

    pub(super) fn pause(&mut self) -> Duration {
        let bound = Duration::from_millis(20 << self.0.min(5)).min(Duration::from_millis(250));
        self.0 = self.0.saturating_add(1);
        bound.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}
