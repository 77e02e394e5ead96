//! The streams to a server: TCP, TLS over TCP, and Unix sockets.
//!
//! Each stream notes its progress (`progress`), and joins commands that are ready together
//! (`write_batcher`).

use std::{sync::Arc, time::Duration};

use futures_util::future::select_ok;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ErrorKind, RedisConnectionInfo, RedisError,
    aio::{MultiplexedConnection, PubSub},
};
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
};
#[cfg(feature = "tls")]
use tokio_rustls::client::TlsStream;
use tokio_util::task::AbortOnDropHandle;

use super::{
    address::keepalive,
    connect_error::ConnectPhase,
    progress::{Progress, Watched},
    target::ConnectTarget,
    write_batcher::WriteBatcher,
};

/// How much of a large command the socket takes before its peer has some of it.
///
/// With more, a command would seem to be sent long before it is.
#[cfg(any(target_os = "android", target_os = "linux"))]
const UNSENT_LIMIT: u32 = 256 << 10;

/// A connection, and its driver, which ends with it.
pub(super) struct Connected {
    pub(super) connection: MultiplexedConnection,
    pub(super) progress: Arc<Progress>,
    /// How long the first command took.
    pub(super) round_trip: Duration,
    _driver: AbortOnDropHandle<()>,
}

/// A server that was reached.
pub(super) struct Reached {
    settings: RedisConnectionInfo,
    stream: Stream,
    progress: Arc<Progress>,
}

impl Reached {
    /// Reaches a server. Leaves in `phase` how far it came.
    pub(super) async fn new(
        target: &ConnectTarget,
        phase: &mut ConnectPhase,
    ) -> Result<Self, RedisError> {
        let settings = target.settings().await?;
        let (stream, progress) = reach(target, phase).await?;
        Ok(Self { settings, stream, progress })
    }

    /// Logs in. Calls `on_end` when the connection has ended.
    pub(super) async fn log_in(
        self,
        config: AsyncConnectionConfig,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Connected, RedisError> {
        let Self { settings, stream, progress } = self;
        match stream {
            Stream::Tcp(stream) => log_in(stream, &settings, config, progress, on_end).await,
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => log_in(stream, &settings, config, progress, on_end).await,
            #[cfg(unix)]
            Stream::Unix(stream) => log_in(stream, &settings, config, progress, on_end).await,
        }
    }
}

/// Connects to a server for subscriptions of its own, with RESP2.
pub(super) async fn open_pubsub(target: &ConnectTarget) -> Result<PubSub, RedisError> {
    let settings = &target.settings().await?;
    let (stream, _) = reach(target, &mut ConnectPhase::Reach).await?;
    match stream {
        Stream::Tcp(stream) => PubSub::new(settings, stream).await,
        #[cfg(feature = "tls")]
        Stream::Tls(stream) => PubSub::new(settings, stream).await,
        #[cfg(unix)]
        Stream::Unix(stream) => PubSub::new(settings, stream).await,
    }
}

/// The kinds are apart, so that the calls of each need no dispatch.
enum Stream {
    Tcp(Watched<TcpStream>),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<Watched<TcpStream>>>),
    #[cfg(unix)]
    Unix(Watched<tokio::net::UnixStream>),
}

async fn reach(
    target: &ConnectTarget,
    phase: &mut ConnectPhase,
) -> Result<(Stream, Arc<Progress>), RedisError> {
    *phase = ConnectPhase::Reach;
    match target.info().addr() {
        ConnectionAddr::Tcp(host, port) => {
            let (socket, progress) = connect_tcp(host, *port).await?;
            Ok((Stream::Tcp(socket), progress))
        }
        #[cfg(feature = "tls")]
        ConnectionAddr::TcpTls { host, port, .. } => {
            let (socket, progress) = connect_tcp(host, *port).await?;
            *phase = ConnectPhase::Tls;
            Ok((Stream::Tls(Box::new(super::tls::connect(target, host, socket).await?)), progress))
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => {
            let (socket, progress) =
                (tokio::net::UnixStream::connect(path).await?, Progress::new());
            Ok((Stream::Unix(Watched::new(socket, progress.clone())), progress))
        }
        _ => {
            let why = "the address needs a feature that is not compiled in";
            Err(RedisError::from((ErrorKind::InvalidClientConfig, why)))
        }
    }
}

async fn log_in(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    settings: &RedisConnectionInfo,
    config: AsyncConnectionConfig,
    progress: Arc<Progress>,
    on_end: impl FnOnce() + Send + 'static,
) -> Result<Connected, RedisError> {
    let stream = WriteBatcher::new(stream);
    let (connection, driver) =
        MultiplexedConnection::new_with_config(settings, stream, config).await?;
    let ended = progress.clone();
    let driver = async move {
        driver.await;
        ended.end();
        on_end();
    };
    let driver = AbortOnDropHandle::new(tokio::spawn(driver));
    Ok(Connected { connection, progress, round_trip: Duration::ZERO, _driver: driver })
}

async fn connect_tcp(
    host: &str,
    port: u16,
) -> Result<(Watched<TcpStream>, Arc<Progress>), RedisError> {
    let socket = connect_any(host, port).await?;
    socket.set_nodelay(true)?;
    let options = SockRef::from(&socket);
    options.set_tcp_keepalive(&keepalive())?;
    #[cfg(any(target_os = "android", target_os = "linux"))]
    options.set_tcp_notsent_lowat(UNSENT_LIMIT)?;
    let progress = Progress::new();
    Ok((Watched::new(socket, progress.clone()), progress))
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
