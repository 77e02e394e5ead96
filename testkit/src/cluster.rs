use std::time::Duration;

use super::{LIMIT, Port, Raw, RedisServer, comes_true, eventually};

/// A Redis Cluster whose masters share the slots evenly.
pub struct Cluster {
    /// The masters, then one replica of the first master, of the second, and so on.
    pub nodes: Vec<RedisServer>,
    /// The ports of the cluster bus. They are held, so that a node that starts again gets its port.
    buses: Vec<Port>,
}

const SLOTS: usize = 16_384;
/// How long nodes may take to meet. A node gives up a greeting earlier.
const MEETING: Duration = Duration::from_secs(3);

impl Cluster {
    pub async fn start(masters: usize, replicas: usize) -> Self {
        Self::start_with(masters, replicas, &[]).await
    }

    /// Starts a cluster with further arguments for each node.
    pub async fn start_with(masters: usize, replicas: usize, further: &[&str]) -> Self {
        let mut nodes = Vec::new();
        let mut buses = Vec::new();
        for _ in 0..masters + replicas {
            let port = Port::free();
            let bus = port.number().to_string();
            let mut arguments = vec!["--cluster-enabled", "yes", "--cluster-port", &bus];
            arguments.extend(["--cluster-node-timeout", "1500"]);
            arguments.extend(["--cluster-require-full-coverage", "no"]);
            arguments.extend(["--repl-diskless-sync-delay", "0"]);
            arguments.extend(further);
            nodes.push(RedisServer::start_with(&arguments).await);
            buses.push(port);
        }
        let cluster = Self { nodes, buses };
        let mut ids = Vec::new();
        for (at, node) in cluster.nodes.iter().enumerate() {
            let mut raw = node.raw().await;
            raw.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()]).await;
            if at < masters {
                let first = (SLOTS * at / masters).to_string();
                let last = (SLOTS * (at + 1) / masters - 1).to_string();
                raw.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]).await;
            }
            ids.push(raw.run::<String>(&["CLUSTER", "MYID"]).await);
        }
        assert!(
            comes_true(LIMIT, async || cluster.nodes_meet().await).await,
            "the nodes do not find each other"
        );
        for at in 0..replicas {
            let mut replica = cluster.nodes[masters + at].raw().await;
            let replicate = ["CLUSTER", "REPLICATE", &ids[at % masters]];
            assert!(
                comes_true(LIMIT, async || replica.try_run::<()>(&replicate).await.is_ok()).await,
                "a node does not become a replica"
            );
            let mut master = cluster.nodes[at % masters].raw().await;
            master.followed_by(at / masters + 1).await;
        }
        for node in &cluster.nodes {
            let raw = node.raw().await;
            assert!(
                eventually(LIMIT, || complete(raw.clone(), masters, replicas)).await,
                "the cluster is not complete"
            );
        }
        cluster
    }

    /// Lets the first node greet all others, and returns whether every node then knows all. A node
    /// that is slow to greet is forgotten, so the caller repeats this.
    async fn nodes_meet(&self) -> bool {
        let mut first = self.nodes[0].raw().await;
        for at in 1..self.nodes.len() {
            let port = self.nodes[at].port().to_string();
            let bus = self.buses[at].number().to_string();
            first.run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await;
        }
        eventually(MEETING, || self.all_know(self.nodes.len())).await
    }

    /// Returns whether every node knows this many nodes.
    async fn all_know(&self, count: usize) -> bool {
        for node in &self.nodes {
            let info: String = node.raw().await.run(&["CLUSTER", "INFO"]).await;
            if !info.contains(&format!("cluster_known_nodes:{count}\r\n")) {
                return false;
            }
        }
        true
    }

    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(RedisServer::url).collect()
    }

    /// Returns the index of the node that serves a key, according to the node at index `at`.
    pub async fn owner_seen_by(&self, at: usize, key: &str) -> Option<usize> {
        let mut raw = self.nodes[at].raw().await;
        let slot: u16 = raw.run(&["CLUSTER", "KEYSLOT", key]).await;
        for range in slots(raw).await {
            if (range.first..=range.last).contains(&slot) {
                return self.nodes.iter().position(|node| node.port() == range.port);
            }
        }
        None
    }

    /// Returns one key for each master, in the order of the masters.
    pub async fn key_of_each(&self, masters: usize, form: impl Fn(usize) -> String) -> Vec<String> {
        let mut keys = vec![None; masters];
        for at in 0.. {
            let key = form(at);
            keys[self.owner(&format!("{{{key}}}")).await].get_or_insert(key);
            if keys.iter().all(Option::is_some) {
                break;
            }
        }
        keys.into_iter().flatten().collect()
    }

    /// Returns the index of the node that serves a key.
    pub async fn owner(&self, key: &str) -> usize {
        self.owner_seen_by(0, key).await.expect("every slot is served")
    }

    /// Starts the migration of the slot of a key.
    pub async fn begin_to_move(&self, key: &str, from: usize, to: usize) {
        let (slot, [from_id, to_id]) = self.slot_and_ids(key, from, to).await;
        let mut there = self.nodes[to].raw().await;
        there.run::<()>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &from_id]).await;
        let mut here = self.nodes[from].raw().await;
        here.run::<()>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &to_id]).await;
    }

    /// Moves all keys of the slot of a key, and returns how many there were.
    ///
    /// [`begin_to_move`](Self::begin_to_move) comes first.
    pub async fn move_keys(&self, key: &str, from: usize, to: usize) -> usize {
        let (slot, _) = self.slot_and_ids(key, from, to).await;
        let mut here = self.nodes[from].raw().await;
        let keys: Vec<String> = here.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "1000"]).await;
        let port = self.nodes[to].port().to_string();
        for key in &keys {
            here.run::<()>(&["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]).await;
        }
        keys.len()
    }

    /// Ends the migration: the slot belongs to the other node.
    pub async fn end_move(&self, key: &str, from: usize, to: usize) {
        let (slot, [_, to_id]) = self.slot_and_ids(key, from, to).await;
        for at in [to, from] {
            let mut raw = self.nodes[at].raw().await;
            raw.run::<()>(&["CLUSTER", "SETSLOT", &slot, "NODE", &to_id]).await;
        }
    }

    async fn slot_and_ids(&self, key: &str, from: usize, to: usize) -> (String, [String; 2]) {
        let mut here = self.nodes[from].raw().await;
        let slot: u16 = here.run(&["CLUSTER", "KEYSLOT", key]).await;
        let mut there = self.nodes[to].raw().await;
        let id = ["CLUSTER", "MYID"];
        (slot.to_string(), [here.run(&id).await, there.run(&id).await])
    }
}

