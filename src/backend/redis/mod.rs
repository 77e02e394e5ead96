//! Leases and entries in a Redis or Valkey server.
//!
//! - `builder`: the settings, in code and in a file.
//! - `keys`: the names of Redis keys and channels.
//! - `ops/`: the backend traits. Each operation but a bare `GET` is one script.
//! - `scripts/`: the scripts, called by their digests.
//! - `client/`: the connections, to one server, to a master that sentinels watch, or to a cluster.

mod builder;
mod client;
mod keys;
mod ops;
mod scripts;

#[doc = include_str!("../../../docs/failover.md")]
pub mod failover {}

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use dashmap::DashMap;

pub use self::builder::RedisBackendBuilder;
use self::{client::Servers, ops::Heartbeat};
use crate::{backend::ProcessId, error::Error, random::Hasher};

/// Checks the parsers of replies. The fuzz target `redis_reply` calls it.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_any_reply(value: &redis::Value) {
    ops::check_any_reply(value);
    client::check_any_slots(value);
}

/// Keeps leases and entries in a Redis server from version 6.2, or in a Valkey server.
///
/// Clones share their connections. The backend connects at its first use, and again after each
/// break of a connection, without end. So a service can start while Redis is down.
///
/// ```no_run
/// use std::time::Duration;
/// use bellwether::RedisBackend;
///
/// # async fn start() -> Result<(), bellwether::Error> {
/// let backend = RedisBackend::open("redis://127.0.0.1/")?;
/// backend.ready().await?;
/// backend.ping().await?;
/// let with_settings = RedisBackend::builder()
///     .cluster(["redis://10.0.0.1:6379", "redis://10.0.0.2:6379"])
///     .command_timeout(Duration::from_millis(500))
///     .client_name("shop")
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisBackend(Arc<RedisInner>);

struct RedisInner {
    servers: Servers,
    /// The process of the owners at this backend. Clones share the process.
    process: ProcessId,
    channel_names: keys::ChannelNames,
    staying: StayingChannels,
    /// The server refused to publish for this backend, and the log has a line about it.
    publish_refused: AtomicBool,
    /// Shows local tiers that they have missed no change.
    heartbeat: Heartbeat,
}

/// The channels of the process that stay open, by the scope of their names.
#[derive(Default)]
struct StayingChannels {
    queued: DashMap<String, Arc<str>, Hasher>,
    registered: DashMap<String, Arc<str>, Hasher>,
}

impl RedisBackend {
    /// Opens a backend over one server: `redis://[user[:password]@]host[:port][/database]`.
    ///
    /// The call is short for [`builder`](Self::builder) with
    /// [`server`](RedisBackendBuilder::server), which explains the forms of the URL. It does not
    /// connect.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidConfig`](crate::ErrorKind::InvalidConfig) if the URL cannot be read, or
    /// asks for TLS without the feature `tls`.
    pub fn open(url: &str) -> Result<Self, Error> {
        Self::builder().server(url).build()
    }

    /// Returns a builder, for Sentinel, a cluster, and settings other than the defaults.
    pub fn builder() -> RedisBackendBuilder {
        RedisBackendBuilder::default()
    }

    /// Sends a `PING` to the server, or to each node of a cluster that serves a slot.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Backend`](crate::ErrorKind::Backend) if no reply comes within the
    /// [command time-out](RedisBackendBuilder::command_timeout).
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn ping(&self) -> Result<(), Error> {
        Ok(self.0.servers.ping().await?)
    }

    /// Waits for the connection, and checks that the server can serve caches and locks.
    ///
    /// The call makes one attempt, for at most the
    /// [`connect_timeout`](RedisBackendBuilder::connect_timeout). A service that may start before
    /// its server calls it again.
    ///
    /// So a service notices at its start a wrong password, a server that is too old, and rights
    /// that an ACL does not give, which the error names. The call also fails for a server of
    /// another kind: a replica, or a node of a cluster or a sentinel that was given as a plain
    /// server, and the other way round. A user without any right that only caches need must have
    /// the rights of locks alone, and the other way round. The log has a warning if the round trip
    /// is long for the [command time-out](RedisBackendBuilder::command_timeout).
    ///
    /// The call does not check the patterns of keys and channels, which only caches and locks know.
    /// It does not check the right to subscribe either, because waiters poll without that right.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Backend`](crate::ErrorKind::Backend). The source of the error says what is
    /// missing.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn ready(&self) -> Result<(), Error> {
        Ok(self.check_servers().await?)
    }

    fn channel(&self) -> &str {
        &self.0.channel_names.suffix
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend")
            .field("config", &self.0.servers.config)
            .finish_non_exhaustive()
    }
}
