//! The settings of a backend, where a server is, and how to log in there.

use std::{fmt, io, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError,
};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::error::{BoxError, Chain, Error, ErrorKind, words_of};

/// The settings of a backend. In a file, each has the name of the builder's method.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(in super::super) struct RedisConfig {
    pub(in super::super) server: Option<Secret<String>>,
    pub(in super::super) sentinels: Option<Secret<Vec<String>>>,
    pub(in super::super) master: Option<Secret<String>>,
    pub(in super::super) cluster: Option<Secret<Vec<String>>>,
    /// How long a connection may be silent while a command is under way.
    #[serde(deserialize_with = "time")]
    pub(in super::super) command_timeout: Duration,
    #[serde(deserialize_with = "some_time")]
    pub(in super::super) connect_timeout: Option<Duration>,
    pub(in super::super) push_limit: usize,
    pub(in super::super) replicas: Option<Replicas>,
    pub(in super::super) client_name: Option<String>,
    /// The callback runs at each connect. Without a callback, the URL has the credentials.
    #[serde(skip)]
    pub(in super::super) credentials: Option<Secret<Provider>>,
    /// Without a configuration, the roots of the system are trusted.
    #[cfg(feature = "tls")]
    #[serde(skip)]
    pub(in super::super) tls: Option<Secret<Arc<rustls::ClientConfig>>>,
}

impl Default for RedisConfig {
    fn default() -> Self {
        Self {
            server: None,
            sentinels: None,
            master: None,
            cluster: None,
            command_timeout: Duration::from_millis(250),
            connect_timeout: None,
            push_limit: 64 << 10,
            replicas: None,
            client_name: None,
            credentials: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

/// A setting that may have a password in it. No error and no log shows the setting.
#[derive(Clone)]
pub(in super::super) struct Secret<T>(pub(in super::super) T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Secret<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let why = "a URL or a password must be a text in quotes, and several URLs a list of texts";
        T::deserialize(from).map(Self).map_err(|_shows_it| D::Error::custom(why))
    }
}

impl<T> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

fn some_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    time(from).map(Some)
}

/// Reads a whole number with its unit. A number without a unit is refused, because configuration
/// files disagree about its meaning.
fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let time_of = |text: String| {
        let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit())?);
        let units = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];
        let (_, millis) = units.into_iter().find(|(known, _)| *known == unit)?;
        number.parse::<u64>().ok()?.checked_mul(millis).map(Duration::from_millis)
    };
    let why = "a time is a text with its unit, such as \"250ms\" or \"5s\"";
    String::deserialize(from).ok().and_then(time_of).ok_or_else(|| D::Error::custom(why))
}

