//! The nodes of a Redis Cluster, each of which serves a part of the slots.
//!
//! All keys of a name lie in one slot, and one node serves each slot. A task keeps the map of them
//! (`topology`). Each node has the connections that a single server has (`node`).

use std::{
    collections::{HashMap, HashSet},
    mem::discriminant,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::{FutureExt, future::select_ok};
use redis::{ConnectionAddr, ErrorKind as ClientErrorKind, RedisError, aio::MultiplexedConnection};
use tokio::time::{Instant, sleep};
use tracing::warn;

use super::{
    connect::connect,
    events::{Events, NodeEvents},
    failure::{CommandFailure, CommandRetry},
    node::Node,
    sentinel::Endpoint,
    settings::{self, Address, ConnectTarget, RedisConfig},
    task::{Finding, OnDemandTask},
    topology::{SlotMap, slot_of},
};
use crate::{
    error::{BackendError, BackendErrorKind, Chain, Error, ErrorKind},
    key::Name,
    sync::lock,
    time::{Pauses, after},
};

/// This many redirections are followed at once, and later ones after a pause, because two nodes may
/// redirect to each other for a moment.
const MAX_HOPS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(10);
/// The least time between two questions to the cluster.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);

/// How many nodes are asked at once, so that one that hangs holds up no other. With all of them, a
/// large cluster would be asked too much.
const AT_ONCE: usize = 2;

pub(super) struct Cluster {
    nodes: Arc<ClusterNodes>,
    refresh: OnDemandTask,
}

struct ClusterNodes {
    events: Arc<Events>,
    /// The nodes by which the cluster is found.
    seeds: Vec<ConnectTarget>,
    /// The first of them. Each node is connected to with its settings.
    template: ConnectTarget,
    config: RedisConfig,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
}

impl Cluster {
    pub(super) fn new(
        urls: &[String],
        config: RedisConfig,
        events: Arc<Events>,
    ) -> Result<Self, Error> {
        let invalid = |why| Err(Error::new(ErrorKind::InvalidConfig, why));
        let access = &config.access;
        let target = |info| ConnectTarget { info, access: access.clone() };
        let seeds: Vec<_> = settings::parse_all(urls)?.into_iter().map(target).collect();
        let Some(template) = seeds.first().cloned() else {
            return invalid("no node of the cluster was given; give the URL of one node or more");
        };
        let is_unusable = |ConnectTarget { info, .. }: &ConnectTarget| {
            info.redis_settings().db() != 0
                || matches!(info.addr(), ConnectionAddr::Unix(_))
                || discriminant(info.addr()) != discriminant(template.info.addr())
        };
        if seeds.iter().any(is_unusable) {
            return invalid(
                "the URLs of cluster nodes must all begin with `redis://`, or all with \
                 `rediss://`, and name host and port without a database",
            );
        }
        let nodes = ClusterNodes { events, seeds, template, config, nodes: Mutex::default() };
        Ok(Self { nodes: Arc::new(nodes), refresh: OnDemandTask::default() })
    }

    pub(super) async fn nodes(&self) -> Result<Vec<Arc<Node>>, BackendError> {
        let slots = self.slots().await?;
        Ok(slots.owners().into_iter().map(|owner| self.nodes.at(owner)).collect())
    }

    pub(super) fn replace_connections(&self) {
        lock(&self.nodes.nodes).values().for_each(|node| node.replace_connections());
    }

    /// Returns a number for the node that serves a name, or zero if it is not known.
    pub(super) fn shard(&self, name: &Name) -> usize {
        let slots = self.nodes.events.slots.known();
        slots.map_or(0, |slots| slots.number(slot_of(name.prefix().as_bytes())))
    }

    /// Runs something at the node that has a key. Follows redirections.
    pub(super) async fn send<T, F>(
        &self,
        key: &[u8],
        command: impl Fn(Arc<Node>, bool) -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, CommandFailure>>,
    {
        let slot = slot_of(key);
        let mut to = Some((self.owner(slot).await?, false));
        let (end, mut hops) = (after(Instant::now(), self.nodes.config.command_timeout), 0);
        loop {
            let (address, asking) = match to {
                Some(to) => to,
                None => (self.owner(slot).await?, false),
            };
            let failure = match command(self.nodes.at(&address), asking).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            to = match &failure.retry {
                Some(CommandRetry::At { node, asking }) => {
                    if !asking {
                        // Other slots may have moved, too.
                        self.nodes.events.trouble.notify_one();
                    }
                    Address::read(node, &address.host).map(|to| (to, *asking))
                }
                Some(CommandRetry::Later) => None,
                _ => return Err(failure.error),
            };
            hops += 1;
            if to.is_none() || hops > MAX_HOPS {
                sleep(PAUSE).await;
            }
            if Instant::now() >= end {
                return Err(failure.error);
            }
        }
    }

    async fn owner(&self, slot: u16) -> Result<Address, BackendError> {
        self.slots().await?.owner(slot).cloned().ok_or_else(|| {
            self.nodes.events.trouble.notify_one();
            let why = "no node of the cluster serves the slot";
            BackendError::new(BackendErrorKind::Unavailable, why)
        })
    }

    /// Returns the map of slots. The first call starts the task that asks for it.
    async fn slots(&self) -> Result<Arc<SlotMap>, BackendError> {
        let start = || {
            self.refresh.start(|| {
                let nodes = self.nodes.clone();
                let pending = Finding::Pending(nodes.config.first_connection_limit());
                let on_end = move || {
                    nodes.events.slots.set_unless_known(pending);
                };
                (keep_known(self.nodes.clone()), on_end)
            });
        };
        start();
        match self.nodes.events.slots.known() {
            Some(known) => Ok(known),
            None => self.nodes.events.slots.wait(start).await,
        }
    }
}

async fn keep_known(nodes: Arc<ClusterNodes>) {
    let mut pauses = Pauses::default();
    for turn in 0.. {
        match nodes.ask_for_slots(turn).await {
            Ok(slots) => {
                nodes.replace(Arc::new(slots));
                pauses = Pauses::default();
                sleep(REFRESH_PAUSE).await;
                nodes.events.trouble.notified().await;
            }
            Err(error) => {
                let Events { slots, channels, .. } = &*nodes.events;
                if slots.set_unless_known(Finding::Failed(error.clone())) {
                    warn!(error = %Chain(&error), "no node of the cluster replies; trying again");
                    channels.wake(|_| true);
                }
                sleep(pauses.next()).await;
            }
        }
    }
}

impl ClusterNodes {
    fn at(&self, address: &Address) -> Arc<Node> {
        if let Some(node) = lock(&self.nodes).get(address) {
            return node.clone();
        }
        let endpoint = Endpoint::server(self.template.at(address));
        let events = NodeEvents { all: self.events.clone(), node: Some(address.clone()) };
        let node = Arc::new(Node::new(&endpoint, &self.config, &events));
        // Another task may have inserted the node meanwhile, which is then used.
        lock(&self.nodes).entry(address.clone()).or_insert(node).clone()
    }

    /// Asks the nodes for the map of slots, a few at once. Each turn begins with another node,
    /// because one may be out of date.
    async fn ask_for_slots(&self, turn: usize) -> Result<SlotMap, BackendError> {
        let known = self.events.slots.known();
        let owners = known.iter().flat_map(|slots| slots.owners());
        let mut asked: Vec<_> = owners.map(|address| self.template.at(address)).collect();
        asked.extend(self.seeds.iter().cloned());
        let count = asked.len();
        asked.rotate_left(turn % count);
        let ask = async |target| {
            let question = async |connection: &mut _| slots(connection, target).await;
            connect(target, &self.config, None, question).await.map(|(_, slots)| slots)
        };
        let mut failure = None;
        for some in asked.chunks(AT_ONCE) {
            match select_ok(some.iter().map(|target| ask(target).boxed())).await {
                Ok((slots, _others)) => return Ok(slots),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| {
            BackendError::new(BackendErrorKind::Unavailable, "there is no node to ask")
        }))
    }

    /// Takes over the map that a node reported. Drops the nodes that serve no slot any more, and
    /// starts the push connections of those that serve the channels that are open.
    fn replace(&self, now: Arc<SlotMap>) {
        let Events { slots, channels, new_connections, .. } = &*self.events;
        let before = slots.known();
        if before.as_ref() != Some(&now) {
            slots.set(Finding::Known(now.clone()));
            if let Some(before) = before {
                new_connections.send_replace(());
                channels.lost(|channel| {
                    let slot = slot_of(channel.as_bytes());
                    before.owner(slot) != now.owner(slot)
                });
            }
            channels.recheck();
        }
        let owners = now.owners();
        let is_gone = |address: &Address, _: &mut _| !owners.contains(address);
        let gone: Vec<_> = lock(&self.nodes).extract_if(is_gone).collect();
        // Not under the lock, because a node ends with the tasks of its connections.
        drop(gone);
        let wanted = channels.wanted(|_| true);
        let owners: HashSet<_> =
            wanted.iter().filter_map(|channel| now.owner(slot_of(channel.as_bytes()))).collect();
        owners.into_iter().for_each(|owner| self.at(owner).push.start());
    }
}

async fn slots(
    connection: &mut MultiplexedConnection,
    target: &ConnectTarget,
) -> Result<SlotMap, RedisError> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let reply = connection.send_packed_command(&question).await?.extract_error()?;
    let slots = match target.info.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => {
            SlotMap::read(&reply, host)
        }
        _ => None,
    };
    let none = (ClientErrorKind::Client, "the cluster has no slots assigned");
    slots.ok_or_else(|| RedisError::from(none))
}
