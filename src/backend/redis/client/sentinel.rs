//! The server that a connection goes to: always the same one, or the master that sentinels name.
//!
//! The sentinels are asked one after another, from the one that replied last. The server that a
//! sentinel names must call itself a master, because a sentinel that was cut off for a while names
//! the previous master.
//! (Redis, "Guidelines for Redis clients with support for Redis Sentinel".)
//!
//! While there is a connection, a task watches for another master, because the old one may live on
//! and accept writes that will be lost. A sentinel that announces a failover is asked at once. In
//! case an announcement is lost, the sentinels are also asked every second.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt, future::join_all};
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, aio::PubSub,
};
use tokio::{
    sync::watch,
    time::{sleep, timeout},
};
use tracing::info;

use super::{
    connect::{ConnectError, ask, open_pubsub, refuse_replica},
    failure::ClientError,
    settings::{self, Access, ConnectTarget, Credentials, RedisConfig},
    task::OnDemandTask,
};
use crate::error::{BackendError, BackendErrorKind, BoxError, Error, ErrorKind as Kind};

/// How long a sentinel may take to answer, before the next one is asked.
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

    /// Returns the server to connect to now, and the watch for another one.
    pub(super) async fn find(&self) -> Result<(ConnectTarget, EndpointWatch), BackendError> {
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
    /// How to log in to the master.
    access: Access,
    ask_limit: Duration,
    /// The index of the sentinel to ask first.
    first: AtomicUsize,
    /// The master that the watch has seen last. `None` if the watch does not run.
    seen: watch::Sender<Option<HostPort>>,
}

impl Sentinels {
    pub(in crate::backend::redis) fn new(
        urls: &[String],
        master: SentinelMaster,
        config: &RedisConfig,
    ) -> Result<Self, Error> {
        let access = &config.access;
        // The credentials of sentinels are in their URLs.
        let mut access_to_sentinels = access.clone();
        access_to_sentinels.credentials = None;
        let target = |info: ConnectionInfo| {
            // Sentinels of Redis 6 do not speak RESP3.
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
            let info = info.set_redis_settings(settings);
            ConnectTarget { info, access: access_to_sentinels.clone() }
        };
        let targets: Vec<_> = settings::parse_all(urls)?.into_iter().map(target).collect();
        if targets.is_empty() {
            let why = "no sentinel was given; give the URL of one sentinel or more";
            return Err(Error::new(Kind::InvalidConfig, why));
        }
        let (first, seen) = (AtomicUsize::new(0), watch::Sender::new(None));
        let (access, ask_limit) = (access.clone(), config.ask_limit());
        let known = KnownSentinels { targets, master, access, ask_limit, first, seen };
        Ok(Self { known: Arc::new(known), task: OnDemandTask::default() })
    }

    /// Returns the current master. Starts the task that watches for another one.
    async fn find(self: &Arc<Self>) -> Result<(ConnectTarget, MasterWatch), BackendError> {
        let known = &self.known;
        // A change that is seen from here on may be newer than the answer.
        let seen = known.seen.subscribe();
        let (address, named_by) = known.locate().await.map_err(unavailable)?;
        let target = known.master.target_at(address.clone(), &known.access);
        let target = target.map_err(|error| unavailable(ClientError(error).into()))?;
        self.start_watch();
        Ok((target, MasterWatch { sentinels: self.clone(), seen, address, named_by }))
    }

    /// Starts the task on the current runtime, unless it runs.
    fn start_watch(&self) {
        self.task.start(|| keep_watching(WatchRun(self.known.clone())));
    }
}

fn unavailable(error: BoxError) -> BackendError {
    BackendError::new(BackendErrorKind::Unavailable, error)
}

impl KnownSentinels {
    /// Returns the address of the master, and the index of the sentinel that named it.
    async fn locate(&self) -> Result<(HostPort, usize), BoxError> {
        let (first, count) = (self.first.load(Ordering::Relaxed), self.targets.len());
        let mut failure = BoxError::from("there is no sentinel");
        for sentinel in (0..count).map(|turn| (first + turn) % count) {
            match self.ask(sentinel).await {
                Ok(address) => {
                    self.first.store(sentinel, Ordering::Relaxed);
                    return Ok((address, sentinel));
                }
                Err(error) => failure = error.into(),
            }
        }
        Err(failure)
    }

