//! The connections to a single server, or to the nodes of a cluster.
//!
//! [`Servers`] is the only type that knows whether there is one server or a cluster. Each server
//! has up to three connections (`node`): for commands, for grants that replicas confirm
//! (`replicas`), and for pushes (`push`). Commands (`commands`) are sent on a `link`, whose task
//! keeps it connected. A connection goes to a fixed server, to the master that sentinels name
//! (`sentinel`), or to a node of a `cluster`. It is made in `connect`, over a `socket` that knows
//! when bytes last moved. `failure` says what an error means.

mod cluster;
mod commands;
mod connect;
mod failure;
mod link;
mod node;
mod push;
mod replicas;
mod scan;
mod sentinel;
mod settings;
mod socket;
mod task;
mod topology;

use std::{borrow::Borrow, time::Duration};

use futures_util::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, join_all, try_join_all},
};
use redis::{Cmd, Pipeline, Value};
use tokio::sync::watch;

#[cfg(any(fuzzing, test))]
pub(super) use self::topology::check_any_slots;
pub(super) use self::{
    cluster::ClusterSeeds,
    replicas::Confirmation,
    sentinel::{Endpoint, Sentinels},
    settings::{Access, RedisConfig, default_connect_timeout},
    task::OnDemandTask,
};
pub use self::{replicas::Replicas, sentinel::SentinelMaster, settings::Credentials};

use self::{
    cluster::Cluster,
    commands::Before,
    link::{CommandDeadline, Link},
    node::{Node, NodeEvents},
    replicas::{wait_for_none, wait_refused},
};
use super::scripts::Call;
use crate::{
    backend::{Channels, RENEWAL_BATCH},
    error::{BackendError, BackendErrorKind},
    key::Name,
};

/// Where the servers are.
#[derive(Clone)]
pub(super) enum Deployment {
    Single(Endpoint),
    Cluster(ClusterSeeds),
}

pub(super) struct Servers {
    config: RedisConfig,
    nodes: Nodes,
}

/// The futures of a cluster are boxed, so that those of a single server stay small.
enum Nodes {
    Single(Box<Node>),
    Cluster(Cluster),
}

impl Servers {
    pub(super) fn new(deployment: Deployment, config: RedisConfig) -> Self {
        let nodes = match deployment {
            Deployment::Single(endpoint) => {
                Nodes::Single(Box::new(Node::new(&endpoint, &config, NodeEvents::of_single())))
            }
            Deployment::Cluster(seeds) => Nodes::Cluster(Cluster::new(seeds, config.clone())),
        };
        Self { config, nodes }
    }

    /// Runs a script.
    pub(super) async fn call(&self, call: impl Borrow<Call<'_>>) -> Result<Value, BackendError> {
        let call = call.borrow();
        match &self.nodes {
            Nodes::Single(node) => {
                Ok(node.commands().call(call, Before::default(), self.deadline()).await?)
            }
            Nodes::Cluster(cluster) => cluster.call(call).boxed().await,
        }
    }

    /// Runs a script that grants something. Returns whether enough replicas confirmed it, too.
    pub(super) async fn grant(
        &self,
        call: impl Borrow<Call<'_>>,
    ) -> Result<(Value, Confirmation), BackendError> {
        let call = call.borrow();
        match &self.nodes {
            Nodes::Single(node) => Ok(node.grant(call, Before::default(), self.deadline()).await?),
            Nodes::Cluster(cluster) => cluster.grant(call).boxed().await,
        }
    }

