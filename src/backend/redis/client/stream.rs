//! The streams to a server: TCP, a Unix socket, or that of a simulation.

use std::time::Duration;

use futures_util::future::select_ok;
use redis::{ConnectionAddr, ErrorKind, RedisError};
use socket2::{SockRef, TcpKeepalive};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
};

/// Bytes in both directions.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Opens a stream to a server, without TLS. Each stream of the crate is opened here.
pub(super) async fn open(server: &ConnectionAddr) -> Result<Box<dyn Stream>, RedisError> {
    match server {
        #[cfg(bellwether_sim)]
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => {
            Ok(Box::new(crate::sim::open(host).await?))
        }
        #[cfg(not(bellwether_sim))]
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Ok(Box::new(connect_tcp(host, *port).await?))
        }
        #[cfg(unix)]
        ConnectionAddr::Unix(path) => Ok(Box::new(tokio::net::UnixStream::connect(path).await?)),
        _ => {
            let why = "the address needs a feature that is not compiled in";
            Err(RedisError::from((ErrorKind::InvalidClientConfig, why)))
        }
    }
}

/// Connects to the address of the host that answers first.
#[cfg_attr(bellwether_sim, allow(dead_code))]
async fn connect_tcp(host: &str, port: u16) -> Result<TcpStream, RedisError> {
    let addresses = lookup_host((host, port)).await?;
    let attempts: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
    if attempts.is_empty() {
        return Err(RedisError::from((ErrorKind::InvalidClientConfig, "the host has no address")));
    }
    let (socket, _others) = select_ok(attempts).await?;
    socket.set_nodelay(true)?;
    // Detects a server that swallows packets, also while nothing is sent.
    let [time, interval] = [5, 3].map(Duration::from_secs);
    let keepalive = TcpKeepalive::new().with_time(time).with_interval(interval);
    SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
    Ok(socket)
}
