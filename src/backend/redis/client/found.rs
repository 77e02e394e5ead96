//! The nodes that serve a backend: the master that sentinels name, or the nodes of a cluster.
//!
//! All keys of a name lie in one slot, and one node serves each slot. A master serves all slots. A
//! task keeps the map of slots (`topology`). Each node has the connections that a single server has
//! (`node`). These connections end when the node no longer serves any slot.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use redis::ConnectionInfo;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use super::{
    cluster::Seeds,
    events::{Events, NodeEvents},
    failure::{CommandFailure, CommandRetry},
    node::Node,
    sentinel::Sentinels,
    settings::{self, Address, RedisConfig},
    task::{Finding, OnDemandTask, RunningMark},
    topology::{SlotMap, slot_of},
};
use crate::{
    error::{BackendError, BackendErrorKind, Chain},
    key::Name,
    observe::Rarely,
    random,
    sync::lock,
    time::{Pauses, after},
};

/// The pause before a redirection is followed, because two nodes may redirect to each other for a
/// moment.
const PAUSE: Duration = Duration::from_millis(10);
/// The least time between two questions for the map of slots.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);
/// How often a sentinel is asked for the master.
const ASK_EVERY: Duration = Duration::from_secs(1);

pub(super) struct FoundNodes {
    known: Arc<KnownNodes>,
    watch: OnDemandTask,
}

/// What the commands and the watch share.
struct KnownNodes {
    events: Arc<Events>,
    guides: Guides,
    /// The settings for the connection to each node, but for the address.
    template: ConnectionInfo,
    config: RedisConfig,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    /// Limits the lines in the log about guides without a reply.
    log_limit: Rarely,
}

/// The servers that say where the nodes are.
pub(super) enum Guides {
    Sentinels(Box<Sentinels>),
    Cluster(Seeds),
}

impl FoundNodes {
    pub(super) fn new(
        guides: Guides,
        template: &ConnectionInfo,
        config: &RedisConfig,
        events: &Arc<Events>,
    ) -> Self {
        let known = KnownNodes {
            events: events.clone(),
            guides,
            template: template.clone(),
            config: config.clone(),
            nodes: Mutex::default(),
            log_limit: Rarely::default(),
        };
        Self { known: Arc::new(known), watch: OnDemandTask::default() }
    }

    pub(super) async fn nodes(&self) -> Result<Vec<Arc<Node>>, BackendError> {
        let slots = self.slots().await?;
        Ok(slots.owners().into_iter().map(|owner| self.known.at(owner)).collect())
    }

    pub(super) fn give_up_connections(&self) {
        for node in lock(&self.known.nodes).values() {
            node.give_up_connections();
        }
    }

    /// Returns a number for the node of a cluster that serves a name, or zero if the node is not
    /// known. All masters that sentinels name have the number zero.
    pub(super) fn shard(&self, name: &Name) -> usize {
        match (&self.known.guides, self.known.events.slots.known()) {
            (Guides::Cluster(_), Some(slots)) => slots.number(slot_of(name.prefix.as_bytes())),
            _ => 0,
        }
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
        let end = after(Instant::now(), self.known.config.command_timeout);
        loop {
            let (address, asking) = match to {
                Some(to) => to,
                None => (self.owner(slot).await?, false),
            };
            let failure = match command(self.known.at(&address), asking).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            to = match &failure.retry {
                Some(CommandRetry::At { node, asking }) => {
                    if !asking {
                        // Other slots may have moved, too.
                        self.known.events.trouble.notify_one();
                    }
                    Address::read(node, &address.host).map(|to| (to, *asking))
                }
                Some(CommandRetry::Later) => None,
                _ => return Err(failure.error),
            };
            sleep(PAUSE).await;
            if Instant::now() >= end {
                return Err(failure.error);
            }
        }
    }

    async fn owner(&self, slot: u16) -> Result<Address, BackendError> {
        self.slots().await?.owner(slot).cloned().ok_or_else(|| {
            self.known.events.trouble.notify_one();
            let why = "no node of the cluster serves the slot";
            BackendError::new(BackendErrorKind::Unavailable, why)
        })
    }

    /// Returns the map of slots. The first call starts the task that asks for the map.
    async fn slots(&self) -> Result<Arc<SlotMap>, BackendError> {
        let start = || {
            self.watch.start(|mark| {
                let nodes = self.known.clone();
                keep_known(RunningWatch { nodes, mark: Some(mark) })
            });
        };
        start();
        match self.known.events.slots.known() {
            Some(known) => Ok(known),
            None => self.known.events.slots.wait(start).await,
        }
    }
}

/// A watch that runs. The drop notes that the watch has ended with its runtime.
struct RunningWatch {
    nodes: Arc<KnownNodes>,
    mark: Option<RunningMark>,
}