    /// Runs scripts that renew grants, all at once, each as [`grant`](Self::grant) does.
    pub(super) async fn renew(
        &self,
        calls: &[Call<'_>],
    ) -> Vec<Result<(Value, Confirmation), BackendError>> {
        join_all(calls.iter().map(|call| self.grant(call))).await
    }

    /// Returns what the renewals of one script may cost, in leases.
    ///
    /// In a cluster it is one lease. Two leases rarely share a slot, and a slot that is being moved
    /// would block the others.
    pub(super) fn renew_batch(&self) -> usize {
        match self.nodes {
            Nodes::Single(_) => RENEWAL_BATCH,
            Nodes::Cluster(_) => 1,
        }
    }

    /// Runs a command that touches one key.
    pub(super) async fn run(&self, command: &Cmd, key: &str) -> Result<Value, BackendError> {
        match &self.nodes {
            Nodes::Single(node) => {
                Ok(node.commands().run(command, Before::default(), self.deadline()).await?)
            }
            Nodes::Cluster(cluster) => cluster.run(command, key).boxed().await,
        }
    }

    /// Runs two commands that touch one key, in one write.
    pub(super) async fn run_both(
        &self,
        commands: &Pipeline,
        key: &str,
    ) -> Result<[Value; 2], BackendError> {
        let replies = match &self.nodes {
            Nodes::Single(node) => {
                let commands = node.commands().send_all(commands, self.deadline());
                commands.await?.into_iter().collect::<Result<Vec<_>, _>>()?
            }
            Nodes::Cluster(cluster) => cluster.run_all(commands, key).boxed().await?,
        };
        <[Value; 2]>::try_from(replies).map_err(|replies| {
            let why = format!("{} replies to two commands", replies.len());
            BackendError::new(BackendErrorKind::Unknown, why)
        })
    }

    /// Returns whether all keys are at one server.
    pub(super) fn is_single(&self) -> bool {
        matches!(self.nodes, Nodes::Single(_))
    }

    /// Runs a command at each server. A refusal is a [`Value::Nil`].
    pub(super) async fn run_at_each(&self, command: &Cmd) -> Result<Vec<Value>, BackendError> {
        self.at_each(|connection, deadline| async move {
            match connection.run(command, Before::default(), deadline).await {
                Err(failure) if failure.error.kind() == BackendErrorKind::Refused => Ok(Value::Nil),
                reply => Ok(reply?),
            }
        })
        .await
    }

    /// Tries the `WAIT` that grants need, at each server. It waits for no replica.
    pub(super) async fn try_wait_at_each(&self) -> Result<(), BackendError> {
        if self.config.replicas.is_none() {
            return Ok(());
        }
        let wait = wait_for_none();
        let wait = &wait;
        let waits = self.at_each(|connection, deadline| async move {
            match connection.run(wait, Before::default(), deadline).await {
                Err(failure) if failure.error.kind() == BackendErrorKind::Refused => {
                    Err(wait_refused(BackendErrorKind::Refused, &failure.error))
                }
                reply => Ok(reply?),
            }
        });
        waits.await.map(drop)
    }

    /// Runs a script without keys at each server.
    pub(super) async fn call_at_each(&self, call: &Call<'_>) -> Result<Vec<Value>, BackendError> {
        self.at_each(|connection, deadline| async move {
            Ok(connection.call(call, Before::default(), deadline).await?)
        })
        .await
    }

    /// Returns its future in a box, so that its code is compiled with this crate.
    #[inline(never)]
    pub(super) fn ping(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        let pong = async {
            let ping = redis::cmd("PING");
            let ping = &ping;
            self.at_each(|connection, deadline| async move {
                Ok(connection.run(ping, Before::default(), deadline).await?)
            })
            .await
        };
        pong.map_ok(drop).boxed()
    }

    async fn at_each<T, F>(
        &self,
        ask: impl Fn(Link, CommandDeadline) -> F,
    ) -> Result<Vec<T>, BackendError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let deadline = self.deadline();
        let connections = match &self.nodes {
            Nodes::Single(node) => vec![node.commands().clone()],
            Nodes::Cluster(cluster) => cluster.commands(deadline).boxed().await?,
        };
        try_join_all(connections.into_iter().map(|connection| ask(connection, deadline))).await
    }

    /// Replaces the current connections after a reply that does not match its command.
    pub(super) fn replace_connections(&self) {
        match &self.nodes {
            Nodes::Single(node) => node.replace_connections(),
            Nodes::Cluster(cluster) => cluster.replace_connections(),
        }
    }

    pub(super) fn channels(&self) -> &Channels {
        match &self.nodes {
            Nodes::Single(node) => &node.events.channels,
            Nodes::Cluster(cluster) => cluster.channels(),
        }
    }

    /// Starts the task that keeps the subscription to a channel. Returns how long the answer to a
    /// subscription may take.
    ///
    /// Fails if the server is known to be unreachable.
    pub(super) async fn start_push(&self, channel: &str) -> Result<Duration, BackendError> {
        match &self.nodes {
            Nodes::Single(node) => node.push.answer_limit(),
            Nodes::Cluster(cluster) => cluster.start_push(channel).boxed().await,
        }
    }

    pub(super) fn shard(&self, name: &Name) -> usize {
        match &self.nodes {
            Nodes::Single(_) => 0,
            Nodes::Cluster(cluster) => cluster.shard(name),
        }
    }

    /// Returns a watch that changes with each new connection for commands.
    pub(super) fn new_connections(&self) -> watch::Receiver<()> {
        match &self.nodes {
            Nodes::Single(node) => node.events.new_connections.subscribe(),
            Nodes::Cluster(cluster) => cluster.new_connections(),
        }
    }

    fn deadline(&self) -> CommandDeadline {
        CommandDeadline::from_now(&self.config)
    }
}
