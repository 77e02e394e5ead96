use std::time::Duration;

use super::{LIMIT, Port, Raw, RedisServer, comes_true, eventually};

/// A Redis Cluster whose masters share the slots evenly.
pub struct Cluster {
    /// The masters, then one replica of the first master, of the second, and so on.
    pub nodes: Vec<RedisServer>,
    /// Held, so that a node that starts again finds its own.
    buses: Vec<Port>,
}

const SLOTS: usize = 16_384;
/// Longer than nodes that meet take, and than the time after which they give a greeting up.
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
            let arguments = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1500"];
            let more = ["--cluster-port", &bus, "--repl-diskless-sync-delay", "0"];
            let coverage = ["--cluster-require-full-coverage", "no"];
            let all = [&arguments[..], &more[..], &coverage[..], further].concat();
            nodes.push(RedisServer::start_with(&all).await);
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
        let first = cluster.nodes[0].raw().await;
        // A node that is slow to greet is forgotten, so each is met again until all know all.
        let met = async || {
            for (node, bus) in cluster.nodes.iter().zip(&cluster.buses).skip(1) {
                let [port, bus] = [node.port(), bus.number()].map(|port| port.to_string());
                let meet = ["CLUSTER", "MEET", "127.0.0.1", &port, &bus];
                first.clone().run::<()>(&meet).await;
            }
            eventually(MEETING, || cluster.all_know(ids.len())).await
        };
        assert!(comes_true(LIMIT, met).await, "the nodes do not find each other");
        for at in 0..replicas {
            let raw = cluster.nodes[masters + at].raw().await;
            let master = &ids[at % masters];
            let known =
                async || raw.clone().try_run::<()>(&["CLUSTER", "REPLICATE", master]).await.is_ok();
            assert!(comes_true(LIMIT, known).await, "a node does not become a replica");
            cluster.nodes[at % masters].raw().await.followed_by(at / masters + 1).await;
        }
        for node in &cluster.nodes {
            let raw = node.raw().await;
            let ready = async || complete(raw.clone(), masters, replicas).await;
            assert!(comes_true(LIMIT, ready).await, "the cluster is not complete");
        }
        cluster
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
        for (first, last, port) in slots(raw).await {
            if (first..=last).contains(&slot) {
                return self.nodes.iter().position(|node| node.port() == port);
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

/// Reads the ranges of slots, each with the port of its master.
async fn slots(mut raw: Raw) -> Vec<(u16, u16, u16)> {
    let ranges: Vec<Vec<redis::Value>> = raw.run(&["CLUSTER", "SLOTS"]).await;
    let read = |mut fields: Vec<redis::Value>| {
        fields.truncate(3);
        let mut fields = fields.into_iter();
        let mut number = || redis::from_redis_value::<u16>(fields.next()?).ok();
        let (first, last) = (number()?, number()?);
        let redis::Value::Array(node) = fields.next()? else { return None };
        let port = redis::from_redis_value(node.into_iter().nth(1)?).ok()?;
        Some((first, last, port))
    };
    ranges.into_iter().filter_map(read).collect()
}

async fn complete(mut raw: Raw, masters: usize, replicas: usize) -> bool {
    let text: String = raw.run(&["CLUSTER", "INFO"]).await;
    let nodes: String = raw.run(&["CLUSTER", "NODES"]).await;
    let count = |role: &str| {
        let has = |line: &&str| line.split(' ').nth(2).is_some_and(|flags| flags.contains(role));
        nodes.lines().filter(has).count()
    };
    text.contains("cluster_state:ok")
        && count("master") == masters
        && count("slave") == replicas
        && slots(raw).await.len() == masters
}