    /// Asks one sentinel.
    async fn ask(&self, sentinel: usize) -> Result<HostPort, ConnectError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.master.name);
        ask(&self.targets[sentinel], self.ask_limit, async |connection| {
            let reply: Option<HostPort> = question.query_async(connection).await?;
            let unknown = "a sentinel does not know the master";
            reply.ok_or_else(|| {
                RedisError::from((ErrorKind::Client, unknown, self.master.name.clone()))
            })
        })
        .await
    }

    async fn is_master(&self, address: HostPort) -> bool {
        let Ok(target) = self.master.target_at(address, &self.access) else { return false };
        ask(&target, self.ask_limit, async |connection| refuse_replica(connection).await)
            .await
            .is_ok()
    }

    /// Listens to a sentinel until its connection ends.
    async fn listen(&self, sentinel: usize) -> Result<(), RedisError> {
        let listening = async {
            let mut pubsub: PubSub = open_pubsub(&self.targets[sentinel]).await?;
            pubsub.subscribe(&ANNOUNCEMENTS[..]).await?;
            Ok::<_, RedisError>(pubsub)
        };
        let Ok(pubsub) = timeout(self.ask_limit, listening).await else { return Ok(()) };
        let mut messages = pubsub?.into_on_message();
        while let Some(message) = messages.next().await {
            let text: String = message.get_payload().unwrap_or_default();
            if text.split(' ').any(|word| word == self.master.name)
                && let Ok(address) = self.ask(sentinel).await
            {
                self.first.store(sentinel, Ordering::Relaxed);
                self.look_at(address).await;
            }
        }
        Ok(())
    }

    /// Makes an address that a sentinel named known, if the server there is a master.
    ///
    /// It is told again when it is known, for a connection may have come late to another address.
    async fn look_at(&self, address: HostPort) {
        let is_known = self.seen.borrow().as_ref() == Some(&address);
        if is_known || self.is_master(address.clone()).await {
            self.seen.send_replace(Some(address));
        }
    }
}

/// A run of the task. When it ends with its runtime, a connection of another one starts it again.
struct WatchRun(Arc<KnownSentinels>);

impl Drop for WatchRun {
    fn drop(&mut self) {
        self.0.seen.send_replace(None);
    }
}

async fn keep_watching(run: WatchRun) {
    let known = &run.0;
    let asks = async {
        loop {
            sleep(ASK_EVERY).await;
            if let Ok((address, _)) = known.locate().await {
                known.look_at(address).await;
            }
        }
    };
    let listens = join_all((0..known.targets.len()).map(async |sentinel| {
        loop {
            // A sentinel that cannot be listened to may be asked all the same.
            let _ = known.listen(sentinel).await;
            sleep(ASK_EVERY.mul_f64(0.5 + fastrand::f64())).await;
        }
    }));
    tokio::join!(asks, listens);
}

/// Reports when a connection must go to another server than the one that it found last. It never
/// does without sentinels.
#[derive(Default)]
pub(super) struct EndpointWatch(Option<MasterWatch>);

struct MasterWatch {
    sentinels: Arc<Sentinels>,
    seen: watch::Receiver<Option<HostPort>>,
    address: HostPort,
    named_by: usize,
}

impl EndpointWatch {
    /// Completes when the sentinels name another server, and that server is a master.
    ///
    /// The connection stays while no sentinel replies, or the server that is named cannot be used.
    /// Nothing is lost if a call is dropped.
    pub(super) async fn outdated(&mut self) {
        let Some(watch) = &mut self.0 else { return std::future::pending().await };
        // The sender lives as long as this.
        while watch.seen.changed().await.is_ok() {
            let now = watch.seen.borrow_and_update().clone();
            match now {
                Some(now) if now != watch.address => {
                    info!(host = %now.0, port = now.1, "the sentinels name another master");
                    return;
                }
                Some(_) => {}
                // The runtime of the watch has ended.
                None => watch.sentinels.start_watch(),
            }
        }
    }

    /// Has another sentinel asked first, because the server that this one named could not be used.
    pub(super) fn report_failure(&self) {
        if let Some(MasterWatch { sentinels, named_by, .. }) = &self.0 {
            let next = (named_by + 1) % sentinels.known.targets.len();
            sentinels.known.first.store(next, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    /// A sentinel that is behind named the old master after the watch had seen the new one.
    #[tokio::test]
    async fn a_connection_that_came_late_to_the_old_master_leaves_it() -> Result<(), Error> {
        let sentinels =
            Sentinels::new(&["redis://a".to_owned()], "m".into(), &RedisConfig::default())?;
        let (sentinels, at) = (Arc::new(sentinels), |host: &str| (host.to_owned(), 6379));
        sentinels.known.seen.send_replace(Some(at("new")));
        let seen = sentinels.known.seen.subscribe();
        let address = at("old");
        let watch = MasterWatch { sentinels: sentinels.clone(), seen, address, named_by: 0 };
        let mut watch = EndpointWatch(Some(watch));
        assert!(watch.outdated().now_or_never().is_none());
        sentinels.known.look_at(at("new")).await;
        assert!(watch.outdated().now_or_never().is_some());
        Ok(())
    }
}
