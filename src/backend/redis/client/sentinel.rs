//! The server that a connection goes to: always the same one, or the master that sentinels name.
//!
//! One task finds the master, and tells all connections. The old master may live on and accept
//! writes that will be lost, so the connections leave it. A sentinel that announces a failover is
//! asked at once. In case an announcement is lost, the task also asks every second.
//!
//! The server that a sentinel names must call itself a master, because a sentinel that was cut off
//! for a while names the previous master.
//! (Redis, "Guidelines for Redis clients with support for Redis Sentinel".)

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{join_all, select_ok},
};
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo,
    RedisConnectionInfo, RedisError, aio::PubSub,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::{
    connect::{ConnectError, Connection, ask, connect, open_pubsub, refuse_replica},
    failure::ClientError,
    settings::{self, Access, ConnectTarget, Credentials, RedisConfig},
    task::{Finding, LatestFinding, OnDemandTask},
};
use crate::{
    error::{BackendError, BackendErrorKind, BoxError, Error, ErrorKind as Kind},
    time::Pauses,
};

/// How often the sentinels are asked.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// The announcements of a failover. A replica that was promoted is the master already, although the
/// sentinels announce the switch only when the other replicas follow it.
const ANNOUNCEMENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The server that a connection goes to.
#[derive(Clone)]
pub(in super::super) enum Endpoint {
    Server(Box<ConnectTarget>),
    /// The server that the sentinels name as the master.
    Sentinel(Arc<Sentinels>),
}

impl Endpoint {
    pub(in super::super) fn server(url: &str, access: &Access) -> Result<Self, Error> {
        let info = settings::parse(url)?;
        Ok(Self::Server(Box::new(ConnectTarget { info, access: access.clone() })))
    }

    /// Finds the server, connects, and checks that it can be written to.
    ///
    /// Replaces `watch` by the watch of the server. Returns `None` if it reports another server
    /// meanwhile, because an attempt at a host that is down may last until its time-out.
    pub(super) async fn connect(
        &self,
        watch: &mut EndpointWatch,
        settings: &RedisConfig,
        broken: CancellationToken,
        on_push: impl Fn(PushInfo) + Send + Sync + 'static,
    ) -> Result<Option<Connection>, BackendError> {
        let (target, found) = self.find().await?;
        *watch = found;
        let connected = tokio::select! {
            connected = connect(&target, settings, broken, on_push) => connected.map(Some),
            () = watch.outdated() => Ok(None),
        };
        if !matches!(connected, Ok(Some(_))) {
            watch.report_failure();
        }
        connected.map_err(unavailable)
    }

    /// Returns the server to connect to now, and the watch for another one.
    async fn find(&self) -> Result<(ConnectTarget, EndpointWatch), BackendError> {
        match self {
            Self::Server(target) => Ok(((**target).clone(), EndpointWatch(None))),
            Self::Sentinel(sentinels) => {
                let (target, watch) = sentinels.find().await?;
                Ok((target, EndpointWatch(Some(watch))))
            }
        }
    }

    /// Returns the server for logs, without credentials.
    pub(super) fn shown(&self) -> String {
        match self {
            Self::Server(target) => target.info.addr().to_string(),
            Self::Sentinel(sentinels) => format!("master {:?}", sentinels.known.master.name),
        }
    }

    pub(in super::super) fn database(&self) -> i64 {
        match self {
            Self::Server(target) => target.info.redis_settings().db(),
            Self::Sentinel(sentinels) => sentinels.known.master.settings.db(),
        }
    }
}

