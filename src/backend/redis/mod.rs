//! Leases and entries in a Redis or Valkey server.
//!
//! Two connections for each server (`node`): one for commands (`commands`), one for pushes (`push`), each made
//! and kept by a loop of its own (`connect`), to the server that is named or that sentinels name (`target`).
//! Every operation but a bare `GET` is one script (`lua/`), called by digest (`script`) and read by `reply`.
//! Whether one server is asked or a cluster is known to `servers` alone.
//!
//! # Names
//!
//! All Redis keys of one name share one cluster slot and stand in the `KEYS` of the scripts that touch
//! them: `namespace:family:{name}:suffix`.
//!
//! | suffix | type | holds |
//! |---|---|---|
//! | `e` | string, PX | the [entry](crate::backend::Entry); `e1`, `e2`, ... those of other schemas |
//! | `l` | string, PX | the lease: `token:fence`, so that a resent acquire gets the same fence back |
//! | `f` | string, PX | the last fence granted or burnt, `:c` behind it once its grant was committed |
//! | `q`, `d` | sorted sets | who waits for a lock: tickets, and until when each place is kept |
//! | `w` | string, PX | the writer's lease, as `l` |
//! | `r` | sorted set | readers, and until when each holds |
//! | `rq`, `rd`, `i` | sorted sets | who waits to read or write, as `q` and `d`; those of them who wait to write |
//! | `p` | sorted set | permits that are out, and until when |
//! | `n` | hash, PX | a latch: what is left, who set it, its time to live, and the ids that were counted |
//! | `c` | channel | wake-ups and results; `c@3` for database 3, for channels know no databases; `c:` and the first half of a token for one process |
//! | `s` | channel | the same in a cluster, where it is one of the shard |
//!
//! A sorted set lasts as long as the last of its members.

mod cluster;
mod commands;
mod connect;
pub mod failover;
mod gather;
mod latches;
mod leases;
mod link;
mod node;
mod patience;
mod push;
mod replicas;
mod reply;
mod script;
mod sentinel;
mod servers;
mod store;
mod subscribe;
mod target;
mod task;

use std::{fmt, sync::Arc, time::Duration};

use tracing::warn;

use self::{
    cluster::Seeds,
    sentinel::Sentinel,
    servers::{Origin, Servers},
    target::Target,
};
pub use self::{replicas::Replicas, sentinel::SentinelMaster};
use crate::error::{BackendError, BackendErrorKind, Error};

/// Checks the parsers of replies. The fuzz target `redis_reply` calls it.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_any_reply(value: &redis::Value) {
    reply::check_any_reply(value);
    cluster::check_any_slots(value);
}

/// Leases and entries in a Redis server from version 6, or a Valkey server.
///
/// Clones share their connections. It connects by itself when it is first used, and again whenever a
/// connection breaks, without end; so a service boots while Redis is down.
#[derive(Clone)]
pub struct RedisBackend(Arc<Inner>);

struct Inner {
    origin: Origin,
    servers: Servers,
    options: RedisOptions,
    /// The suffix of channels.
    channel: String,
}

/// Settings of a [`RedisBackend`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RedisOptions {
    /// How long one command may take, the wait for a connection included: 250 ms unless set.
    ///
    /// Long enough for a pause of the server, short enough that a request that meets a dead one is late
    /// and not lost. What claims, stores, invalidates or locks is bounded by the retry strategy's
    /// [`try_limit`](crate::lease::RetryStrategy::try_limit) as well, 250 ms unless set, so raise both; renewals and
    /// releases by 1 s.
    pub command_timeout: Duration,
    /// How long an attempt to connect may take: 1 s unless set.
    pub connect_timeout: Duration,
    /// The largest entry that is pushed to those who wait for it, in bytes: 64 KiB unless set. They fetch
    /// a larger one.
    ///
    /// A push is sent to every waiting process, and a server cuts subscribers that fall behind by 32 MiB.
    pub push_limit: usize,
    /// How many replicas must have a grant before it counts: none unless set.
    ///
    /// For locks that guard more than work; see [`Replicas`] for what it gives, and what it does not.
    pub replicas: Option<Replicas>,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            command_timeout: Duration::from_millis(250),
            connect_timeout: Duration::from_secs(1),
            push_limit: 64 << 10,
            replicas: None,
        }
    }
}