impl Drop for RunningWatch {
    fn drop(&mut self) {
        let KnownNodes { events, guides, config, .. } = &*self.nodes;
        // The master may be replaced before the next watch. A node of a cluster redirects instead.
        let is_kept = matches!(guides, Guides::Cluster(_)) && events.slots.known().is_some();
        if !is_kept {
            events.slots.set_silently(Finding::Pending(config.first_connection_limit()));
        }
        // The next watch can start now. Its findings come after the note above.
        drop(self.mark.take());
        events.slots.wake();
    }
}

async fn keep_known(running: RunningWatch) {
    let nodes = &running.nodes;
    let (count, tick) = match &nodes.guides {
        Guides::Sentinels(sentinels) => (sentinels.count(), ASK_EVERY),
        Guides::Cluster(_) => (0, Duration::MAX),
    };
    let listens = join_all((0..count).map(|sentinel| nodes.keep_listening(sentinel)));
    tokio::join!(nodes.keep_asking(tick), listens);
}

impl KnownNodes {
    /// Asks for the map of slots at each tick, and whenever the map may have changed.
    async fn keep_asking(&self, tick: Duration) {
        let mut pauses = Pauses::default();
        for turn in 0.. {
            match self.ask(turn).await {
                Ok(()) => {
                    pauses = Pauses::default();
                    sleep(REFRESH_PAUSE).await;
                    let _ = timeout(tick, self.events.trouble.notified()).await;
                }
                Err(error) => {
                    let failed = Finding::Failed(error.clone());
                    if self.events.slots.set_unless_known(failed) || self.log_limit.first() {
                        let error = Chain(&error);
                        warn!(%error, "no sentinel or cluster node replies; trying again");
                    }
                    sleep(pauses.next()).await;
                }
            }
        }
    }

    async fn ask(&self, turn: usize) -> Result<(), BackendError> {
        let known = self.events.slots.known();
        let owners = known.iter().flat_map(|slots| slots.owners());
        match &self.guides {
            Guides::Cluster(seeds) => {
                let owners = owners.map(|owner| settings::at(&self.template, owner)).collect();
                self.replace(seeds.slots(owners, &self.config, turn).await?);
            }
            Guides::Sentinels(sentinels) => {
                let is_reached = |owner: &&Address| !self.at(owner).commands.has_failed();
                let reached = owners.into_iter().find(is_reached);
                let master = sentinels.locate(reached).await?;
                // Otherwise another sentinel has announced a switch meanwhile, which the sentinel
                // that replied may not know.
                if self.events.slots.known() == known {
                    self.set_master(master);
                }
            }
        }
        Ok(())
    }

    async fn keep_listening(&self, sentinel: usize) {
        let Guides::Sentinels(sentinels) = &self.guides else { return };
        loop {
            // A sentinel that refuses the subscription may still answer questions.
            let _ = sentinels.listen(sentinel, |master| self.set_master(master)).await;
            sleep(ASK_EVERY.mul_f64(0.5 + random::fraction())).await;
        }
    }

    fn at(&self, address: &Address) -> Arc<Node> {
        if let Some(node) = lock(&self.nodes).get(address) {
            return node.clone();
        }
        let info = settings::at(&self.template, address);
        let events = NodeEvents { all: self.events.clone(), node: Some(address.clone()) };
        let node = Arc::new(Node::new(&info, &self.config, &events));
        // Another task may have inserted the node meanwhile. Then that node is used.
        lock(&self.nodes).entry(address.clone()).or_insert(node).clone()
    }

    fn set_master(&self, master: Address) {
        let now = SlotMap::of_one(master.clone());
        if self.events.slots.known().is_some_and(|before| *before != now) {
            info!(host = %master.host, port = master.port, "the sentinels name another master");
        }
        self.replace(now);
    }

    /// Takes over a map of slots. Drops the nodes that no longer serve any slot, and starts the
    /// connections of the nodes that serve an open channel.
    fn replace(&self, now: SlotMap) {
        let now = Arc::new(now);
        let Events { slots, channels, new_connections, .. } = &*self.events;
        let before = slots.known();
        if before.as_ref() != Some(&now) {
            slots.set(Finding::Known(now.clone()));
            match before {
                Some(before) => {
                    new_connections.send_replace(());
                    channels.note_lost(|channel| {
                        let slot = slot_of(channel.as_bytes());
                        before.owner(slot) != now.owner(slot)
                    });
                }
                // The map may have been away for a time, and a channel may have another node since.
                None => channels.note_lost(|_| true),
            }
            channels.recheck();
        }
        let owners = now.owners();
        let is_gone = |address: &Address, _: &mut _| !owners.contains(address);
        let gone: Vec<_> = lock(&self.nodes).extract_if(is_gone).collect();
        // Not under the lock, because a node ends with the tasks of its connections.
        drop(gone);
        let mut owners_of_channels = HashSet::new();
        for channel in channels.open_channels(|_| true) {
            owners_of_channels.extend(now.owner(slot_of(channel.as_bytes())));
        }
        for owner in owners_of_channels {
            self.at(owner).commands.start();
        }
    }
}