/// The master that sentinels watch: its name, and the settings of connections to it.
///
/// A `&str` or `String` with the name converts to it, if the master asks for no credentials.
///
/// # Examples
///
/// ```
/// use bellwether::{
///     RedisBackend,
///     backend::{Credentials, SentinelMaster},
/// };
///
/// let master = SentinelMaster::named("mymaster")
///     .credentials(Credentials::user("shop", "secret"))
///     .database(3);
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

    /// Sets the credentials of the master, and of each replica that may become the master.
    ///
    /// Defaults to none.
    #[must_use]
    pub fn credentials(mut self, credentials: Credentials) -> Self {
        self.settings = credentials.of(self.settings);
        self
    }

    /// Sets the number of the database. Defaults to 0.
    #[must_use]
    pub fn database(mut self, database: i64) -> Self {
        self.settings = self.settings.set_db(database);
        self
    }

    /// Connects to the master by TLS. Its certificate must have the name or the address that the
    /// sentinels announce.
    ///
    /// Defaults to no TLS.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    fn target_at(
        &self,
        (host, port): HostPort,
        access: &Access,
    ) -> Result<ConnectTarget, RedisError> {
        let address = match self.tls {
            true => settings::tls_addr(host, port),
            false => ConnectionAddr::Tcp(host, port),
        };
        let info = address.into_connection_info()?.set_redis_settings(self.settings.clone());
        Ok(ConnectTarget { info, access: access.clone() })
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

/// The sentinels, and the task that watches what they say. It ends when this is dropped.
pub(in crate::backend::redis) struct Sentinels {
    known: Arc<KnownSentinels>,
    task: OnDemandTask,
}

/// The facts that the connections and the watch share.
struct KnownSentinels {
    targets: Vec<ConnectTarget>,
    master: SentinelMaster,
    config: RedisConfig,
    /// The index of the sentinel that is asked alone, or [`NONE`].
    trusted: AtomicUsize,
    /// The server that was named last, and calls itself a master.
    named: LatestFinding<HostPort>,
}

/// Stands for no sentinel, so that all are asked.
const NONE: usize = usize::MAX;

impl Sentinels {
    pub(in crate::backend::redis) fn new(
        urls: &[String],
        master: SentinelMaster,
        config: &RedisConfig,
    ) -> Result<Self, Error> {
        // The credentials of sentinels are in their URLs.
        let mut access = config.access.clone();
        access.credentials = None;
        let target = |info: ConnectionInfo| {
            // Sentinels of Redis 6 do not speak RESP3.
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
            ConnectTarget { info: info.set_redis_settings(settings), access: access.clone() }
        };
        let targets: Vec<_> = settings::parse_all(urls)?.into_iter().map(target).collect();
        if targets.is_empty() {
            let why = "no sentinel was given; give the URL of one sentinel or more";
            return Err(Error::new(Kind::InvalidConfig, why));
        }
        let (trusted, named) = (AtomicUsize::new(NONE), LatestFinding::new());
        let known = KnownSentinels { targets, master, config: config.clone(), trusted, named };
        Ok(Self { known: Arc::new(known), task: OnDemandTask::default() })
    }

    /// Returns the current master. Starts the task that watches for another one.
    async fn find(self: &Arc<Self>) -> Result<(ConnectTarget, MasterWatch), BackendError> {
        let known = &self.known;
        let address = known.named.wait(&known.config, || self.start_watch()).await?;
        let target = known.master.target_at(address.clone(), &known.config.access);
        let target = target.map_err(|error| unavailable(ClientError(error)))?;
        let named = known.named.subscribe();
        Ok((target, MasterWatch { sentinels: self.clone(), named, address }))
    }

    /// Starts the task on the current runtime, unless it runs.
    fn start_watch(&self) {
        self.task.start(|| {
            let known = self.known.clone();
            (keep_watching(self.known.clone()), move || known.named.set(Finding::Nothing))
        });
    }
}

fn unavailable(error: impl Into<BoxError>) -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, error)
}

impl KnownSentinels {
    /// Makes the master known. Returns whether a sentinel named one.
    ///
    /// All sentinels are asked at once, and the first good answer counts. From then on its sentinel
    /// is asked alone while it answers, so that two that disagree do not take turns.
    async fn locate(&self) -> Result<(), ConnectError> {
        let trusted = self.trusted.load(Ordering::Relaxed);
        if trusted != NONE && self.hear(trusted).await.is_ok() {
            return Ok(());
        }
        self.trusted.store(NONE, Ordering::Relaxed);
        let all = (0..self.targets.len()).map(|sentinel| self.hear(sentinel).boxed());
        select_ok(all).await.map(drop)
    }

