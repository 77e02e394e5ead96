//! The store that the replicas share, and how it goes away.
//!
//! Redis is reached through a proxy here, which ends its connections and refuses new ones. The
//! store in memory refuses each operation.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bellwether::{
    MemoryBackend,
    testing::{Fault, Faulty},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};

use crate::Failure;

/// The store in memory. Clones share the entries, and whether the store is away.
#[derive(Clone, Default)]
pub(crate) struct Shared {
    memory: MemoryBackend,
    is_away: Arc<AtomicBool>,
}

impl Shared {
    pub(crate) fn memory(&self) -> MemoryBackend {
        self.memory.clone()
    }

    pub(crate) fn memory_that_goes_away(&self) -> Faulty {
        let is_away = self.is_away.clone();
        Faulty::over(self.memory(), move |_| {
            if is_away.load(Ordering::Relaxed) { Some(Fault::Refuse) } else { None }
        })
    }

    pub(crate) fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::Relaxed);
    }
}

/// A proxy before Redis. It ends when this is dropped.
pub(crate) struct Proxy {
    url: String,
    is_away: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// Starts a proxy on a free port.
    pub(crate) async fn start(redis: &str) -> Result<Self, Failure> {
        let address = RedisAddress::parse(redis)?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = address.through(listener.local_addr()?);
        let is_away = watch::Sender::new(false);
        let task = tokio::spawn(pass(listener, address.server, is_away.subscribe()));
        Ok(Self { url, is_away, task })
    }

    /// Returns the URL that leads through the proxy.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn set_away(&self, is_away: bool) {
        self.is_away.send_replace(is_away);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A URL such as `redis://user:password@host:6379/1`, in its parts.
struct RedisAddress {
    /// The user and the password, with the sign behind them.
    rights: String,
    server: String,
    /// The number of the database, with the slash before it.
    database: String,
}

impl RedisAddress {
    fn parse(url: &str) -> Result<Self, Failure> {
        let Some(rest) = url.strip_prefix("redis://") else {
            return Err("--redis takes a URL that begins with redis://".into());
        };
        let (authority, database) = match rest.find('/') {
            Some(slash) => rest.split_at(slash),
            None => (rest, ""),
        };
        let (rights, server) = match authority.rfind('@') {
            Some(sign) => authority.split_at(sign + 1),
            None => ("", authority),
        };
        let has_port = server.rfind(':') > server.rfind(']');
        let server = if has_port { server.to_owned() } else { format!("{server}:6379") };
        Ok(Self { rights: rights.to_owned(), server, database: database.to_owned() })
    }

    fn through(&self, proxy: SocketAddr) -> String {
        format!("redis://{}{proxy}{}", self.rights, self.database)
    }
}

/// Passes connections on. While the store is away, none is open.
async fn pass(listener: TcpListener, server: String, mut is_away: watch::Receiver<bool>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                if *is_away.borrow() {
                    continue;
                }
                let server = server.clone();
                connections.spawn(pass_one(client, server));
            }
            changed = is_away.changed() => {
                if changed.is_err() {
                    return;
                }
                if *is_away.borrow_and_update() {
                    connections.abort_all();
                }
            }
            _ = connections.join_next(), if !connections.is_empty() => {}
        }
    }
}

/// Passes one connection on. A failure ends it, as its two ends see.
async fn pass_one(mut client: TcpStream, server: String) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let _ = copy_bidirectional(&mut client, &mut server).await;
}
