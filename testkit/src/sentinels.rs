use super::{LIMIT, Raw, RedisServer, comes_true, eventually};

/// A master with replicas, and three sentinels that watch it as [`MASTER`](Self::MASTER).
pub struct Sentinels {
    /// The servers. The first one is the master at the start.
    pub servers: Vec<RedisServer>,
    pub sentinels: Vec<RedisServer>,
}

impl Sentinels {
    pub const MASTER: &str = "flock";

    pub async fn start(replicas: usize) -> Self {
        let mut servers = vec![RedisServer::start_with(&["--repl-diskless-sync-delay", "0"]).await];
        let port = servers[0].port().to_string();
        for _ in 0..replicas {
            let follow = ["--replicaof", "127.0.0.1", &port, "--repl-diskless-sync-delay", "0"];
            servers.push(RedisServer::start_with(&follow).await);
        }
        // A sentinel looks for replicas every ten seconds. They must exist at its first look.
        servers[0].raw().await.followed_by(replicas).await;
        let configuration = format!(
            "sentinel monitor {name} 127.0.0.1 {port} 2\n\
             sentinel down-after-milliseconds {name} 2000\n\
             sentinel failover-timeout {name} 3000\n",
            name = Self::MASTER,
        );
        let mut sentinels = Vec::new();
        for _ in 0..3 {
            sentinels.push(RedisServer::start_sentinel(&configuration).await);
        }
        let set = Self { servers, sentinels };
        for sentinel in &set.sentinels {
            let raw = sentinel.raw().await;
            assert!(
                eventually(LIMIT, || knows(raw.clone(), 2, replicas)).await,
                "the sentinels do not find each other"
            );
        }
        set
    }

    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(RedisServer::url).collect()
    }

    /// Waits for a new master that every sentinel names and all other servers follow, and
    /// returns it.
    ///
    /// On a busy machine two sentinels may promote two replicas before they agree on one.
    pub async fn master_after(&self, old: u16) -> &RedisServer {
        assert!(
            comes_true(2 * LIMIT, async || self.followed_after(old).await.is_some()).await,
            "no failover happens"
        );
        let new = named(self.sentinels[0].raw().await).await;
        let mut servers = self.servers.iter();
        servers.find(|server| Some(server.port()) == new).expect("one of the servers")
    }

    async fn followed_after(&self, old: u16) -> Option<u16> {
        let new = named(self.sentinels[0].raw().await).await.filter(|new| *new != old)?;
        for sentinel in &self.sentinels {
            named(sentinel.raw().await).await.filter(|named| *named == new)?;
        }
        for server in &self.servers {
            if server.port() != old && server.port() != new && !follows(server, new).await {
                return None;
            }
        }
        Some(new)
    }
}

/// Returns whether a server is a replica of the master at this port, and connected to it.
async fn follows(server: &RedisServer, master: u16) -> bool {
    let mut raw = server.raw().await;
    let Ok(info) = raw.try_run::<String>(&["INFO", "replication"]).await else { return false };
    let master_port = format!("master_port:{master}");
    let fields: Vec<_> = info.lines().collect();
    fields.contains(&&*master_port) && fields.contains(&"master_link_status:up")
}

/// Returns whether a sentinel knows this many other sentinels and this many replicas.
async fn knows(mut raw: Raw, others: usize, replicas: usize) -> bool {
    let fields: Vec<String> = raw.run(&["SENTINEL", "MASTER", Sentinels::MASTER]).await;
    number_behind(&fields, "num-other-sentinels") == Some(others)
        && number_behind(&fields, "num-slaves") == Some(replicas)
}

/// Returns the number of a field, which stands behind the name of the field.
fn number_behind(fields: &[String], name: &str) -> Option<usize> {
    let at = fields.iter().position(|field| field == name)?;
    fields.get(at + 1)?.parse().ok()
}

async fn named(mut raw: Raw) -> Option<u16> {
    let question = ["SENTINEL", "get-master-addr-by-name", Sentinels::MASTER];
    let address: Option<(String, u16)> = raw.run(&question).await;
    address.map(|(_, port)| port)
}