/// A range of slots, with the port of its master.
struct SlotRange {
    first: u16,
    last: u16,
    port: u16,
}

impl SlotRange {
    /// Reads an item of `CLUSTER SLOTS`: the first slot, the last one, and the nodes.
    fn read(item: Vec<redis::Value>) -> Option<Self> {
        let mut fields = item.into_iter();
        let first = redis::from_redis_value(fields.next()?).ok()?;
        let last = redis::from_redis_value(fields.next()?).ok()?;
        let redis::Value::Array(master) = fields.next()? else { return None };
        let port = redis::from_redis_value(master.into_iter().nth(1)?).ok()?;
        Some(Self { first, last, port })
    }
}

async fn slots(mut raw: Raw) -> Vec<SlotRange> {
    let ranges: Vec<Vec<redis::Value>> = raw.run(&["CLUSTER", "SLOTS"]).await;
    ranges.into_iter().filter_map(SlotRange::read).collect()
}

async fn complete(mut raw: Raw, masters: usize, replicas: usize) -> bool {
    let text: String = raw.run(&["CLUSTER", "INFO"]).await;
    let nodes: String = raw.run(&["CLUSTER", "NODES"]).await;
    text.contains("cluster_state:ok")
        && nodes_with(&nodes, "master") == masters
        && nodes_with(&nodes, "slave") == replicas
        && slots(raw).await.len() == masters
}

/// Counts the nodes with a flag, which stands in the third field of each line.
fn nodes_with(nodes: &str, flag: &str) -> usize {
    let mut count = 0;
    for node in nodes.lines() {
        if let Some(flags) = node.split(' ').nth(2)
            && flags.contains(flag)
        {
            count += 1;
        }
    }
    count
}
