//! The nodes of a Redis Cluster, each of which serves a part of the slots.
//!
//! All keys of a name lie in one slot, and one node serves each slot. A task (`refresh`) keeps the
//! map of them (`topology`). Each node has the connections that a single server has (`nodes`). They
//! are made when they are first needed, and closed when the node serves no slot any more. A
//! redirection to another node is followed at once, within the time-out of the command.
//!
//! The cluster connection of the client library is not used. There, a command waits while a node is
//! reconnected, for as long as its retries last, and a connection that swallows commands is kept.

mod nodes;
mod refresh;

use std::{collections::HashMap, mem::discriminant, sync::Arc, time::Duration};

use futures_util::future::join_all;
use redis::{Cmd, ConnectionAddr, ConnectionInfo};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use self::{
    nodes::{ClusterNode, ClusterNodes},
    refresh::{RefreshRun, keep_known},
};
use super::{
    address,
    commands::{CommandConnection, Extras},
    config::RedisConfig,
    deadline::CommandDeadline,
    failure::{CommandFailure, CommandRetry},
    link::Confirmed,
    node::Lane,
    replicas::Replicas,
    target::{Access, ConnectTarget},
    task::OnDemandTask,
    topology::{NodeAddress, SlotMap, Topology, TopologyState, slot_of},
};
use crate::{
    backend::{Channels, redis::scripts::Call},
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::Name,
    time::after,
};

/// The nodes by which a cluster is found. All nodes are connected to with the settings of the first
/// one.
#[derive(Clone)]
pub(in super::super) struct ClusterSeeds {
    targets: Vec<ConnectTarget>,
    template: Box<ConnectionInfo>,
}

pub(super) struct Cluster {
    nodes: Arc<ClusterNodes>,
    refresh: OnDemandTask,
}

/// Something that is sent to the node that serves a slot.
#[derive(Clone, Copy)]
enum SlotCommand<'a> {
    Run { lane: Lane, command: &'a Cmd, timed: bool },
    Call(&'a Call<'a>, Option<Replicas>),
}

/// This many redirections are followed at once, and later ones after a pause.
///
/// Two nodes may redirect to each other for a moment.
const MAX_HOPS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(10);

impl ClusterSeeds {
    pub(in super::super) fn read<'a>(
        urls: impl IntoIterator<Item = &'a str>,
        access: &Access,
    ) -> Result<Self, Error> {
        let invalid = |why: String| Err(Error::new(ErrorKind::InvalidConfig, why));
        let infos = address::parse_all(urls)?;
        let Some(template) = infos.first().cloned().map(Box::new) else {
            let why = "no node of the cluster was given; give the URL of one node or more";
            return invalid(why.to_owned());
        };
        for info in &infos {
            let database = info.redis_settings().db();
            if database != 0 {
                return invalid(format!(
                    "the URL of a cluster node names database {database}, but a cluster has only \
                     database 0; remove the database from the URL"
                ));
            }
            if discriminant(info.addr()) != discriminant(template.addr()) {
                let why = "some URLs of cluster nodes use TLS, and others do not; \
                           use `rediss://` for all of them, or `redis://`";
                return invalid(why.to_owned());
            }
            if let ConnectionAddr::Unix(path) = info.addr() {
                return invalid(format!(
                    "the URL of a cluster node names the socket file {}, but the nodes are \
                     reached by TCP; give host and port",
                    path.display()
                ));
            }
        }
        let targets = infos.into_iter().map(|info| ConnectTarget::new(info, access)).collect();
        Ok(Self { targets, template })
    }
}

impl Cluster {
    pub(super) fn new(seeds: ClusterSeeds, config: RedisConfig) -> Self {
        let nodes = ClusterNodes {
            topology: Arc::new(Topology::new()),
            seeds: seeds.targets,
            template: *seeds.template,
            config,
            nodes: Default::default(),
        };
        Self { nodes: Arc::new(nodes), refresh: OnDemandTask::default() }
    }

    pub(super) fn channels(&self) -> &Channels {
        &self.nodes.topology.channels
    }

    pub(super) fn new_connections(&self) -> watch::Receiver<()> {
        self.nodes.topology.new_connections.subscribe()
    }

