//! Leases and entries over the nodes of a Redis Cluster.
//!
//! All keys of a name lie in one slot, and each slot is served by one node. Which one is kept in a map
//! (`slots`, `chart`) that a task asks the nodes for (`keep`). Each node has the connections that a single
//! server has ([`Node`]), made when they are first needed and ended when the node serves nothing any more.
//! A node that says where else a slot is is followed at once, within the time that the command has.
//!
//! The client library has a cluster connection of its own. It is not used: a command would wait there while a
//! node is reconnected, for as long as its retries last, and a connection that swallows commands would be
//! kept.

mod chart;
mod keep;
mod slots;

use std::{
    collections::HashMap,
    mem::discriminant,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use redis::{Client, Cmd, ConnectionAddr, ConnectionInfo, IntoConnectionInfo};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

pub(super) use self::chart::Share;
#[cfg(any(fuzzing, test))]
pub(super) use self::slots::check_any_slots;
use self::{
    chart::{Chart, Map},
    slots::{Address, Slots, slot_of},
};
use super::{
    RedisOptions, Replicas,
    commands::{Answer, Commands, Escort, Failed, Limit, Turn},
    connect,
    node::{Node, Scope, Signs},
    script::Call,
    target::Target,
    task::Task,
};
use crate::{
    backend::Channels,
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::Name,
};

/// Where a cluster is looked for, and how its nodes are connected to: as the first one that is named.
#[derive(Clone)]
pub(super) struct Seeds {
    clients: Vec<Client>,
    template: Box<ConnectionInfo>,
}

pub(super) struct Cluster {
    shared: Arc<Shared>,
    keeper: Task,
}

struct Shared {
    chart: Arc<Chart>,
    seeds: Vec<Client>,
    template: ConnectionInfo,
    options: RedisOptions,
    nodes: Mutex<HashMap<Address, Arc<Member>>>,
}

/// A node of the cluster.
struct Member {
    address: Address,
    node: Node,
}

/// What is sent to the node that serves a slot.
#[derive(Clone, Copy)]
enum Request<'a> {
    Run(&'a Cmd),
    Call(&'a Call<'a>, Option<Replicas>),
}

/// So often a command is sent on at once; then with a pause, for two nodes may send it to each other.
const HOPS: u32 = 4;
const PAUSE: Duration = Duration::from_millis(10);

impl Seeds {
    pub(super) fn read<U: AsRef<str>>(urls: impl IntoIterator<Item = U>) -> Result<Self, Error> {
        let invalid = |why| Error::new(ErrorKind::InvalidConfig, why);
        let infos = urls.into_iter().map(|url| connect::info(url.as_ref()));
        let infos = infos.collect::<Result<Vec<_>, _>>()?;
        let Some(template) = infos.first().cloned().map(Box::new) else {
            return Err(invalid("no node of the cluster is named"));
        };
        for info in &infos {
            if info.redis_settings().db() != 0 {
                return Err(invalid("a cluster has no databases but 0"));
            }
            if discriminant(info.addr()) != discriminant(template.addr()) {
                return Err(invalid(
                    "some nodes of the cluster are named with TLS, and others without",
                ));
            }
            if matches!(info.addr(), ConnectionAddr::Unix(_)) {
                return Err(invalid("the nodes of a cluster are not reached by a socket file"));
            }
        }
        let clients = infos.into_iter().map(connect::client).collect::<Result<_, _>>()?;
        Ok(Self { clients, template })
    }
}

impl Cluster {
    pub(super) fn new(seeds: Seeds, options: RedisOptions) -> Self {
        let shared = Shared {
            chart: Arc::new(Chart::new()),
            seeds: seeds.clients,
            template: *seeds.template,
            options,
            nodes: Mutex::default(),
        };
        Self { shared: Arc::new(shared), keeper: Task::default() }
    }

    pub(super) fn channels(&self) -> &Channels {
        &self.shared.chart.channels
    }

    pub(super) async fn run(&self, command: &Cmd, key: &str) -> Result<Answer, BackendError> {
        self.send(slot_of(key.as_bytes()), Request::Run(command), Limit::of(&self.shared.options))
            .await
    }

    pub(super) async fn call(
        &self,
        call: &Call<'_>,
        replicas: Option<Replicas>,
    ) -> Result<Answer, BackendError> {
        let slot = slot_of(call.first_key());
        self.send(slot, Request::Call(call, replicas), Limit::of(&self.shared.options)).await
    }

    /// Runs scripts: one write for each node, then one by one what could not be run there.
    pub(super) async fn call_each(
        &self,
        calls: &[Call<'_>],
        replicas: Option<Replicas>,
    ) -> Result<Vec<Answer>, BackendError> {
        let limit = Limit::of(&self.shared.options);
        let slots = self.slots(limit).await?;
        let mut by_node: HashMap<usize, Vec<usize>> = HashMap::new();
        for (at, call) in calls.iter().enumerate() {
            by_node.entry(slots.number(slot_of(call.first_key()))).or_default().push(at);
        }
        let writes = by_node.into_values().map(async |places| {
            let these: Vec<_> = places.iter().map(|at| &calls[*at]).collect();
            let owner = these.first().and_then(|call| slots.owner(slot_of(call.first_key())));
            let member = self.shared.member(owner.ok_or_else(unserved)?)?;
            let answers = member.connection(replicas).call_all(&these, replicas, limit).await?;
            let settled = these.into_iter().zip(answers).map(async |(call, answer)| match answer {
                Err(Failed { turn: Some(_), .. }) => {
                    let slot = slot_of(call.first_key());
                    self.send(slot, Request::Call(call, replicas), limit.rest()).await
                }
                answer => Ok(answer?),
            });
            let answers: Result<Vec<_>, BackendError> =
                join_all(settled).await.into_iter().collect();
            Ok::<_, BackendError>(places.into_iter().zip(answers?))
        });
        let mut all = Vec::with_capacity(calls.len());
        for written in join_all(writes).await {
            all.extend(written?);
        }
        all.sort_unstable_by_key(|(at, _)| *at);
        Ok(all.into_iter().map(|(_, answer)| answer).collect())
    }

    /// Has the owner of a channel's slot subscribe to it.
    pub(super) async fn attend(&self, channel: &str) -> Result<(), BackendError> {
        let member =
            self.owner(slot_of(channel.as_bytes()), Limit::of(&self.shared.options)).await?;
        member.node.push.start()
    }

    /// Asks every node that serves a slot for a sign of life.
    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        let limit = Limit::of(&self.shared.options);
        let slots = self.slots(limit).await?;
        let ping = redis::cmd("PING");
        let answers = slots.owners().iter().map(async |owner| {
            let member = self.shared.member(owner)?;
            member.node.commands.run(&ping, Escort::default(), limit).await?;
            Ok(())
        });
        join_all(answers).await.into_iter().collect()
    }

    pub(super) fn out_of_step(&self) {
        let members: Vec<_> = self.shared.nodes().values().cloned().collect();
        for member in members {
            member.node.commands.out_of_step();
            member.node.granting.out_of_step();
        }
    }

    /// A number for the node that serves a name; zero, where that is not known.
    pub(super) fn shard(&self, name: &Name) -> usize {
        let slots = self.shared.chart.known();
        slots.map_or(0, |slots| slots.number(slot_of(name.prefix().as_bytes())))
    }

    async fn send(
        &self,
        slot: u16,
        request: Request<'_>,
        mut limit: Limit,
    ) -> Result<Answer, BackendError> {
        if self.shared.chart.known().is_none() {
            Box::pin(self.slots(limit)).await?;
            limit = limit.rest();
        }
        let mut member = self.owner(slot, limit).await?;
        let (mut asking, mut hops) = (false, 0);
        loop {
            let failed = match request.send(&member, asking, limit).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            limit = limit.rest();
            let there = |to: &str| {
                let refused = || BackendError::new(BackendErrorKind::Refused, to.to_owned());
                Address::read(to, &member.address.host).ok_or_else(refused)
            };
            let next = match &failed.turn {
                Some(Turn::Moved(to)) => Some((there(to)?, false)),
                Some(Turn::Ask(to)) => Some((there(to)?, true)),
                Some(Turn::Later) => None,
                _ => return Err(failed.error),
            };
            hops += 1;
            if next.is_none() || hops > HOPS {
                sleep(PAUSE).await;
            }
            if Instant::now() >= limit.deadline() {
                return Err(failed.error);
            }
            match next {
                Some((address, ask)) => {
                    if !ask {
                        self.shared.chart.moved(slot, address.clone());
                    }
                    (member, asking) = (self.shared.member(&address)?, ask);
                }
                None => (member, asking) = (self.owner(slot, limit).await?, false),
            }
        }
    }

    async fn owner(&self, slot: u16, limit: Limit) -> Result<Arc<Member>, BackendError> {
        let slots = self.slots(limit).await?;
        match slots.owner(slot) {
            Some(owner) => self.shared.member(owner),
            None => {
                self.shared.chart.trouble.notify_one();
                Err(unserved())
            }
        }
    }

    /// The map; who needs it first has it asked for.
    async fn slots(&self, limit: Limit) -> Result<Arc<Slots>, BackendError> {
        self.keeper.start(|| keep::keep(keep::Run(self.shared.clone())));
        if let Some(slots) = self.shared.chart.known() {
            return Ok(slots);
        }
        let mut map = self.shared.chart.map();
        loop {
            let now = map.borrow_and_update().clone();
            match now {
                Map::Known(slots) => return Ok(slots),
                Map::Down(error) => return Err(error),
                Map::Unknown => self.keeper.start(|| keep::keep(keep::Run(self.shared.clone()))),
            }
            let unavailable = |why| BackendError::new(BackendErrorKind::Unavailable, why);
            match timeout_at(limit.deadline(), map.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(closed)) => return Err(unavailable(closed.to_string())),
                Err(elapsed) => return Err(unavailable(elapsed.to_string())),
            }
        }
    }
}

