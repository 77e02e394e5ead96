//! The server that a connection goes to: always the same one, or the master that sentinels name.
//!
//! One task finds the master, and tells all connections. The old master may live on and accept
//! writes that will be lost, so the connections leave it. A sentinel that announces a failover is
//! asked at once, and one of them every second. The server that it names must call itself a master,
//! because a sentinel that was cut off for a while names the previous one.
//! (Redis, "Guidelines for Redis clients with support for Redis Sentinel".)

use std::{
    future::pending,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{
    FutureExt, StreamExt,
    future::{join_all, select_ok},
};
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError};
use tokio::time::{sleep, timeout};
use tracing::info;

use super::{
    connect::{connect, open_pubsub, refuse_replica},
    settings::{self, Address, ConnectTarget, RedisConfig},
    task::{Finding, LatestFinding, OnDemandTask},
};
use crate::{
    error::{BackendError, Error, ErrorKind as Kind},
    sync::lock,
    time::Pauses,
};

const ASK_EVERY: Duration = Duration::from_secs(1);
/// The announcements of a failover. A replica that was promoted is the master already, although the
/// sentinels announce the switch only when the other replicas follow it.
const ANNOUNCEMENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The server that the connections of a node go to.
#[derive(Clone)]
pub(super) struct Endpoint {
    /// With sentinels, the name of the master is in the place of the host.
    target: ConnectTarget,
    sentinels: Option<Arc<Sentinels>>,
}

/// The sentinels, and the task that watches what they say. It ends when this is dropped.
struct Sentinels {
    known: Arc<KnownSentinels>,
    task: OnDemandTask,
}

/// The facts that the connections and the watch share.
struct KnownSentinels {
    targets: Vec<ConnectTarget>,
    name: String,
    master: ConnectTarget,
    config: RedisConfig,
    /// The index of the sentinel that is asked alone. Without one, all are asked.
    trusted: Mutex<Option<usize>>,
    /// The server that was named last, and calls itself a master.
    named: LatestFinding<Address>,
}

impl Endpoint {
    pub(super) fn server(target: ConnectTarget) -> Self {
        Self { target, sentinels: None }
    }

    /// Returns the master of this name, or of a URL with the name in the place of the host.
    pub(super) fn watched(
        urls: &[String],
        master: &str,
        config: &RedisConfig,
    ) -> Result<Self, Error> {
        let (name, info) = read_master(master)?;
        let target = ConnectTarget { info, access: config.access.clone() };
        // The credentials of sentinels are in their URLs.
        let mut access = config.access.clone();
        access.credentials = None;
        let sentinel = |info: ConnectionInfo| {
            // Sentinels of Redis 6 do not speak RESP3.
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
            ConnectTarget { info: info.set_redis_settings(settings), access: access.clone() }
        };
        let targets: Vec<_> = settings::parse_all(urls)?.into_iter().map(sentinel).collect();
        if targets.is_empty() {
            let why = "no sentinel was given; give the URL of one sentinel or more";
            return Err(Error::new(Kind::InvalidConfig, why));
        }
        let named = LatestFinding::pending(config.first_connection_limit());
        let (master, config, trusted) = (target.clone(), config.clone(), Mutex::default());
        let known = KnownSentinels { targets, name, master, config, trusted, named };
        let sentinels = Sentinels { known: Arc::new(known), task: OnDemandTask::default() };
        Ok(Self { target, sentinels: Some(Arc::new(sentinels)) })
    }

    /// Returns the server for logs, without credentials.
    pub(super) fn shown(&self) -> String {
        match &self.sentinels {
            Some(sentinels) => format!("master {:?}", sentinels.known.name),
            None => self.target.info.addr().to_string(),
        }
    }

    pub(super) fn database(&self) -> i64 {
        self.target.info.redis_settings().db()
    }

    /// Returns the server, or waits until a sentinel has named it.
    pub(super) async fn find(&self) -> Result<ConnectTarget, BackendError> {
        let Some(sentinels) = &self.sentinels else { return Ok(self.target.clone()) };
        let address = sentinels.known.named.wait(|| sentinels.start_watch()).await?;
        Ok(self.target.at(&address))
    }

    /// Notes that the server cannot be reached. The sentinel that named it may be out of date, so
    /// all are asked.
    pub(super) fn distrust(&self) {
        if let Some(sentinels) = &self.sentinels {
            *lock(&sentinels.known.trusted) = None;
        }
    }

