//! Leases and entries in a Redis or Valkey server.
//!
//! Two connections for each backend: one for commands (`commands`), one for pushes (`push`), each made and
//! kept by a loop of its own (`connect`). Every operation but a bare `GET` is one script (`lua/`), called
//! by digest (`script`) and read by `reply`.
//!
//! # Names
//!
//! All Redis keys of one name share one cluster slot and stand in the `KEYS` of the scripts that touch
//! them: `namespace:family:{name}:suffix`.
//!
//! | suffix | type | holds |
//! |---|---|---|
//! | `e` | string, PX | the [entry](crate::entry::Entry); `e1`, `e2`, ... those of other schemas |
//! | `l` | string, PX | the lease: `token:fence`, so that a resent acquire gets the same fence back |
//! | `f` | string, PX | the last fence granted or burnt, `:c` behind it once its grant was committed |
//! | `c` | channel | wake-ups and results; `c@3` for database 3, for channels know no databases |

mod commands;
mod connect;
mod push;
mod reply;
mod script;
mod task;

use std::{fmt, sync::Arc, time::Duration};

use bytes::Bytes;
use redis::Value;
use tokio::time::timeout;
use tracing::warn;

use self::{
    commands::Commands,
    push::Push,
    script::{Call, SCRIPTS},
};
use super::{Acquired, Change, Changes, Claimed, Committed, Failure, Leases, Store};
use crate::{
    entry::Entry,
    error::{BackendError, BackendErrorKind, Error},
    key::Name,
    lease::{Claim, Grant, Occupied},
};

/// Leases and entries in a Redis or Valkey server, from version 6.
///
/// Clones share their connections. It connects by itself when it is first used, and again whenever a
/// connection breaks, without end; so a service boots while Redis is down.
#[derive(Clone)]
pub struct RedisBackend(Arc<Inner>);

struct Inner {
    client: redis::Client,
    commands: Commands,
    push: Push,
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
    /// and not lost.
    pub command_timeout: Duration,
    /// How long an attempt to connect may take: 1 s unless set.
    pub connect_timeout: Duration,
    /// The largest entry that is pushed to those who wait for it, in bytes: 64 KiB unless set. They fetch
    /// a larger one.
    ///
    /// A push is sent to every waiting process, and a server cuts subscribers that fall behind by 32 MiB.
    pub push_limit: usize,
}

impl Default for RedisOptions {
    fn default() -> Self {
        Self {
            command_timeout: Duration::from_millis(250),
            connect_timeout: Duration::from_secs(1),
            push_limit: 64 << 10,
        }
    }
}

/// As many leases are renewed by one script: few enough not to hold the server up.
const RENEW_BATCH: usize = 100;

impl RedisBackend {
    /// A backend over one server: `redis://[user[:password]@]host[:port][/database]`.
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
        Ok(Self::over(connect::client(url)?, options))
    }

    fn over(client: redis::Client, options: RedisOptions) -> Self {
        let channel = match client.get_connection_info().redis_settings().db() {
            0 => "c".to_owned(),
            database => format!("c@{database}"),
        };
        let push = Push::new(client.clone(), options.clone());
        let (channels, connected) = (push.channels().clone(), push.retry().clone());
        Self(Arc::new(Inner {
            commands: Commands::new(client.clone(), options.clone(), channels, connected),
            push,
            client,
            options,
            channel,
        }))
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
        self.0.commands.run(&redis::cmd("PING")).await?;
        Ok(())
    }

    /// What an answer meant. One that cannot be read was an answer to something else.
    fn understood<T>(&self, answer: Result<T, BackendError>) -> Result<T, BackendError> {
        if answer.as_ref().is_err_and(|error| error.kind() == BackendErrorKind::Unknown) {
            self.0.commands.out_of_step();
        }
        answer
    }

    /// Takes over whether the server refused to publish.
    fn mute(&self, muted: bool) {
        if self.0.push.channels().mute(muted) && muted {
            warn!("Redis refuses to publish; waiting by timers alone");
        }
    }

    fn channel(&self, name: &Name) -> String {
        name.suffixed(&self.0.channel)
    }

    async fn release_with(&self, claim: &Claim, message: Bytes) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.release)
            .key(lease(&claim.name))
            .key(self.channel(&claim.name))
            .arg(claim.holder.to_string())
            .arg(message);
        self.understood(reply::flag(self.0.commands.call(call).await?))
    }

    async fn acquire_with(&self, claim: &Claim, seen: Option<u64>) -> Result<Value, BackendError> {
        let mut call = Call::new(&SCRIPTS.acquire).key(lease(&claim.name)).key(fence(&claim.name));
        if seen.is_some() {
            call = call.key(claim.name.entry());
        }
        call = call
            .arg(claim.holder.to_string())
            .arg(millis(claim.lease))
            .arg(millis(claim.fence_life));
        if let Some(seen) = seen {
            call = call.arg(seen.to_string());
        }
        self.0.commands.call(call).await
    }

    /// The keys that a write without a load touches.
    fn all_keys<'a>(&self, call: Call<'a>, name: &Name) -> Call<'a> {
        let [before, after] = name.neighbours();
        call.key(lease(name))
            .key(fence(name))
            .key(name.entry())
            .key(self.channel(name))
            .key(before)
            .key(after)
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("options", &self.0.options).finish_non_exhaustive()
    }
}

