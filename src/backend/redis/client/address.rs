//! Connection settings that a URL gives, and the settings of the socket.

use std::time::Duration;

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError,
    io::tcp::TcpSettings,
};
use socket2::TcpKeepalive;

use crate::error::{Error, ErrorKind};

/// Reads several URLs. An error tells which of them is wrong.
pub(super) fn parse_all<'a>(
    urls: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<ConnectionInfo>, Error> {
    let urls: Vec<_> = urls.into_iter().collect();
    let parse = |(at, url): (usize, &&str)| {
        parse_named(url, &format!("Redis URL {} of {}", at + 1, urls.len()))
    };
    urls.iter().enumerate().map(parse).collect()
}

/// Reads a URL, and adds the protocol version and the settings of the socket.
pub(super) fn parse(url: &str) -> Result<ConnectionInfo, Error> {
    parse_named(url, "the Redis URL")
}

/// Reads a URL that an error calls `which`, since the URL itself may have a password in it.
fn parse_named(url: &str, which: &str) -> Result<ConnectionInfo, Error> {
    let invalid = |why: String| Error::new(ErrorKind::InvalidConfig, why);
    let scheme = scheme(url);
    if !cfg!(feature = "tls") && ["rediss", "valkeys"].contains(&scheme) {
        return Err(invalid(format!(
            "{which} begins with `{scheme}:`, but TLS is not compiled in; enable the feature `tls` \
             of bellwether"
        )));
    }
    let info = url.into_connection_info().map_err(|error| unreadable(which, scheme, error))?;
    match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            return Err(invalid(format!(
                "{which} ends with `#insecure`, which would trust any certificate; remove it, and \
                 name the file of your CA in the variable `SSL_CERT_FILE`"
            )));
        }
        #[cfg(feature = "tls")]
        ConnectionAddr::TcpTls { .. } => install_crypto_provider(),
        _ => {}
    }
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp_settings()))
}

/// Returns the part of a URL that is safe to log: what follows it may be a password.
fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("", |(scheme, _)| scheme)
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

fn unreadable(which: &str, scheme: &str, error: RedisError) -> Error {
    let given = match scheme {
        "" => "without a scheme".to_owned(),
        scheme => format!("with the scheme `{scheme}`"),
    };
    let why = format!(
        "{which} {given} cannot be read; \
         give `redis://[user[:password]@]host[:port][/database]` \
         (or `rediss://`, `redis+unix://`), with special characters in the password percent-encoded"
    );
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_scheme_and_never_the_password() {
        for (url, said) in [
            ("http://user:secret@host", "`http`"),
            ("redis://user:secret@host:port", "`redis`"),
            ("user:secret@host", "without a scheme"),
            (
                "rediss://user:secret@host#insecure",
                if cfg!(feature = "tls") { "CA" } else { "tls" },
            ),
        ] {
            let error = parse(url).err();
            let text = error.as_ref().map(|error| format!("{error:#} {error:?}"));
            let text = text.unwrap_or_default();
            assert!(text.contains(said) && !text.contains("secret"), "{url}: {text}");
        }
    }

    #[test]
    fn an_error_tells_which_of_several_urls_is_wrong() {
        let error = parse_all(["redis://a", "http://user:secret@b"]).err();
        let text = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(text.starts_with("Redis URL 2 of 2 with the scheme `http`"), "{text}");
        assert!(!text.contains("secret"), "{text}");
    }
}