    /// Completes when the sentinels name another server than this, and that server is a master.
    ///
    /// The connection stays while no sentinel replies, or the server that is named cannot be used.
    pub(super) async fn left(&self, at: Option<&ConnectionAddr>) {
        let Some(sentinels) = &self.sentinels else { return pending().await };
        let mut named = sentinels.known.named.subscribe();
        loop {
            let now = named.borrow_and_update().clone();
            match now {
                Finding::Known(now) if Some(self.target.at(&now).info.addr()) != at => {
                    info!(host = %now.host, port = now.port, "the sentinels name another master");
                    return;
                }
                // The runtime of the watch may have ended.
                Finding::Pending(_) => sentinels.start_watch(),
                _ => {}
            }
            // The sender lives as long as this.
            let _ = named.changed().await;
        }
    }
}

impl Sentinels {
    fn start_watch(&self) {
        self.task.start(|| {
            let known = self.known.clone();
            let limit = known.config.first_connection_limit();
            (keep_watching(self.known.clone()), move || known.named.set(Finding::Pending(limit)))
        });
    }
}

fn read_master(master: &str) -> Result<(String, ConnectionInfo), Error> {
    let url = if master.contains("://") { master.to_owned() } else { format!("redis://{master}") };
    let info = settings::parse(&url, "the name or URL of the master")?;
    let name = match info.addr() {
        ConnectionAddr::Tcp(name, _) | ConnectionAddr::TcpTls { host: name, .. } => name.clone(),
        _ => {
            let why = "the URL of the master names a socket file, where sentinels name a host";
            return Err(Error::new(Kind::InvalidConfig, why));
        }
    };
    Ok((name, info))
}

impl KnownSentinels {
    /// Makes the master known. Fails if no sentinel names one.
    ///
    /// All sentinels are asked at once, and the first good answer counts. From then on its sentinel
    /// is asked alone while it answers, so that two that disagree do not take turns.
    async fn locate(&self) -> Result<(), BackendError> {
        let trusted = lock(&self.trusted).take();
        if let Some(trusted) = trusted
            && self.hear(trusted, true).await.is_ok()
        {
            return Ok(());
        }
        let all = (0..self.targets.len()).map(|sentinel| self.hear(sentinel, false).boxed());
        select_ok(all).await.map(drop)
    }

    /// Asks one sentinel, and makes the server known that it names, if that is a master.
    async fn hear(&self, sentinel: usize, is_trusted: bool) -> Result<(), BackendError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.name);
        let before = self.named.known();
        let ask = connect(&self.targets[sentinel], &self.config, None, async |connection| {
            let reply: Option<(String, u16)> = question.query_async(connection).await?;
            let unknown = "a sentinel does not know the master";
            reply.ok_or_else(|| RedisError::from((ErrorKind::Client, unknown, self.name.clone())))
        });
        let (_, (host, port)) = ask.await?;
        let address = Address { host: host.into(), port };
        let known = self.named.known();
        // Another sentinel has announced a switch, of which this one may not know yet.
        if is_trusted && known != before {
            return Ok(());
        }
        let is_new = known.as_ref() != Some(&address);
        if is_new || !is_trusted {
            let check = async |connection: &mut _| refuse_replica(connection, None).await;
            connect(&self.master.at(&address), &self.config, None, check).await?;
        }
        if is_new {
            self.named.set(Finding::Known(address));
        }
        *lock(&self.trusted) = Some(sentinel);
        Ok(())
    }

    async fn listen(&self, sentinel: usize) -> Result<(), RedisError> {
        let listening = async {
            let mut pubsub = open_pubsub(&self.targets[sentinel]).await?;
            pubsub.subscribe(&ANNOUNCEMENTS[..]).await?;
            Ok::<_, RedisError>(pubsub)
        };
        let limit = self.config.connect_timeout();
        let Ok(pubsub) = timeout(limit, listening).await else { return Ok(()) };
        let mut messages = pubsub?.into_on_message();
        while let Some(message) = messages.next().await {
            let text: String = message.get_payload().unwrap_or_default();
            if text.split(' ').any(|word| word == self.name) {
                // If this fails, it is asked within a second.
                let _ = self.hear(sentinel, false).await;
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
                    known.named.set_unless_known(Finding::Failed(error));
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