/// Where the servers of a backend are.
pub(in super::super) enum Location<'a> {
    Server(&'a str),
    /// The sentinels, and the name or URL of the master.
    Sentinels(&'a [String], &'a str),
    Cluster(&'a [String]),
}

impl RedisConfig {
    pub(in super::super) fn location(&self) -> Result<Location<'_>, &'static str> {
        match (&self.server, &self.sentinels, &self.master, &self.cluster) {
            (Some(Secret(url)), None, None, None) => Ok(Location::Server(url)),
            (None, Some(Secret(urls)), Some(Secret(master)), None) => {
                Ok(Location::Sentinels(urls, master))
            }
            (None, None, None, Some(Secret(urls))) => Ok(Location::Cluster(urls)),
            _ => Err("call one of `server`, `sentinels` and `cluster`; in a file, give one of \
                     `server`, `sentinels` with `master`, and `cluster`"),
        }
    }

    /// Returns the settings of a new connection, with the credentials of now.
    ///
    /// A panic of the callback is an error like any other, so that the attempt to connect fails,
    /// and the next attempt comes after a pause.
    pub(super) async fn log_in(
        &self,
        to: &ConnectionInfo,
    ) -> Result<RedisConnectionInfo, RedisError> {
        let settings = to.redis_settings().clone();
        let Some(Secret(provide)) = &self.credentials else { return Ok(settings) };
        // The callback may also panic before it returns its future.
        let asked = AssertUnwindSafe(async { provide().await }).catch_unwind();
        let why = match asked.await {
            Ok(Ok((user, password))) => {
                return Ok(settings.set_username(user).set_password(password));
            }
            Ok(Err(error)) => format!("failed: {}", Chain(&*error)),
            Err(panic) => format!("panicked: {}", words_of(&*panic)),
        };
        Err(io::Error::other(format!("the callback for credentials {why}")).into())
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        let usual = self.command_timeout.saturating_mul(4).max(Duration::from_secs(1));
        self.connect_timeout.unwrap_or(usual)
    }

    /// Returns how long commands wait for the first connection. The server may have to be found and
    /// checked first.
    pub(super) fn first_connection_limit(&self) -> Duration {
        self.connect_timeout().saturating_mul(3).max(self.command_timeout)
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in super::super) struct Replicas {
    pub(in super::super) count: u32,
    #[serde(deserialize_with = "time")]
    pub(in super::super) within: Duration,
}

impl Replicas {
    pub(in super::super) fn check(self, command_timeout: Duration) -> Result<(), Error> {
        let Self { count, within } = self;
        if count > 0 && within >= Duration::from_millis(1) && within < command_timeout {
            return Ok(());
        }
        let why = format!(
            "{count} `replicas` may take {within:?} to confirm; give 1 or more, and from 1 ms to \
             less than the command time-out of {command_timeout:?}"
        );
        Err(Error::new(ErrorKind::InvalidConfig, why))
    }
}

/// The name of a user, and the password.
type Credentials = Result<(String, String), BoxError>;

pub(in super::super) type Provider = Arc<dyn Fn() -> BoxFuture<'static, Credentials> + Send + Sync>;

/// The address of a master or of a node, as another server names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Address {
    pub(super) host: Arc<str>,
    pub(super) port: u16,
}

/// Returns the same settings for another server.
pub(super) fn at(info: &ConnectionInfo, address: &Address) -> ConnectionInfo {
    let host = address.host.to_string();
    let port = address.port;
    let address = match info.addr() {
        ConnectionAddr::TcpTls { .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(address)
}

/// Reads several URLs. An error says which URL is wrong.
pub(super) fn parse_all(urls: &[String]) -> Result<Vec<ConnectionInfo>, Error> {
    let which = |at| format!("Redis URL {} of {}", at + 1, urls.len());
    urls.iter().enumerate().map(|(at, url)| parse(url, &which(at))).collect()
}

/// Reads a URL. An error calls the URL `which`, because the URL itself may have a password in it.
pub(super) fn parse(url: &str, which: &str) -> Result<ConnectionInfo, Error> {
    let invalid = |why: String| Error::new(ErrorKind::InvalidConfig, why);
    // The text behind the scheme may be a password, and so may the whole text without a scheme.
    let Some((scheme, _)) = url.split_once("://") else {
        return Err(invalid(format!("{which} has no scheme; put `redis://` in front of it")));
    };
    if !cfg!(feature = "tls") && ["rediss", "valkeys"].contains(&scheme) {
        return Err(invalid(format!(
            "{which} begins with `{scheme}:`, but TLS is not compiled in; enable the feature `tls` \
             of bellwether"
        )));
    }
    let info = url.into_connection_info().map_err(|error| {
        let why = format!(
            "{which}, which begins with `{scheme}:`, cannot be read; give \
             `redis://[user[:password]@]host[:port][/database]` (or `rediss://`, `redis+unix://`), \
             with special characters in the password percent-encoded"
        );
        Error::with_source(ErrorKind::InvalidConfig, why, error)
    })?;
    if let ConnectionAddr::TcpTls { insecure: true, .. } = info.addr() {
        return Err(invalid(format!(
            "{which} ends with `#insecure`, which would trust any certificate; remove it, and name \
             the file of your CA in the variable `SSL_CERT_FILE`"
        )));
    }
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Ok(info.set_redis_settings(settings))
}
