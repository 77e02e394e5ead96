//! Finds the master by asking sentinels.
//!
//! The sentinels are asked in turn, from the one that replied last, each for a short time. The
//! server that a sentinel names must call itself a master, too, because a sentinel that was cut off
//! for a while names the previous master. (Redis, "Guidelines for Redis clients with support for
//! Redis Sentinel".) While there is a connection, the sentinels are asked again every second. A
//! master that they have replaced may live on and accept writes that will be lost, and its
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

use super::{
    address,
    failure::ClientError,
    handshake::{config, refuse_replica},
};
use crate::error::{BackendError, BackendErrorKind, Error, ErrorKind as Kind};

/// How long one sentinel may take, before the next one is asked.
const ASK_LIMIT: Duration = Duration::from_millis(250);
/// How often the sentinels are asked while there is a connection.
const ASK_EVERY: Duration = Duration::from_secs(1);

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

    /// Connects to the master by TLS, as [`RedisBackend::open`](super::super::RedisBackend::open)
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

    fn client_at(&self, (host, port): HostPort) -> Result<Client, RedisError> {
        let address = if self.tls {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        };
        let info = address.into_connection_info()?;
        let info = info.set_redis_settings(self.settings.clone());
        Client::open(info.set_tcp_settings(address::tcp_settings()))
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

pub(in super::super) struct Sentinels {
    clients: Vec<Client>,
    master: SentinelMaster,
    /// The index of the sentinel to ask first.
    first: AtomicUsize,
}

/// The address of a master, and the sentinel that named it.
pub(super) struct MasterWatch {
    sentinels: Arc<Sentinels>,
    address: HostPort,
    named_by: usize,
    connection: Option<MultiplexedConnection>,
}

impl Sentinels {
    pub(in super::super) fn new<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        master: SentinelMaster,
    ) -> Result<Self, Error> {
        let infos = address::parse_all(urls)?.into_iter();
        let clients = infos.map(of_sentinel).map(address::client).collect::<Result<Vec<_>, _>>()?;
        if clients.is_empty() {
            let why = "no sentinel was given; give the URL of one sentinel or more";
            return Err(Error::new(Kind::InvalidConfig, why));
        }
        Ok(Self { clients, master, first: AtomicUsize::new(0) })
    }

    pub(super) fn master_name(&self) -> &str {
        &self.master.name
    }

    pub(super) fn database(&self) -> i64 {
        self.master.settings.db()
    }

    /// Returns the current master.
    pub(super) async fn find(self: &Arc<Self>) -> Result<(Client, MasterWatch), BackendError> {
        let unavailable =
            |error| BackendError::new(BackendErrorKind::Unavailable, ClientError(error));
        let watch = self.locate().await.map_err(unavailable)?;
        let client = self.master.client_at(watch.address.clone()).map_err(unavailable)?;
        Ok((client, watch))
    }

    async fn locate(self: &Arc<Self>) -> Result<MasterWatch, RedisError> {
        let (first, count) = (self.first.load(Ordering::Relaxed), self.clients.len());
        let mut last_error = None;
        for named_by in (0..count).map(|turn| (first + turn) % count) {
            let question = async {
                let client = &self.clients[named_by];
                let mut connection =
                    client.get_multiplexed_async_connection_with_config(&config()).await?;
                let address = self.ask(&mut connection).await?;
                Ok((address, connection))
            };
            match timeout(ASK_LIMIT, question).await.unwrap_or_else(|_| Err(silent())) {
                Ok((address, connection)) => {
                    self.first.store(named_by, Ordering::Relaxed);
                    let (sentinels, connection) = (self.clone(), Some(connection));
                    return Ok(MasterWatch { sentinels, address, named_by, connection });
                }
                Err(error) => last_error = Some(error),
            }
        }
        Err(last_error.unwrap_or_else(silent))
    }

    async fn ask(&self, connection: &mut MultiplexedConnection) -> Result<HostPort, RedisError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master.name);
        let reply: Option<HostPort> = question.query_async(connection).await?;
        let unknown = "a sentinel does not know the master";
        reply
            .ok_or_else(|| RedisError::from((ErrorKind::Client, unknown, self.master.name.clone())))
    }
}

impl MasterWatch {
    /// Completes when a sentinel names another server, and that server is a master.
    ///
    /// The connection stays while no sentinel replies, or the server that is named cannot be used.
    pub(super) async fn outdated(mut self) {
        loop {
            sleep(ASK_EVERY).await;
            let Ok(now) = self.ask_again().await else { continue };
            if now != self.address && self.is_master(now.clone()).await {
                info!(host = %now.0, port = now.1, "the sentinels name another master");
                return;
            }
        }
    }

    /// Reports that the server could not be used, so that the next sentinel is asked first.
    pub(super) fn report_failure(self) {
        let next = (self.named_by + 1) % self.sentinels.clients.len();
        self.sentinels.first.store(next, Ordering::Relaxed);
    }

    async fn ask_again(&mut self) -> Result<HostPort, RedisError> {
        if let Some(mut connection) = self.connection.take() {
            let reply = timeout(ASK_LIMIT, self.sentinels.ask(&mut connection)).await;
            if let Ok(Ok(address)) = reply {
                self.connection = Some(connection);
                return Ok(address);
            }
        }
        let now = self.sentinels.locate().await?;
        (self.named_by, self.connection) = (now.named_by, now.connection);
        Ok(now.address)
    }

    async fn is_master(&self, address: HostPort) -> bool {
        let attempt = async {
            let client = self.sentinels.master.client_at(address)?;
            let mut connection =
                client.get_multiplexed_async_connection_with_config(&config()).await?;
            refuse_replica(&mut connection).await
        };
        matches!(timeout(ASK_LIMIT, attempt).await, Ok(Ok(())))
    }
}

/// Uses RESP2: sentinels of Redis 6 do not speak RESP3, and no sentinel pushes anything here.
fn of_sentinel(info: ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
    info.set_redis_settings(settings)
}

fn silent() -> RedisError {
    RedisError::from((ErrorKind::Client, "no sentinel replied in time"))
}
