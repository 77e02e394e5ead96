//! Finding the master by asking sentinels.
//!
//! They are asked in turn, from the one that answered last, each for a short time; whom they name must call
//! itself a master, too, for a sentinel that was cut off for a while names the one before. (Redis, "Guidelines
//! for Redis clients with support for Redis Sentinel".) While connected they are asked again every second:
//! a master that they gave up may live on and accept writes that will be lost, and as long as it does, its
//! connections do not break.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use redis::{
    Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, aio::MultiplexedConnection,
};
use tokio::time::{sleep, timeout};
use tracing::info;

use super::connect;
use crate::error::{BackendError, BackendErrorKind, Error, ErrorKind as Kind};

/// How long one sentinel may take: the next one may know it already.
const ASK_LIMIT: Duration = Duration::from_millis(250);
/// How often they are asked while connected.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The master that sentinels watch: the name that they have for it, and how to connect to it.
///
/// Made from its name alone where it asks for no credentials.
#[derive(Clone)]
pub struct SentinelMaster {
    name: String,
    settings: RedisConnectionInfo,
    tls: bool,
}

impl SentinelMaster {
    /// The master of this name, without credentials, database 0, without TLS.
    pub fn named(name: impl Into<String>) -> Self {
        let settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3);
        Self { name: name.into(), settings, tls: false }
    }

    /// The user that the master knows us as; the default user unless set.
    #[must_use]
    pub fn username(mut self, username: &str) -> Self {
        self.settings = self.settings.set_username(username);
        self
    }

    /// The password that the master, and every server that may become it, asks for.
    #[must_use]
    pub fn password(mut self, password: &str) -> Self {
        self.settings = self.settings.set_password(password);
        self
    }

    /// The number of the database: 0 unless set.
    #[must_use]
    pub fn database(mut self, database: i64) -> Self {
        self.settings = self.settings.set_db(database);
        self
    }

    /// Connects to the master by TLS, as [`RedisBackend::open`](super::RedisBackend::open) does. Its certificate must
    /// have the name or the address that the sentinels announce.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self) -> Self {
        connect::provide_cryptography();
        self.tls = true;
        self
    }

    fn at(&self, (host, port): Address) -> Result<Client, RedisError> {
        let address = if self.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?;
        Client::open(
            info.set_redis_settings(self.settings.clone()).set_tcp_settings(connect::tcp()),
        )
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

type Address = (String, u16);

pub(super) struct Sentinel {
    sentinels: Vec<Client>,
    master: SentinelMaster,
    /// The one to ask first.
    first: AtomicUsize,
}

/// A master that was found, and who named it.
pub(super) struct Sighting {
    sentinel: Arc<Sentinel>,
    address: Address,
    by: usize,
    connection: Option<MultiplexedConnection>,
}

impl Sentinel {
    pub(super) fn new<U: AsRef<str>>(
        sentinels: impl IntoIterator<Item = U>,
        master: SentinelMaster,
    ) -> Result<Self, Error> {
        let client =
            |url: U| connect::info(url.as_ref()).map(of_sentinel).and_then(connect::client);
        let sentinels = sentinels.into_iter().map(client).collect::<Result<Vec<_>, _>>()?;
        if sentinels.is_empty() {
            return Err(Error::new(Kind::InvalidConfig, "no sentinel is named"));
        }
        Ok(Self { sentinels, master, first: AtomicUsize::new(0) })
    }

    pub(super) fn database(&self) -> i64 {
        self.master.settings.db()
    }

    /// The present master.
    pub(super) async fn find(self: &Arc<Self>) -> Result<(Client, Sighting), BackendError> {
        let unavailable = |error| BackendError::new(BackendErrorKind::Unavailable, error);
        let sighting = self.locate().await.map_err(unavailable)?;
        let client = self.master.at(sighting.address.clone()).map_err(unavailable)?;
        Ok((client, sighting))
    }

    async fn locate(self: &Arc<Self>) -> Result<Sighting, RedisError> {
        let (first, count) = (self.first.load(Ordering::Relaxed), self.sentinels.len());
        let mut why = None;
        for by in (0..count).map(|turn| (first + turn) % count) {
            let question = async {
                let client = &self.sentinels[by];
                let config = connect::config();
                let mut connection =
                    client.get_multiplexed_async_connection_with_config(&config).await?;
                let address = self.ask(&mut connection).await?;
                Ok((address, connection))
            };
            match timeout(ASK_LIMIT, question).await.unwrap_or_else(|_| Err(silent())) {
                Ok((address, connection)) => {
                    self.first.store(by, Ordering::Relaxed);
                    let (sentinel, connection) = (self.clone(), Some(connection));
                    return Ok(Sighting { sentinel, address, by, connection });
                }
                Err(error) => why = Some(error),
            }
        }
        Err(why.unwrap_or_else(silent))
    }

    async fn ask(&self, connection: &mut MultiplexedConnection) -> Result<Address, RedisError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master.name);
        let answer: Option<Address> = question.query_async(connection).await?;
        let unknown = "a sentinel does not know the master";
        answer
            .ok_or_else(|| RedisError::from((ErrorKind::Client, unknown, self.master.name.clone())))
    }
}

impl Sighting {
    /// Completes when a sentinel names another server, and that is a master.
    ///
    /// So long as no sentinel answers, or the one that it names cannot be used, what there is stays.
    pub(super) async fn outdated(mut self) {
        loop {
            sleep(ASK_EVERY).await;
            let Ok(now) = self.again().await else { continue };
            if now != self.address && self.leads(now.clone()).await {
                info!(host = %now.0, port = now.1, "the sentinels name another master");
                return;
            }
        }
    }

    /// What was found could not be used: the next sentinel may know better.
    pub(super) fn doubt(self) {
        let next = (self.by + 1) % self.sentinel.sentinels.len();
        self.sentinel.first.store(next, Ordering::Relaxed);
    }

    async fn again(&mut self) -> Result<Address, RedisError> {
        if let Some(mut connection) = self.connection.take() {
            let answer = timeout(ASK_LIMIT, self.sentinel.ask(&mut connection)).await;
            if let Ok(Ok(address)) = answer {
                self.connection = Some(connection);
                return Ok(address);
            }
        }
        let now = self.sentinel.locate().await?;
        (self.by, self.connection) = (now.by, now.connection);
        Ok(now.address)
    }

    async fn leads(&self, address: Address) -> bool {
        let attempt = async {
            let client = self.sentinel.master.at(address)?;
            let config = connect::config();
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config).await?;
            connect::refuse_replica(&mut connection).await
        };
        matches!(timeout(ASK_LIMIT, attempt).await, Ok(Ok(())))
    }
}

/// Sentinels of Redis 6 do not speak the newer protocol, and push nothing here.
fn of_sentinel(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
    info.set_redis_settings(settings)
}

fn silent() -> RedisError {
    RedisError::from((ErrorKind::Client, "no sentinel answers"))
}
