//! Finds the master by asking sentinels.
//!
//! The sentinels are asked one after another, from the one that replied last. If one has not
//! replied for a moment, the next one is asked, too. The server that a sentinel names must call
//! itself a master, because a sentinel that was cut off for a while names the previous master.
//! (Redis, "Guidelines for Redis clients with support for Redis Sentinel".) While there is a
//! connection, a task watches for another master (`watch`).

mod known;
mod watch;

use std::{fmt, sync::Arc};

use redis::{
    ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisConnectionInfo,
    RedisError,
};

pub(super) use self::watch::MasterWatch;
use self::{
    known::KnownSentinels,
    watch::{WatchRun, keep_watching},
};
use super::{
    address,
    failure::ClientError,
    target::{Access, Target},
    task::OnDemandTask,
};
use crate::error::{BackendError, BackendErrorKind, Error, ErrorKind as Kind};

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
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self) -> Self {
        address::install_crypto_provider();
        self.tls = true;
        self
    }

    fn target_at(&self, (host, port): HostPort, access: &Access) -> Result<Target, RedisError> {
        let address = if self.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?;
        let info = info.set_redis_settings(self.settings.clone());
        Ok(Target::new(info.set_tcp_settings(address::tcp_settings()), access))
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

type HostPort = (String, u16);

pub(in crate::backend::redis) struct Sentinels {
    known: Arc<KnownSentinels>,
    watch: OnDemandTask,
}

impl Sentinels {
    pub(in crate::backend::redis) fn new<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        master: SentinelMaster,
        access: &Access,
    ) -> Result<Self, Error> {
        let infos = address::parse_all(urls)?.into_iter().map(of_sentinel);
        // The credentials of sentinels are in their URLs.
        let of_sentinels = access.without_credentials();
        let targets: Vec<_> = infos.map(|info| Target::new(info, &of_sentinels)).collect();
        if targets.is_empty() {
            let why = "no sentinel was given; give the URL of one sentinel or more";
            return Err(Error::new(Kind::InvalidConfig, why));
        }
        let known = Arc::new(KnownSentinels::new(targets, master, access));
        Ok(Self { known, watch: OnDemandTask::default() })
    }

    pub(super) fn master_name(&self) -> &str {
        &self.known.master.name
    }

    pub(super) fn database(&self) -> i64 {
        self.known.master.settings.db()
    }

    /// Returns the current master. Starts the task that watches for another one.
    pub(super) async fn find(&self) -> Result<(Target, MasterWatch), BackendError> {
        let unavailable =
            |error| BackendError::new(BackendErrorKind::Unavailable, ClientError(error));
        let known = &self.known;
        // What is seen from here on may be newer than the answer.
        let seen = known.seen.subscribe();
        let (address, named_by) = known.locate().await.map_err(unavailable)?;
        let target = known.master.target_at(address.clone(), &known.access).map_err(unavailable)?;
        self.watch.start(|| keep_watching(WatchRun(known.clone())));
        Ok((target, MasterWatch::new(known.clone(), seen, address, named_by)))
    }
}

/// Uses RESP2: sentinels of Redis 6 do not speak RESP3.
fn of_sentinel(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
    info.set_redis_settings(settings)
}