impl Request<'_> {
    async fn send(self, member: &Member, asking: bool, limit: Limit) -> Result<Answer, Failed> {
        match self {
            Self::Run(command) => {
                let escort = Escort { asking, ..Escort::default() };
                member.node.commands.run(command, escort, limit).await
            }
            Self::Call(call, replicas) => {
                let escort = Escort { asking, replicas, ..Escort::default() };
                member.connection(replicas).call(call, escort, limit).await
            }
        }
    }
}

impl Shared {
    fn nodes(&self) -> MutexGuard<'_, HashMap<Address, Arc<Member>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member(&self, address: &Address) -> Result<Arc<Member>, BackendError> {
        if let Some(member) = self.nodes().get(address) {
            return Ok(member.clone());
        }
        let target = Target::Server(Box::new(self.client(address)?));
        let signs = Signs {
            channels: self.chart.channels.clone(),
            scope: Scope::Share(Share { chart: self.chart.clone(), address: address.clone() }),
            connected: Arc::new(Notify::new()),
            trouble: self.chart.trouble.clone(),
        };
        let node = Node::new(&target, &self.options, signs);
        let member = Arc::new(Member { address: address.clone(), node });
        // Somebody else may have been faster.
        Ok(self.nodes().entry(address.clone()).or_insert(member).clone())
    }

    fn client(&self, address: &Address) -> Result<Client, BackendError> {
        let (host, port) = (address.host.to_string(), address.port);
        let addr = match self.template.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let info = self.template.clone().set_addr(addr);
        let info = info.into_connection_info().and_then(Client::open);
        info.map_err(|error| BackendError::new(BackendErrorKind::Unavailable, error))
    }
}

impl Member {
    fn connection(&self, replicas: Option<Replicas>) -> &Commands {
        self.node.connection(replicas)
    }
}

/// Whether names lie in one slot.
pub(super) fn share_a_slot<'a>(names: impl Iterator<Item = &'a Name>) -> bool {
    let mut slots = names.map(|name| slot_of(name.prefix().as_bytes()));
    let first = slots.next();
    slots.all(|slot| Some(slot) == first)
}

fn unserved() -> BackendError {
    let why = "no node of the cluster serves the slot";
    BackendError::new(BackendErrorKind::Unavailable, why)
}
