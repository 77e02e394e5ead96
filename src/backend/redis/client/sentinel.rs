//! The question to sentinels which server is the master.
//!
//! After a failover, the old master may live on and accept writes that will be lost. So the
//! connections leave the old master. A sentinel that announces a failover is asked at once, and one
//! sentinel is asked every second. The server that a sentinel names must call itself a master,
//! because a sentinel that was cut off for a while names the old master.
//! (Redis, "Guidelines for Redis clients with support for Redis Sentinel".)

use std::sync::Mutex;

use futures_util::{FutureExt, StreamExt, future::select_ok};
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError};
use tokio::time::timeout;

use super::{
    connect::{connect, explain_unfit, open_pubsub, refuse_unfit},
    settings::{self, Address, RedisConfig},
};
use crate::{
    error::{BackendError, Error, ErrorKind as Kind},
    sync::lock,
};

/// The announcements of a failover. A promoted replica is the master at once. The sentinels
/// announce the switch later, when the other replicas follow the new master.
const ANNOUNCEMENTS: [&str; 2] = ["+promoted-slave", "+switch-master"];

/// The sentinels that watch a master.
pub(super) struct Sentinels {
    all: Vec<ConnectionInfo>,
    /// The settings for the sentinels, whose credentials are in their URLs.
    config: RedisConfig,
    name: String,
    /// The settings for the master, with the name in the place of the host.
    master: ConnectionInfo,
    config_of_master: RedisConfig,
    /// The index of the sentinel that is asked alone. `None` if all sentinels are asked.
    trusted: Mutex<Option<usize>>,
}

impl Sentinels {
    /// Returns the sentinels of the master with this name, or with a URL that has the name in the
    /// place of the host. Returns that URL, too.
    pub(super) fn new(
        urls: &[String],
        master: &str,
        config_of_master: &RedisConfig,
    ) -> Result<(Self, ConnectionInfo), Error> {
        let (name, master) = read_master(master)?;
        let mut config = config_of_master.clone();
        config.credentials = None;
        let sentinel = |info: ConnectionInfo| {
            // Sentinels of Redis 6 do not speak RESP3.
            let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP2);
            info.set_redis_settings(settings)
        };
        let all: Vec<_> = settings::parse_all(urls)?.into_iter().map(sentinel).collect();
        if all.is_empty() {
            let why = "no sentinel was given; give the URL of one sentinel or more";
            return Err(Error::new(Kind::InvalidConfig, why));
        }
        let info = master.clone();
        let config_of_master = config_of_master.clone();
        let trusted = Mutex::default();
        Ok((Self { all, config, name, master, config_of_master, trusted }, info))
    }

    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// Returns the master. `known` is the known master, if it can be reached.
    ///
    /// All sentinels are asked at once, and the first good answer counts. From then on the sentinel
    /// of that answer is asked alone, so that two sentinels that disagree do not take turns. All
    /// are asked again if that sentinel fails, or if the known master cannot be reached, because
    /// the sentinel may then be out of date.
    pub(super) async fn locate(&self, known: Option<&Address>) -> Result<Address, BackendError> {
        let trusted = lock(&self.trusted).take().filter(|_| known.is_some());
        if let Some(trusted) = trusted
            && let Ok(master) = self.ask(trusted, known).await
        {
            return Ok(master);
        }
        let all = (0..self.count()).map(|sentinel| self.ask(sentinel, None).boxed());
        Ok(select_ok(all).await?.0)
    }

    /// Asks one sentinel. The server that the sentinel names must call itself a master, unless the
    /// server is the known master.
    pub(super) async fn ask(
        &self,
        sentinel: usize,
        known: Option<&Address>,
    ) -> Result<Address, BackendError> {
        let mut question = redis::cmd("SENTINEL");
        question.arg("get-master-addr-by-name").arg(&self.name);
        let ask = connect(&self.all[sentinel], &self.config, None, async |connection| {
            let reply: Result<Option<(String, u16)>, _> = question.query_async(connection).await;
            let reply = reply.map_err(|error| {
                explain_unfit(error, "the server is no sentinel: use `server` or `cluster`")
            })?;
            let unknown = "a sentinel does not know the master";
            reply.ok_or_else(|| RedisError::from((ErrorKind::Client, unknown, self.name.clone())))
        });
        let (_, (host, port)) = ask.await?;
        let address = Address { host: host.into(), port };
        if known != Some(&address) {
            let check = async |connection: &mut _| refuse_unfit(connection, None, false).await;
            let master = settings::at(&self.master, &address);
            connect(&master, &self.config_of_master, None, check).await?;
        }
        // A sentinel that has announced a switch meanwhile knows better, and stays trusted.
        lock(&self.trusted).get_or_insert(sentinel);
        Ok(address)
    }

    /// Listens to a sentinel until the connection fails. After each announcement about the master,
    /// asks the sentinel, and passes the answer to `announce`.
    pub(super) async fn listen(
        &self,
        sentinel: usize,
        announce: impl Fn(Address),
    ) -> Result<(), RedisError> {
        let listening = async {
            let mut pubsub = open_pubsub(&self.all[sentinel], &self.config).await?;
            pubsub.subscribe(&ANNOUNCEMENTS[..]).await?;
            Ok::<_, RedisError>(pubsub)
        };
        let limit = self.config.connect_timeout();
        let Ok(pubsub) = timeout(limit, listening).await else { return Ok(()) };
        let mut messages = pubsub?.into_on_message();
        while let Some(message) = messages.next().await {
            let text: String = message.get_payload().unwrap_or_default();
            if text.split(' ').any(|word| word == self.name)
                // If the question fails, the next regular question comes within a second.
                && let Ok(master) = self.ask(sentinel, None).await
            {
                *lock(&self.trusted) = Some(sentinel);
                announce(master);
            }
        }
        Ok(())
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