    /// Asks one sentinel, and makes the server known that it names, if that is a master.
    async fn hear(&self, sentinel: usize) -> Result<(), ConnectError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master.name);
        let limit = self.config.connect_timeout();
        let named = ask(&self.targets[sentinel], limit, async |connection| {
            let reply: Option<HostPort> = question.query_async(connection).await?;
            let unknown = "a sentinel does not know the master";
            let address = reply.ok_or_else(|| {
                RedisError::from((ErrorKind::Client, unknown, self.master.name.clone()))
            })?;
            Ok((self.master.target_at(address.clone(), &self.config.access)?, address))
        });
        let (target, address) = named.await?;
        let is_new = self.named.known().as_ref() != Some(&address);
        if is_new || self.trusted.load(Ordering::Relaxed) != sentinel {
            ask(&target, limit, async |connection| refuse_replica(connection, None).await).await?;
        }
        if is_new {
            self.named.set(Finding::Known(address));
        }
        self.trusted.store(sentinel, Ordering::Relaxed);
        Ok(())
    }

    /// Listens to a sentinel until its connection ends.
    async fn listen(&self, sentinel: usize) -> Result<(), RedisError> {
        let listening = async {
            let mut pubsub: PubSub = open_pubsub(&self.targets[sentinel]).await?;
            pubsub.subscribe(&ANNOUNCEMENTS[..]).await?;
            Ok::<_, RedisError>(pubsub)
        };
        let limit = self.config.connect_timeout();
        let Ok(pubsub) = timeout(limit, listening).await else { return Ok(()) };
        let mut messages = pubsub?.into_on_message();
        while let Some(message) = messages.next().await {
            let text: String = message.get_payload().unwrap_or_default();
            if text.split(' ').any(|word| word == self.master.name) {
                // If this fails, it is asked within a second.
                let _ = self.hear(sentinel).await;
            }
        }
        Ok(())
    }
}

async fn keep_watching(known: Arc<KnownSentinels>) {
    let asks = async {
        let mut pauses = Pauses::default();
        loop {
            let pause = match known.locate().await {
                Ok(()) => {
                    pauses = Pauses::default();
                    ASK_EVERY
                }
                Err(error) => {
                    known.named.set_unless_known(Finding::Failed(unavailable(error)));
                    pauses.next()
                }
            };
            sleep(pause).await;
        }
    };
    let listens = join_all((0..known.targets.len()).map(async |sentinel| {
        loop {
            // A sentinel that cannot be listened to may be asked all the same.
            let _ = known.listen(sentinel).await;
            sleep(ASK_EVERY.mul_f64(0.5 + fastrand::f64())).await;
        }
    }));
    let ((), _) = tokio::join!(asks, listens);
}

/// Reports when a connection must go to another server than the one that it found last. It never
/// does without sentinels.
#[derive(Default)]
pub(super) struct EndpointWatch(Option<MasterWatch>);

struct MasterWatch {
    sentinels: Arc<Sentinels>,
    named: watch::Receiver<Finding<HostPort>>,
    address: HostPort,
}

impl EndpointWatch {
    /// Completes when the sentinels name another server, and that server is a master.
    ///
    /// The connection stays while no sentinel replies, or the server that is named cannot be used.
    /// Nothing is lost if a call is dropped.
    pub(super) async fn outdated(&mut self) {
        let Some(watch) = &mut self.0 else { return std::future::pending().await };
        loop {
            let now = watch.named.borrow_and_update().clone();
            match now {
                Finding::Known(now) if now != watch.address => {
                    info!(host = %now.0, port = now.1, "the sentinels name another master");
                    return;
                }
                // The runtime of the watch has ended.
                Finding::Nothing => watch.sentinels.start_watch(),
                _ => {}
            }
            // The sender lives as long as this.
            let _ = watch.named.changed().await;
        }
    }

    /// Has all sentinels asked, because the server that one named could not be used.
    fn report_failure(&self) {
        if let Some(MasterWatch { sentinels, .. }) = &self.0 {
            sentinels.known.trusted.store(NONE, Ordering::Relaxed);
        }
    }
}
