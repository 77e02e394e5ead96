//! The settings of a Redis backend, in code and in a file.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures_util::FutureExt;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    RedisBackend, RedisInner, StayingChannels,
    client::{RedisConfig, Replicas, Secret, Servers},
    keys::ChannelNames,
    ops::Heartbeat,
};
use crate::{
    backend::ProcessId,
    error::{BoxError, Error, ErrorKind},
};

/// Configures a [`RedisBackend`].
///
/// Exactly one of [`server`](Self::server), [`sentinels`](Self::sentinels) and
/// [`cluster`](Self::cluster) is needed. Everything else has a default. The page
/// [`failover`](super::failover) explains what a failover to another server may lose.
#[derive(Clone, Debug, Default)]
#[must_use = "a builder does nothing until `build` is called"]
pub struct RedisBackendBuilder {
    config: RedisConfig,
    /// The process of the owners, if the backend shares the process of another backend.
    process: Option<ProcessId>,
}

/// The longest time-out that is accepted. A longer time-out is a mistake of units.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(86_400);

impl RedisBackendBuilder {
    /// Connects to one server: `redis://[user[:password]@]host[:port][/database]`.
    ///
    /// `redis+unix:///path/to/socket` connects to a Unix socket. With the feature `tls`,
    /// `rediss://` connects by TLS with rustls. The backend trusts the certificates that the system
    /// trusts, or the certificates of a file that the environment variable `SSL_CERT_FILE` names.
    /// The backend shows no client certificate. `tls_config` changes both. The crypto provider is
    /// *ring*, unless the process has installed another provider.
    pub fn server(mut self, url: impl Into<String>) -> Self {
        self.config.server = Some(Secret(url.into()));
        self
    }

    /// Connects to the master that sentinels watch.
    ///
    /// The URLs have the credentials of the sentinels, if the sentinels need credentials. One
    /// sentinel that replies is enough. `master` is the name under which the sentinels watch the
    /// master. If the master needs credentials, `master` is a URL with the name in place of the
    /// host. The URL may also have a database: `redis://shop:secret@mymaster/3`. With `rediss://`,
    /// the certificate of the master must have the name or the address that the sentinels announce.
    pub fn sentinels<U: AsRef<str>>(
        mut self,
        urls: impl IntoIterator<Item = U>,
        master: impl Into<String>,
    ) -> Self {
        self.config.sentinels = Some(owned(urls));
        self.config.master = Some(Secret(master.into()));
        self
    }

    /// Connects to a Redis Cluster, best of version 7 or later.
    ///
    /// One node that replies is enough to find the other nodes. The first URL has the settings for
    /// all nodes: the credentials, and TLS if the URL begins with `rediss://`. With TLS, the
    /// certificate of each node must have the name or address that the node announces.
    ///
    /// A cluster of version 6 has no sharded pub/sub, so its waiters poll, at intervals of up to
    /// 100 ms. While a slot moves, commands on its names are repeated until their time-out ends,
    /// and are then [refused](crate::error::BackendErrorKind::Refused).
    pub fn cluster<U: AsRef<str>>(mut self, urls: impl IntoIterator<Item = U>) -> Self {
        self.config.cluster = Some(owned(urls));
        self
    }

