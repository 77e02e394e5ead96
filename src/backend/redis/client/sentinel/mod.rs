//! Finds the master by asking sentinels.
//!
//! The sentinels are asked one after another, from the one that replied last. If one has not
//! replied for a moment, the next one is asked, too. The server that a sentinel names must call
//! itself a master, because a sentinel that was cut off for a while names the previous master.
//! (Redis, "Guidelines for Redis clients with support for Redis Sentinel".) While there is a
//! connection, a task watches for another master (`watch`), once for all backends of the process
//! that look for the same one in the same way.

mod known;
mod watch;

use std::{
    fmt,
    sync::{Arc, Mutex, Weak},
};

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError,
};

pub(super) use self::watch::MasterWatch;
use self::{known::KnownSentinels, watch::SharedWatch};
use super::{
    address,
    failure::ClientError,
    target::{Access, ConnectTarget, log_in_alike},
};
use crate::{
    error::{BackendError, BackendErrorKind, BoxError, Error, ErrorKind as Kind},
    sync::lock,
};

/// The master that sentinels watch: its name, and the settings of connections to it.
///
/// A `&str` or `String` with the name converts to it, if the master asks for no credentials.
///
/// # Examples
///
/// ```
/// use bellwether::{RedisBackend, backend::SentinelMaster};
///
/// let master = SentinelMaster::named("mymaster").username("shop").password("secret").database(3);
/// let backend = RedisBackend::builder()
///     .sentinels(["redis://10.0.0.1:26379", "redis://10.0.0.2:26379"], master)
///     .build()?;
/// # Ok::<_, bellwether::Error>(())
/// ```
#[derive(Clone)]
pub struct SentinelMaster {
    name: String,
    settings: RedisConnectionInfo,
    tls: bool,
}

impl SentinelMaster {
    /// Names the master, without credentials, with database 0, without TLS.
    pub fn named(name: impl Into<String>) -> Self {
        let settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        Self { name: name.into(), settings, tls: false }
    }

    /// Sets the user name. Defaults to the default user of Redis.
    #[must_use]
    pub fn username(mut self, username: &str) -> Self {
        self.settings = self.settings.set_username(username);
        self
    }

    /// Sets the password of the master, and of each replica that may become the master.
    ///
    /// Defaults to none.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.settings = self.settings.set_password(password);
        self
    }

    /// Sets the number of the database. Defaults to 0.
    #[must_use]
    pub fn database(mut self, database: i64) -> Self {
        self.settings = self.settings.set_db(database);
        self
    }

    /// Connects to the master by TLS, as [`RedisBackend::open`](crate::backend::RedisBackend::open)
    /// does.
    ///
    /// The certificate must have the name or the address that the sentinels announce. Defaults to
    /// no TLS.
    ///
    /// ```
    /// # use bellwether::backend::SentinelMaster;
    /// let master = SentinelMaster::named("mymaster").tls();
    /// ```
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self) -> Self {
        address::install_crypto_provider();
        self.tls = true;
        self
    }

    fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
            && self.tls == other.tls
            && log_in_alike(&self.settings, &other.settings)
    }

    fn target_at(
        &self,
        (host, port): HostPort,
        access: &Access,
    ) -> Result<ConnectTarget, RedisError> {
        let address = if self.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?;
        let info = info.set_redis_settings(self.settings.clone());
        Ok(ConnectTarget::new(info.set_tcp_settings(address::tcp_settings()), access))
    }
}

impl From<&str> for SentinelMaster {
    fn from(name: &str) -> Self {
        Self::named(name)
    }
}

impl From<String> for SentinelMaster {
    fn from(name: String) -> Self {
        Self::named(name)
    }
}

impl fmt::Debug for SentinelMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentinelMaster").field("name", &self.name).finish_non_exhaustive()
    }
}

pub(super) type HostPort = (String, u16);

pub(in crate::backend::redis) struct Sentinels(Arc<SharedWatch>);

/// The watches of the process. Each lasts as long as a backend that uses it.
static WATCHES: Mutex<Vec<Weak<SharedWatch>>> = Mutex::new(Vec::new());

impl Sentinels {
    pub(in crate::backend::redis) fn new<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        master: SentinelMaster,
        access: &Access,
    ) -> Result<Self, Error> {
        let infos = address::parse_all(urls)?.into_iter().map(of_sentinel);
        // The credentials of sentinels are in their URLs.
        let of_sentinels = access.without_credentials();
        let targets: Vec<_> = infos.map(|info| ConnectTarget::new(info, &of_sentinels)).collect();
        if targets.is_empty() {
            let why = "no sentinel was given; give the URL of one sentinel or more";
            return Err(Error::new(Kind::InvalidConfig, why));
        }
        Ok(Self::shared(KnownSentinels::new(targets, master, access)))
    }

    /// Shares the watch of another backend, if there is one for the same master.
    fn shared(known: KnownSentinels) -> Self {
        let mut watches = lock(&WATCHES);
        watches.retain(|watch| watch.strong_count() > 0);
        let same = watches.iter().filter_map(Weak::upgrade);
        if let Some(watch) = same.into_iter().find(|watch| watch.known().is_same(&known)) {
            return Self(watch);
        }
        let watch = Arc::new(SharedWatch::new(known));
        watches.push(Arc::downgrade(&watch));
        Self(watch)
    }

    pub(super) fn master_name(&self) -> &str {
        self.0.known().master_name()
    }

    pub(super) fn database(&self) -> i64 {
        self.0.known().master.settings.db()
    }

    /// Returns the current master. Starts the task that watches for another one.
    pub(super) async fn find(&self) -> Result<(ConnectTarget, MasterWatch), BackendError> {
        let known = self.0.known();
        // A change that is seen from here on may be newer than the answer.
        let seen = known.seen.subscribe();
        let (address, named_by) = known.locate().await.map_err(unavailable)?;
        let target = known.master.target_at(address.clone(), &known.access);
        let target = target.map_err(|error| unavailable(ClientError(error).into()))?;
        self.0.start();
        Ok((target, MasterWatch::new(self.0.clone(), seen, address, named_by)))
    }
}

fn unavailable(error: BoxError) -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, error)
}

/// Uses RESP2: sentinels of Redis 6 do not speak RESP3.
fn of_sentinel(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
    info.set_redis_settings(settings)
}
