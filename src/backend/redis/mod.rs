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
//! | `q`, `d` | sorted sets | who waits for a lock: tickets, and until when each place is kept |
//! | `w` | string, PX | the writer's lease, as `l` |
//! | `r` | sorted set | readers, and until when each holds |
//! | `rq`, `rd`, `i` | sorted sets | who waits to read or write, as `q` and `d`; those of them who wait to write |
//! | `p` | sorted set | permits that are out, and until when |
//! | `n` | hash, PX | a latch: what is left, who set it, its time to live, and the ids that were counted |
//! | `c` | channel | wake-ups and results; `c@3` for database 3, for channels know no databases; `c:` and the first half of a token for one process |
//!
//! A sorted set lasts as long as the last of its members.

mod commands;
mod connect;
mod latches;
mod leases;
mod patience;
mod push;
mod reply;
mod script;
mod sentinel;
mod store;
mod target;
mod task;

use std::{fmt, sync::Arc, time::Duration};

use tracing::warn;

pub use self::sentinel::SentinelMaster;
use self::{commands::Commands, push::Push, sentinel::Sentinel, target::Target};
use crate::{
    error::{BackendError, BackendErrorKind, Error},
    key::Name,
};

/// Leases and entries in a Redis or Valkey server, from version 6.
///
/// Clones share their connections. It connects by itself when it is first used, and again whenever a
/// connection breaks, without end; so a service boots while Redis is down.
#[derive(Clone)]
pub struct RedisBackend(Arc<Inner>);

struct Inner {
    target: Target,
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
        let client = connect::client(connect::info(url)?)?;
        Ok(Self::over(Target::Server(client), options))
    }

    /// A backend over the master that sentinels watch.
    ///
    /// The URLs are those of the sentinels, with *their* credentials if they ask for any; any one of them that
    /// answers is enough. `master` is the name under which they watch it, or a [`SentinelMaster`], which also
    /// has its credentials. The backend asks for the master whenever it connects, and once in a second, and
    /// follows a failover by itself; who held a lock across one is told at the first contact whether it is lost.
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
        Ok(Self::over(Target::Sentinel(Arc::new(sentinel)), options))
    }

    fn over(target: Target, options: RedisOptions) -> Self {
        let channel = match target.database() {
            0 => "c".to_owned(),
            database => format!("c@{database}"),
        };
        let push = Push::new(target.clone(), options.clone());
        let (channels, connected) = (push.channels().clone(), push.retry().clone());
        Self(Arc::new(Inner {
            commands: Commands::new(target.clone(), options.clone(), channels, connected),
            push,
            target,
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
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisBackend").field("options", &self.0.options).finish_non_exhaustive()
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