    /// Sets how long the connection may be silent while a command is under way.
    ///
    /// A transfer that moves is not silent, however long it takes. After a silence, all commands
    /// that are under way fail. After a break, a command waits for the next connection for this
    /// time-out and four round trips. A command waits for the first connection for three [connect
    /// time-outs](Self::connect_timeout).
    ///
    /// Defaults to 250 ms; 24 h at most. If a round trip takes longer than that, set the time of
    /// four round trips: [`RedisBackend::ready`] measures the round trip, and warns. The connect
    /// time-out and the [`try_limit`](crate::lease::RetryStrategy::try_limit) of the retry strategy
    /// follow this setting, unless they are set.
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.config.command_timeout = timeout;
        self
    }

    /// Sets how long one attempt to connect may take, including TLS and authentication. Defaults to
    /// four command time-outs, or 1 s if that is longer. 24 h at most.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.config.connect_timeout = Some(timeout);
        self
    }

    /// Sets the size in bytes of the largest entry that is pushed to the waiters.
    ///
    /// A larger entry is written by two commands, and each waiter reads it. Defaults to 64 KiB,
    /// because a push goes to each process that waits.
    pub fn push_limit(mut self, bytes: usize) -> Self {
        self.config.push_limit = bytes;
        self
    }

    /// Counts a grant only once `count` replicas have confirmed it, `within` this time.
    ///
    /// Defaults to no replicas. The master itself does not count: with two replicas, one replica
    /// and the master are the majority of three. The limit is at least 1 ms, and shorter than the
    /// [command time-out](Self::command_timeout). A limit of 100 ms suits most programs.
    ///
    /// The confirmation is a `WAIT` behind the grant, which costs one more round trip from the
    /// server to its replicas. If fewer replicas confirm, the grant is given back, and the try
    /// fails with [`Unreplicated`](crate::error::BackendErrorKind::Unreplicated). The caller's
    /// retry strategy then tries again. A renewal needs the confirmation too, so a lease is lost if
    /// the replicas stay away for as long as the lease lasts. A release does not wait for replicas.
    ///
    /// `WAIT` is no consensus, so a fence is still needed. The page [`failover`](super::failover)
    /// explains what a failover may lose, and for which `count`.
    pub fn replicas(mut self, count: u32, within: Duration) -> Self {
        self.config.replicas = Some(Replicas { count, within });
        self
    }

    /// Sets the name that each connection gives itself, for `CLIENT LIST` and the server's log.
    ///
    /// 1 to 64 visible ASCII characters without spaces, such as the name of a pod. Defaults to no
    /// name. [`Locks::owner`](crate::Locks::owner) sets the label of a holder of locks.
    pub fn client_name(mut self, name: impl Into<String>) -> Self {
        self.config.client_name = Some(name.into());
        self
    }

    /// Sets a callback that provides the name of the user and the password at each connect.
    ///
    /// So a password or token can change while the service runs. The user that Redis has from the
    /// start is `default`. The callback replaces the credentials in URLs, except for the
    /// credentials of sentinels. The time of the callback counts towards the [connect
    /// time-out](Self::connect_timeout). If the callback fails or panics, the next attempt calls it
    /// again after a pause.
    ///
    /// # Examples
    ///
    /// ```
    /// # async fn token() -> std::io::Result<String> { Ok("secret".to_owned()) }
    /// # use bellwether::RedisBackend;
    /// let builder = RedisBackend::builder()
    ///     .credentials(|| async { token().await.map(|token| ("shop".to_owned(), token)) });
    /// ```
    pub fn credentials<F, Fut, E>(mut self, provide: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(String, String), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.config.credentials = Some(Secret(Arc::new(move || {
            let provided = provide();
            async move { provided.await.map_err(E::into) }.boxed()
        })));
        self
    }

    /// Sets the configuration of TLS, for servers whose URL begins with `rediss://`.
    ///
    /// The configuration replaces the roots of the system. With it, the backend can show a client
    /// certificate (`tls-auth-clients`), or trust a private CA.
    #[cfg(feature = "tls")]
    pub fn tls_config(mut self, config: Arc<rustls::ClientConfig>) -> Self {
        self.config.tls = Some(Secret(config));
        self
    }

    /// Gives the owners of the backend the process of
    /// [`Owner::fresh`](crate::backend::Owner::fresh). So pushes reach claims that a test has
    /// created.
    #[doc(hidden)]
    pub fn with_shared_process(mut self) -> Self {
        self.process = Some(ProcessId::of_this());
        self
    }

    /// Builds the backend, which connects when it is first used, or by [`RedisBackend::ready`].
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`] if
    ///
    /// - not exactly one of [`server`](Self::server), [`sentinels`](Self::sentinels) and
    ///   [`cluster`](Self::cluster) was given;
    /// - a URL cannot be read, or asks for TLS without the feature `tls`;
    /// - the URLs of a cluster name a database or a socket file, or only some of them use TLS;
    /// - another setting is outside its range.
    pub fn build(self) -> Result<RedisBackend, Error> {
        self.check()?;
        let (servers, database) = Servers::new(self.config)?;
        Ok(RedisBackend(Arc::new(RedisInner {
            servers,
            process: self.process.unwrap_or_else(ProcessId::fresh),
            channel_names: ChannelNames::new(database),
            staying: StayingChannels::default(),
            publish_refused: AtomicBool::new(false),
            heartbeat: Heartbeat::default(),
        })))
    }

    fn check(&self) -> Result<(), Error> {
        let Self { config, .. } = self;
        check_timeout("command_timeout", config.command_timeout)?;
        if let Some(timeout) = config.connect_timeout {
            check_timeout("connect_timeout", timeout)?;
        }
        if let Some(name) = &config.client_name
            && !is_client_name(name)
        {
            let range = "give 1 to 64 visible ASCII characters without spaces";
            return Err(invalid(format!("`client_name` is {name:?}; {range}")));
        }
        if let Some(replicas) = &config.replicas {
            replicas.check(config.command_timeout)?;
        }
        Ok(())
    }
}

fn check_timeout(setting: &str, timeout: Duration) -> Result<(), Error> {
    if timeout.is_zero() || timeout > LONGEST_TIMEOUT {
        let range = "give more than 0, and at most 24 h";
        return Err(invalid(format!("`{setting}` is {timeout:?}; {range}")));
    }
    Ok(())
}

fn is_client_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
}

fn invalid(why: String) -> Error {
    Error::new(ErrorKind::InvalidConfig, why)
}

fn owned<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Secret<Vec<String>> {
    let urls = urls.into_iter().map(|url| url.as_ref().to_owned());
    Secret(urls.collect())
}

/// Reads the settings from a configuration file. Each setting has the name of its method. A file
/// cannot have credentials by a callback, nor a TLS configuration.
///
/// One of `server`, `sentinels` with `master`, and `cluster` must be given. A time is a text such
/// as `250ms`: a whole number with the unit `ms`, `s`, `m` or `h`.
///
/// An error does not show a URL or a password. Yet some formats, such as TOML, add the line of the
/// mistake to the error.
///
/// ```
/// # use bellwether::backend::RedisBackendBuilder;
/// let text = r#"{
///     "sentinels": ["redis://10.0.0.1:26379"],
///     "master": "mymaster",
///     "command_timeout": "500ms",
///     "replicas": { "count": 1, "within": "50ms" }
/// }"#;
/// let builder: RedisBackendBuilder = serde_json::from_str(text).unwrap();
/// # builder.build().unwrap();
/// ```
impl<'de> Deserialize<'de> for RedisBackendBuilder {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(SettingsVisitor)
    }
}

/// Reads a map of settings. The visitor refuses a text itself, because the error of the format
/// would show the text, which may be a URL.
struct SettingsVisitor;

impl<'de> Visitor<'de> for SettingsVisitor {
    type Value = RedisBackendBuilder;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of settings")
    }

    fn visit_str<E: serde::de::Error>(self, _url: &str) -> Result<Self::Value, E> {
        Err(E::custom("a text stands where a map of settings is expected"))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        let config = RedisConfig::deserialize(MapAccessDeserializer::new(map))?;
        config.location().map_err(A::Error::custom)?;
        Ok(RedisBackendBuilder { config, process: None })
    }
}