impl RedisBackend {
    /// A backend over one server: `redis://[user[:password]@]host[:port][/database]`.
    ///
    /// With the feature `tls`, `rediss://` speaks TLS by rustls. The certificates that the system trusts are trusted,
    /// or those in the file that the variable `SSL_CERT_FILE` names. A certificate of our own is not shown, so the
    /// server must not ask for one (`tls-auth-clients`). A process that settles for itself which cryptography rustls
    /// uses does so before this is called; else it is *ring*.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot be read. Nothing
    /// is sent yet; [`ping`](Self::ping) fails fast where that is wanted.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::open_with(url, RedisOptions::default())
    }

    /// As [`open`](Self::open), with settings.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_with(url: &str, options: RedisOptions) -> Result<Self, Error> {
        let client = connect::client(connect::info(url)?)?;
        Self::over(Origin::One(Target::Server(Box::new(client))), options)
    }

    /// A backend over the master that sentinels watch.
    ///
    /// The URLs are those of the sentinels, with *their* credentials if they ask for any; any one of them that
    /// answers is enough. `master` is the name under which they watch it, or a [`SentinelMaster`], which also
    /// has its credentials. The backend asks for the master whenever it connects, and once in a second, and
    /// follows a failover by itself; what that may lose is told in [`failover`].
    ///
    /// ```
    /// use bellwether::{RedisBackend, backend::SentinelMaster};
    ///
    /// let sentinels = ["redis://10.0.0.1:26379", "redis://10.0.0.2:26379", "redis://10.0.0.3:26379"];
    /// let backend = RedisBackend::sentinel(sentinels, "mymaster")?;
    ///
    /// let master = SentinelMaster::named("mymaster").username("shop").password("secret").database(3);
    /// let backend = RedisBackend::sentinel(sentinels, master)?;
    /// # Ok::<_, bellwether::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot be read, and where
    /// there is none. Nothing is sent yet.
    pub fn sentinel<U: AsRef<str>>(
        sentinels: impl IntoIterator<Item = U>,
        master: impl Into<SentinelMaster>,
    ) -> Result<Self, Error> {
        Self::sentinel_with(sentinels, master, RedisOptions::default())
    }

    /// As [`sentinel`](Self::sentinel), with settings.
    ///
    /// # Errors
    ///
    /// As [`sentinel`](Self::sentinel).
    pub fn sentinel_with<U: AsRef<str>>(
        sentinels: impl IntoIterator<Item = U>,
        master: impl Into<SentinelMaster>,
        options: RedisOptions,
    ) -> Result<Self, Error> {
        let sentinel = Sentinel::new(sentinels, master.into())?;
        Self::over(Origin::One(Target::Sentinel(Arc::new(sentinel))), options)
    }

    /// A backend over a Redis Cluster, version 7 or later.
    ///
    /// The URLs are those of some of its nodes; one that answers is enough to find the others, which are
    /// connected to as the first one: with its credentials, and with TLS if its URL says so (their certificates
    /// must then have the names or addresses that the nodes announce). Slots that move
    /// and masters that are replaced are followed; what a failover may lose is told in [`failover`].
    ///
    /// Pushes go through the node that serves the name, to those who wait and to nobody else (sharded
    /// pub/sub). A cluster of version 6 has none: there, waiters look by themselves at intervals up to 100 ms.
    /// While a slot is being moved, what concerns its names is tried again until the command's time is over,
    /// and then [refused](crate::error::BackendErrorKind::Refused).
    ///
    /// ```
    /// use bellwether::RedisBackend;
    ///
    /// let backend = RedisBackend::cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"])?;
    /// # Ok::<_, bellwether::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) for a URL that cannot be read or names a
    /// database, and where there is none. Nothing is sent yet.
    pub fn cluster<U: AsRef<str>>(nodes: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        Self::cluster_with(nodes, RedisOptions::default())
    }

    /// As [`cluster`](Self::cluster), with settings.
    ///
    /// # Errors
    ///
    /// As [`cluster`](Self::cluster).
    pub fn cluster_with<U: AsRef<str>>(
        nodes: impl IntoIterator<Item = U>,
        options: RedisOptions,
    ) -> Result<Self, Error> {
        Self::over(Origin::Cluster(Seeds::read(nodes)?), options)
    }

    fn over(origin: Origin, options: RedisOptions) -> Result<Self, Error> {
        if let Some(replicas) = options.replicas {
            replicas.check(&options)?;
        }
        Ok(Self::with_connections_of_its_own(origin, options))
    }

    fn with_connections_of_its_own(origin: Origin, options: RedisOptions) -> Self {
        let channel = match &origin {
            // Sharded: the scripts know it by this.
            Origin::Cluster(_) => "s".to_owned(),
            Origin::One(target) => match target.database() {
                0 => "c".to_owned(),
                database => format!("c@{database}"),
            },
        };
        let servers = Servers::new(origin.clone(), options.clone());
        Self(Arc::new(Inner { origin, servers, options, channel }))
    }

    /// Asks the server for a sign of life.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Backend`](crate::ErrorKind::Backend) if none comes within the command time-out.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn ping(&self) -> Result<(), Error> {
        Ok(self.0.servers.ping().await?)
    }

    /// What an answer meant. One that cannot be read was an answer to something else.
    fn understood<T>(&self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        if answer.as_ref().is_err_and(|error| error.kind() == BackendErrorKind::Unknown) {
            self.0.servers.out_of_step();
        }
        answer
    }

    /// Takes over whether the server refused to publish.
    fn mute(&self, muted: bool) {
        if self.0.servers.channels().mute(muted) && muted {
            warn!("Redis refuses to publish; waiting by timers alone");
        }
    }

    /// What follows a name in the name of its channel.
    fn channel(&self) -> &str {
        &self.0.channel
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("options", &self.0.options).finish_non_exhaustive()
    }
}

/// Whole milliseconds, at least one: Redis refuses a time of zero.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 52)
}
