//! TLS with rustls, and the roots of the system unless a configuration is given.

use std::sync::Arc;

use redis::RedisError;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::spawn_blocking,
};
use tokio_rustls::{TlsConnector, client::TlsStream, rustls};

use super::target::ConnectTarget;

/// Does the TLS handshake with a host.
pub(super) async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    target: &ConnectTarget,
    host: &str,
    socket: S,
) -> Result<TlsStream<S>, RedisError> {
    let name = rustls::pki_types::ServerName::try_from(host)?.to_owned();
    let config = match &target.access.tls {
        Some(config) => config.clone(),
        // The roots are files.
        None => Arc::new(spawn_blocking(config).await.map_err(std::io::Error::from)??),
    };
    Ok(TlsConnector::from(config).connect(name, socket).await?)
}

fn config() -> Result<rustls::ClientConfig, RedisError> {
    let mut found = rustls_native_certs::load_native_certs();
    if let Some(error) = found.errors.pop() {
        return Err(error.into());
    }
    let mut roots = rustls::RootCertStore::empty();
    for certificate in found.certs {
        roots.add(certificate)?;
    }
    Ok(rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth())
}