    pub(super) async fn run(
        &self,
        lane: Lane,
        command: &Cmd,
        key: &str,
        timed: bool,
    ) -> Result<Confirmed, BackendError> {
        let deadline = CommandDeadline::from_now(&self.nodes.config);
        let command = SlotCommand::Run { lane, command, timed };
        self.send(slot_of(key.as_bytes()), command, deadline).await
    }

    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        replicas: Option<Replicas>,
    ) -> Result<Confirmed, BackendError> {
        let deadline = CommandDeadline::from_now(&self.nodes.config);
        self.send(slot_of(call.first_key()), SlotCommand::Call(call, replicas), deadline).await
    }

    /// Runs scripts: one write for each node, and a command of its own for each that was
    /// redirected. Each has its own outcome.
    pub(super) async fn call_each(
        &self,
        calls: &[Call<'_>],
        replicas: Option<Replicas>,
    ) -> Vec<Result<Confirmed, BackendError>> {
        let deadline = CommandDeadline::from_now(&self.nodes.config);
        let slots = match self.slots(deadline).await {
            Ok(slots) => slots,
            Err(error) => return calls.iter().map(|_| Err(error.clone())).collect(),
        };
        let mut by_node: HashMap<usize, Vec<usize>> = HashMap::new();
        for (index, call) in calls.iter().enumerate() {
            by_node.entry(slots.number(slot_of(call.first_key()))).or_default().push(index);
        }
        let writes = by_node.into_values().map(async |indices| {
            let calls: Vec<_> = indices.iter().map(|index| &calls[*index]).collect();
            let replies = self.call_at_node(&calls, &slots, replicas, deadline).await;
            let replies =
                replies.unwrap_or_else(|error| calls.iter().map(|_| Err(error.clone())).collect());
            indices.into_iter().zip(replies)
        });
        let mut all: Vec<_> = join_all(writes).await.into_iter().flatten().collect();
        all.sort_unstable_by_key(|(index, _)| *index);
        all.into_iter().map(|(_, reply)| reply).collect()
    }

    /// Runs scripts whose slots one node serves.
    async fn call_at_node(
        &self,
        calls: &[&Call<'_>],
        slots: &SlotMap,
        replicas: Option<Replicas>,
        deadline: CommandDeadline,
    ) -> Result<Vec<Result<Confirmed, BackendError>>, BackendError> {
        let owner = calls.first().and_then(|call| slots.owner(slot_of(call.first_key())));
        let node = self.nodes.at(owner.ok_or_else(unserved)?);
        let lane = replicas.map_or(Lane::Commands, |_| Lane::Granting);
        let connection = node.connections.connection(lane);
        let replies = connection.call_all(calls, replicas, deadline).await?;
        let settled = calls.iter().zip(replies).map(async |(call, reply)| match reply {
            Err(CommandFailure { retry: Some(_), .. }) => {
                let slot = slot_of(call.first_key());
                self.send(slot, SlotCommand::Call(call, replicas), deadline.remainder()).await
            }
            reply => Ok(reply?),
        });
        Ok(join_all(settled).await)
    }

    /// Starts the push connection of the node that serves a channel's slot.
    pub(super) async fn start_push(&self, channel: &str) -> Result<Duration, BackendError> {
        let deadline = CommandDeadline::from_now(&self.nodes.config);
        let node = self.owner(slot_of(channel.as_bytes()), deadline).await?;
        node.connections.push.answer_limit()
    }

    /// Returns the connections for commands to the nodes that serve a slot.
    pub(super) async fn commands(
        &self,
        deadline: CommandDeadline,
    ) -> Result<Vec<Arc<CommandConnection>>, BackendError> {
        let slots = self.slots(deadline).await?;
        let nodes = slots.owners().iter().map(|owner| self.nodes.at(owner));
        Ok(nodes.map(|node| node.connections.commands.clone()).collect())
    }

    pub(super) fn replace_connections(&self) {
        for node in self.nodes.all() {
            node.connections.replace_connections();
        }
    }

    /// Returns a number for the node that serves a name, or zero if it is not known.
    pub(super) fn shard(&self, name: &Name) -> usize {
        let slots = self.nodes.topology.known();
        slots.map_or(0, |slots| slots.number(slot_of(name.prefix().as_bytes())))
    }

    async fn send(
        &self,
        slot: u16,
        command: SlotCommand<'_>,
        mut deadline: CommandDeadline,
    ) -> Result<Confirmed, BackendError> {
        if self.nodes.topology.known().is_none() {
            Box::pin(self.slots(deadline)).await?;
            deadline = deadline.restarted();
        }
        let mut node = self.owner(slot, deadline).await?;
        let (mut asking, mut hops) = (false, 0);
        loop {
            let failure = match command.send(&node, asking, deadline).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            deadline = deadline.remainder();
            let redirection = match &failure.retry {
                Some(CommandRetry::Moved(to)) => Some((node.resolve(to)?, false)),
                Some(CommandRetry::Ask(to)) => Some((node.resolve(to)?, true)),
                Some(CommandRetry::Later) => None,
                _ => return Err(failure.error),
            };
            hops += 1;
            if redirection.is_none() || hops > MAX_HOPS {
                sleep(PAUSE).await;
            }
            if Instant::now() >= deadline.at() {
                return Err(failure.error);
            }
            (node, asking) = match redirection {
                Some((address, asking)) => (self.redirected(slot, &address, asking)?, asking),
                None => (self.owner(slot, deadline).await?, false),
            };
        }
    }

    fn redirected(
        &self,
        slot: u16,
        to: &NodeAddress,
        asking: bool,
    ) -> Result<Arc<ClusterNode>, BackendError> {
        if !asking {
            self.nodes.topology.slot_moved(slot, to.clone());
        }
        Ok(self.nodes.at(to))
    }

    async fn owner(
        &self,
        slot: u16,
        deadline: CommandDeadline,
    ) -> Result<Arc<ClusterNode>, BackendError> {
        let slots = self.slots(deadline).await?;
        match slots.owner(slot) {
            Some(owner) => Ok(self.nodes.at(owner)),
            None => {
                self.nodes.topology.trouble.notify_one();
                Err(unserved())
            }
        }
    }

    /// Returns the map of slots. The first call starts the task that asks for it.
    async fn slots(&self, deadline: CommandDeadline) -> Result<Arc<SlotMap>, BackendError> {
        let unavailable = |why| Err(BackendError::new(BackendErrorKind::Unavailable, why));
        let start = || self.refresh.start(|| keep_known(RefreshRun(self.nodes.clone())));
        start();
        if let Some(slots) = self.nodes.topology.known() {
            return Ok(slots);
        }
        let mut state = self.nodes.topology.watch();
        loop {
            let now = state.borrow_and_update().clone();
            match now {
                TopologyState::Known(slots) => return Ok(slots),
                TopologyState::Failed(error) => return Err(error),
                TopologyState::Unknown => start(),
            }
            // The first question has the limit of a first connection.
            let end = after(deadline.begun, self.nodes.config.connect_timeout);
            match timeout_at(end.max(deadline.at()), state.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_closed)) => return unavailable("the connections were closed"),
                Err(_elapsed) => return unavailable("no node has reported the slots yet"),
            }
        }
    }
}

impl SlotCommand<'_> {
    async fn send(
        self,
        node: &ClusterNode,
        asking: bool,
        deadline: CommandDeadline,
    ) -> Result<Confirmed, CommandFailure> {
        match self {
            Self::Run { lane, command, timed } => {
                let extras = Extras { asking, timed, ..Extras::default() };
                node.connections.connection(lane).run(command, extras, deadline).await
            }
            Self::Call(call, replicas) => {
                let extras = Extras { asking, replicas, ..Extras::default() };
                let lane = Lane::of(call, replicas);
                node.connections.connection(lane).call(call, extras, deadline).await
            }
        }
    }
}

impl ClusterNode {
    /// Reads the address in a redirection of this node.
    fn resolve(&self, to: &str) -> Result<NodeAddress, BackendError> {
        NodeAddress::read(to, &self.address.host).ok_or_else(|| {
            let why = format!("the redirection to `{to}` has no address of the form `host:port`");
            BackendError::new(BackendErrorKind::Refused, why)
        })
    }
}

fn unserved() -> BackendError {
    let why = "no node of the cluster serves the slot";
    BackendError::new(BackendErrorKind::Unavailable, why)
}
