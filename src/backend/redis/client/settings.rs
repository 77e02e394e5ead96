//! The settings of a backend: how long it waits, where a server is, and how to log in there.

use std::{fmt, io, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError,
};

use super::replicas::Replicas;
use crate::error::{BoxError, Chain, Error, ErrorKind, words_of};

const COMMAND_TIMEOUT: Duration = Duration::from_millis(250);

/// Returns the connect time-out that goes with a command time-out.
pub(in super::super) fn default_connect_timeout(command_timeout: Duration) -> Duration {
    command_timeout.saturating_mul(4).max(Duration::from_secs(1))
}

/// The settings of a backend that do not depend on where its servers are.
#[derive(Clone, Debug)]
pub(in super::super) struct RedisConfig {
    /// How long a connection may be silent while a command is under way.
    pub(in super::super) command_timeout: Duration,
    pub(in super::super) connect_timeout: Duration,
    pub(in super::super) push_limit: usize,
    pub(in super::super) replicas: Option<Replicas>,
    /// The name that each connection gives itself.
    pub(in super::super) client_name: Option<String>,
    pub(in super::super) access: Access,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            command_timeout: COMMAND_TIMEOUT,
            connect_timeout: default_connect_timeout(COMMAND_TIMEOUT),
            push_limit: 64 << 10,
            replicas: None,
            client_name: None,
            access: Access::default(),
        }
    }
}

impl RedisConfig {
    /// Returns how long commands wait for the first connection. The server may have to be found
    /// first.
    pub(super) fn first_connection_limit(&self) -> Duration {
        self.connect_timeout.saturating_mul(2).max(self.command_timeout)
    }
}

/// The name and the password with which a connection logs in.
///
/// ```
/// use bellwether::backend::Credentials;
///
/// let of_default_user = Credentials::password("secret");
/// let of_user = Credentials::user("shop", "secret");
/// assert!(!format!("{of_user:?}").contains("secret"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    username: Option<String>,
    password: String,
}

impl Credentials {
    /// Creates the credentials of the default user of Redis.
    pub fn password(password: impl Into<String>) -> Self {
        Self { username: None, password: password.into() }
    }

    /// Creates the credentials of a user.
    pub fn user(username: impl Into<String>, password: impl Into<String>) -> Self {
        Self { username: Some(username.into()), password: password.into() }
    }

    /// Returns the settings of a connection that logs in with these credentials.
    fn of(self, settings: RedisConnectionInfo) -> RedisConnectionInfo {
        let settings = settings.set_password(self.password);
        match self.username {
            Some(username) => settings.set_username(username),
            None => settings,
        }
    }
}

/// Leaves the password out.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("username", &self.username).finish_non_exhaustive()
    }
}

type Provider = Arc<dyn Fn() -> BoxFuture<'static, Result<Credentials, BoxError>> + Send + Sync>;

/// How the connections of a backend log in, beyond what their URLs say.
#[derive(Clone, Default)]
pub(in super::super) struct Access {
    /// Asked at each connect. Without it, the URL has the credentials.
    pub(in super::super) credentials: Option<Provider>,
    /// Without it, the roots of the system are trusted.
    #[cfg(feature = "tls")]
    pub(in super::super) tls: Option<Arc<rustls::ClientConfig>>,
}

impl Access {
    /// Returns the access to sentinels, which have credentials of their own.
    pub(super) fn without_credentials(&self) -> Self {
        let mut access = self.clone();
        access.credentials = None;
        access
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

/// A server to connect to.
#[derive(Clone)]
pub(in super::super) struct ConnectTarget {
    info: ConnectionInfo,
    pub(super) access: Access,
}

impl ConnectTarget {
    pub(super) fn new(info: ConnectionInfo, access: &Access) -> Self {
        Self { info, access: access.clone() }
    }

    pub(super) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Returns the settings of a new connection, with the credentials of now.
    pub(super) async fn settings(&self) -> Result<RedisConnectionInfo, RedisError> {
        let settings = self.info.redis_settings().clone();
        match &self.access.credentials {
            None => Ok(settings),
            Some(provide) => Ok(provided(provide).await?.of(settings)),
        }
    }
}

/// Asks a callback for the credentials. A panic is a failure like any other, so that the attempt to
/// connect ends with it, and the next one comes after a pause.
async fn provided(provide: &Provider) -> Result<Credentials, io::Error> {
    // The callback may also panic before it returns its future.
    let asked = AssertUnwindSafe(async { provide().await }).catch_unwind();
    let why = match asked.await {
        Ok(Ok(provided)) => return Ok(provided),
        Ok(Err(error)) => format!("the callback for credentials failed: {}", Chain(&*error)),
        Err(panic) => format!("the callback for credentials panicked: {}", words_of(&*panic)),
    };
    Err(io::Error::other(why))
}

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

/// Reads a URL, and adds the protocol version.
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
    Ok(info.set_redis_settings(settings))
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
