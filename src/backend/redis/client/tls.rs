//! TLS with rustls, and the roots of the system unless a configuration is given.

use std::{io, sync::Arc};

use redis::{ErrorKind, RedisError};
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
        None => Arc::new(spawn_blocking(config).await.map_err(io::Error::from)??),
    };
    TlsConnector::from(config).connect(name, socket).await.map_err(failure)
}

/// Adds the likely cause to the error of a handshake, where the server does not speak TLS.
///
/// Redis takes the greeting for a command if it has the byte of a new line, and answers with plain
/// text. Other servers may close the connection.
fn failure(error: io::Error) -> RedisError {
    let of_tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let is_plain = match of_tls {
        Some(of_tls) => matches!(of_tls, rustls::Error::InvalidMessage(_)),
        None => {
            matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
        }
    };
    if !is_plain {
        return error.into();
    }
    let cause = "is it a port without TLS? Then use `redis:` in place of `rediss:`";
    (ErrorKind::Io, cause, error.to_string()).into()
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
