//! Connection settings that a URL gives, and the settings of the socket.

use std::time::Duration;

use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError,
    io::tcp::TcpSettings,
};
use socket2::TcpKeepalive;

use crate::error::{Error, ErrorKind};

/// Reads a URL, and adds the protocol version and the settings of the socket.
pub(super) fn parse(url: &str) -> Result<ConnectionInfo, Error> {
    let refused = |why| Err(Error::new(ErrorKind::InvalidConfig, why));
    if !cfg!(feature = "tls") && ["rediss:", "valkeys:"].iter().any(|tls| url.starts_with(tls)) {
        return refused("for a URL with TLS, enable the feature `tls` of bellwether");
    }
    let info = url.into_connection_info().map_err(invalid)?;
    match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            return refused("TLS that trusts any certificate is not offered");
        }
        #[cfg(feature = "tls")]
        ConnectionAddr::TcpTls { .. } => install_crypto_provider(),
        _ => {}
    }
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
}

/// Installs *ring* as the crypto provider of rustls, unless the process has installed one.
///
/// The client library panics where no provider is installed and several are compiled in.
#[cfg(feature = "tls")]
pub(super) fn install_crypto_provider() {
    use rustls::crypto::{CryptoProvider, ring};
    if CryptoProvider::get_default().is_none() {
        // Another thread may install one first, which is as good.
        let _ = ring::default_provider().install_default();
    }
}

pub(super) fn client(info: ConnectionInfo) -> Result<Client, Error> {
    Client::open(info).map_err(invalid)
}

fn invalid(error: RedisError) -> Error {
    let why = "the Redis URL cannot be read; \
               give `redis://[user[:password]@]host[:port][/database]`";
    Error::with_source(ErrorKind::InvalidConfig, why, error)
}

pub(super) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true).set_keepalive(keepalive())
}

/// Detects a peer that swallows packets after about 15 s, also while nothing is sent.
pub(super) fn keepalive() -> TcpKeepalive {
    let keepalive =
        TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(3));
    #[cfg(not(any(target_os = "openbsd", target_os = "windows")))]
    let keepalive = keepalive.with_retries(3);
    keepalive
}