impl Leases for RedisBackend {
    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        match self.understood(reply::claimed(self.acquire_with(claim, None).await?))? {
            Claimed::Granted(grant) => Ok(Acquired::Granted(grant)),
            Claimed::Held(occupied) => Ok(Acquired::Held(occupied)),
            Claimed::Newer(_) => Err(reply::unreadable("an entry in answer to an acquire")),
        }
    }

    async fn renew(&self, claims: &[Claim]) -> Result<Vec<bool>, BackendError> {
        let batches = claims.chunks(RENEW_BATCH).map(async |batch| {
            let mut call = Call::new(&SCRIPTS.renew);
            for claim in batch {
                call = call.key(lease(&claim.name)).key(fence(&claim.name));
            }
            for claim in batch {
                call = call
                    .arg(claim.holder.to_string())
                    .arg(millis(claim.lease))
                    .arg(millis(claim.fence_life));
            }
            self.understood(reply::flags(self.0.commands.call(call).await?, batch.len()))
        });
        let renewed = futures_util::future::try_join_all(batches).await?;
        Ok(renewed.concat())
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        self.release_with(claim, Change::Wake.encode()).await
    }

    async fn pass(&self, from: &Claim, to: &Claim) -> Result<Option<Grant>, BackendError> {
        let call = Call::new(&SCRIPTS.pass)
            .key(lease(&from.name))
            .key(fence(&from.name))
            .arg(from.holder.to_string())
            .arg(to.holder.to_string())
            .arg(millis(to.lease))
            .arg(millis(to.fence_life));
        reply::passed(self.0.commands.call(call).await?)
    }

    async fn holder(&self, name: &Name) -> Result<Option<Occupied>, BackendError> {
        let call = Call::new(&SCRIPTS.holder).key(lease(name));
        reply::holder(self.0.commands.call(call).await?)
    }

    async fn clear(&self, name: &Name) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.clear).key(lease(name)).key(self.channel(name));
        reply::flag(self.0.commands.call(call).await?)
    }

    async fn changes(&self, name: &Name) -> Result<Changes, BackendError> {
        let push = &self.0.push;
        if push.channels().is_mute() {
            let why = "the server refuses to publish";
            return Err(BackendError::new(BackendErrorKind::Refused, why));
        }
        push.start();
        if push.is_down() {
            let why = "the last attempt to connect failed";
            return Err(BackendError::new(BackendErrorKind::Unavailable, why));
        }
        let mut changes = push.channels().listen(&self.channel(name).into());
        match timeout(self.0.options.command_timeout, changes.confirmed()).await {
            Ok(answer) => answer.map(|()| changes),
            Err(elapsed) => Err(BackendError::new(BackendErrorKind::Unavailable, elapsed)),
        }
    }

    fn apart(&self) -> Option<Self> {
        Some(Self::over(self.0.client.clone(), self.0.options.clone()))
    }
}

impl Store for RedisBackend {
    async fn get(&self, name: &Name) -> Result<Option<Entry>, BackendError> {
        let mut get = redis::cmd("GET");
        get.arg(name.entry());
        match self.0.commands.run(&get).await? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => reply::entry(bytes).map(Some),
            other => self.understood(Err(reply::unreadable(&other))),
        }
    }

    async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        self.understood(reply::claimed(self.acquire_with(claim, Some(seen)).await?))
    }

    async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let entry = entry.clone().with_fence(grant.fence());
        let call = Call::new(&SCRIPTS.commit)
            .key(lease(&claim.name))
            .key(fence(&claim.name))
            .key(claim.name.entry())
            .key(self.channel(&claim.name))
            .arg(claim.holder.to_string())
            .arg(grant.fence().to_string())
            .arg(entry.encode())
            .arg(ttl.map_or_else(|| "0".to_owned(), millis))
            .arg(self.0.options.push_limit.to_string());
        let answer = reply::committed(self.0.commands.call(call).await?);
        let (outcome, muted) = self.understood(answer)?;
        if let Some(muted) = muted {
            self.mute(muted);
        }
        Ok(outcome)
    }

    async fn fail(&self, claim: &Claim, failure: &Failure) -> Result<bool, BackendError> {
        self.release_with(claim, Change::Failed(failure.clone()).encode()).await
    }

    async fn put(
        &self,
        name: &Name,
        entry: &Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> Result<u64, BackendError> {
        let call = self
            .all_keys(Call::new(&SCRIPTS.put), name)
            .arg(entry.encode())
            .arg(millis(ttl))
            .arg(millis(fence_life))
            .arg(self.0.options.push_limit.to_string());
        self.understood(reply::fence(self.0.commands.call(call).await?))
    }

    async fn invalidate(&self, name: &Name, fence_life: Duration) -> Result<u64, BackendError> {
        let call = self.all_keys(Call::new(&SCRIPTS.invalidate), name).arg(millis(fence_life));
        self.understood(reply::fence(self.0.commands.call(call).await?))
    }
}

fn lease(name: &Name) -> String {
    name.suffixed("l")
}

fn fence(name: &Name) -> String {
    name.suffixed("f")
}

/// Whole milliseconds, at least one: Redis refuses a time of zero.
fn millis(time: Duration) -> String {
    time.as_millis().clamp(1, 1 << 52).to_string()
}
