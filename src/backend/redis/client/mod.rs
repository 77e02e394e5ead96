//! The connections to a single server, or to the nodes of a cluster.
//!
//! [`Servers`] is the only type that knows whether there is one server or a cluster. Each server is
//! a `node` with up to three connections: for commands, for grants that replicas confirm
//! (`replicas`), and for pushes (`push`). Commands (`commands`) are sent on a `link`. The task of
//! the link (`task`) keeps the connections, and reports `events`. Nodes are fixed, or are `found`
//! by asking a `sentinel` or a `cluster`. A connection is made in `connect`, over a `socket` that
//! knows when bytes last moved on its `stream`. `failure` says what an error means.

mod cluster;
mod commands;
mod connect;
mod events;
mod failure;
mod found;
mod link;
mod node;
mod push;
mod replicas;
mod sentinel;
mod settings;
mod socket;
mod stream;
mod task;
mod topology;

use std::{sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::{BoxFuture, try_join_all},
};
use redis::{Cmd, Pipeline, Value, from_redis_value};
use tokio::time::{Instant, sleep_until};

#[cfg(any(fuzzing, test))]
pub(super) use self::topology::check_any_slots;
pub(super) use self::{
    events::Events,
    replicas::Confirmation,
    settings::{RedisConfig, Replicas, Secret},
    task::{OnDemandTask, RunningMark},
};

use self::{
    cluster::Seeds,
    events::NodeEvents,
    failure::CommandFailure,
    found::{FoundNodes, Guides},
    link::Link,
    node::Node,
    replicas::wait_refused,
    sentinel::Sentinels,
    settings::Location,
};
use super::scripts::Call;
use crate::{
    backend::SearchFrom,
    error::{BackendError, BackendErrorKind, Error, ErrorKind},
    key::Name,
};

pub(super) struct Servers {
    pub(super) config: RedisConfig,
    pub(super) events: Arc<Events>,
    nodes: Nodes,
}

enum Nodes {
    /// A server that is always the same.
    Fixed(Arc<Node>),
    Found(FoundNodes),
}

impl Servers {
    /// Returns the servers, and the number of the database. A cluster has no databases.
    pub(super) fn new(config: RedisConfig) -> Result<(Self, Option<i64>), Error> {
        let location = config.location().map_err(|why| {
            let words = format!("no server was given, or more than one place of servers: {why}");
            Error::new(ErrorKind::InvalidConfig, words)
        })?;
        let is_cluster = matches!(location, Location::Cluster(_));
        let events = Events::new(&config, is_cluster);
        let found = |guides, info| FoundNodes::new(guides, info, &config, &events);
        let (nodes, info) = match location {
            Location::Server(url) => {
                let info = settings::parse(url, "the Redis URL")?;
                let of_node = NodeEvents { all: events.clone(), node: None };
                (Nodes::Fixed(Arc::new(Node::new(&info, &config, &of_node))), info)
            }
            Location::Sentinels(urls, master) => {
                let (sentinels, info) = Sentinels::new(urls, master, &config)?;
                (Nodes::Found(found(Guides::Sentinels(Box::new(sentinels)), &info)), info)
            }
            Location::Cluster(urls) => {
                let (seeds, info) = Seeds::new(urls)?;
                (Nodes::Found(found(Guides::Cluster(seeds), &info)), info)
            }
        };
        let database = (!is_cluster).then(|| info.redis_settings().db());
        Ok((Self { config, events, nodes }, database))
    }

    pub(super) async fn call(&self, call: &Call<'_>) -> Result<Value, BackendError> {
        let run = |node: Arc<Node>, asking| async move { node.commands.call(call, asking).await };
        self.at(call.first_key(), run).await
    }

    /// Runs a script that grants something. Returns the reply, and whether enough replicas
    /// confirmed the grant.
    pub(super) async fn grant(
        &self,
        call: &Call<'_>,
    ) -> Result<(Value, Confirmation), BackendError> {
        let grant = |node: Arc<Node>, asking| async move { node.grant(call, asking).await };
        self.at(call.first_key(), grant).await
    }

    /// Runs a command that touches one key.
    pub(super) async fn run(&self, command: &Cmd, key: &str) -> Result<Value, BackendError> {
        let run = |node: Arc<Node>, asking| async move { node.commands.run(command, asking).await };
        self.at(key.as_bytes(), run).await
    }

    /// Runs commands that touch one key, in one write.
    pub(super) async fn run_all(
        &self,
        commands: &Pipeline,
        key: &str,
    ) -> Result<Vec<Value>, BackendError> {
        let run = |node: Arc<Node>, asking| async move {
            node.commands.run_all(commands, asking).await?.into_iter().collect()
        };
        self.at(key.as_bytes(), run).await
    }

    async fn at<T, F>(
        &self,
        key: &[u8],
        command: impl Fn(Arc<Node>, bool) -> F,
    ) -> Result<T, BackendError>
    where
        F: Future<Output = Result<T, CommandFailure>>,
    {
        match &self.nodes {
            Nodes::Fixed(node) => Ok(command(node.clone(), false).await?),
            // Boxed, so that the futures of a fixed server stay small.
            Nodes::Found(found) => Box::pin(found.send(key, command)).await,
        }
    }

    pub(super) fn is_single(&self) -> bool {
        !self.events.is_cluster
    }

    pub(super) async fn run_at_each(&self, command: &Cmd) -> Result<Vec<Value>, BackendError> {
        self.at_each(|link| async move { Ok(link.run(command, false).await?) }).await
    }

    /// Runs a script without keys at each server.
    pub(super) async fn call_at_each(&self, call: &Call<'_>) -> Result<Vec<Value>, BackendError> {
        self.at_each(|link| async move { Ok(link.call(call, false).await?) }).await
    }

    /// Tries the `WAIT` that grants need, at each server. This `WAIT` waits for no replica.
    pub(super) async fn try_wait_at_each(&self) -> Result<(), BackendError> {
        if self.config.replicas.is_none() {
            return Ok(());
        }
        match self.run_at_each(redis::cmd("WAIT").arg(0).arg(1)).await {
            Err(error) if error.kind() == BackendErrorKind::Refused => {
                Err(wait_refused(BackendErrorKind::Refused, &error))
            }
            replies => replies.map(drop),
        }
    }

    /// Sends a `PING` to each server. The future is in a box, so that its code is compiled with
    /// this crate.
    #[inline(never)]
    pub(super) fn ping(&self) -> BoxFuture<'_, Result<(), BackendError>> {
        async { self.run_at_each(&redis::cmd("PING")).await.map(drop) }.boxed()
    }

    /// Does one step of a search at each server. Returns the keys that match a pattern, and where
    /// the next step begins, unless this was the last step. A key may come twice.
    pub(super) async fn scan(
        &self,
        pattern: &str,
        from: &SearchFrom,
    ) -> Result<(Vec<String>, Option<SearchFrom>), BackendError> {
        let nodes = self.all_nodes().await?;
        let mut cursors = from.cursors.clone();
        if cursors.is_empty() {
            cursors = vec![Some("0".to_owned()); nodes.len()];
        }
        // What the caller does between two steps is a part of the pause.
        if let Some(last) = from.at {
            sleep_until(last + SCAN_PAUSE).await;
        }
        if cursors.len() != nodes.len() {
            let why = "the nodes of the cluster have changed during the search; search again";
            return Err(BackendError::new(BackendErrorKind::Unavailable, why));
        }
        let steps = nodes.iter().zip(cursors).map(|(node, cursor)| async {
            match cursor {
                Some(cursor) => scan_step(&node.commands, pattern, cursor).await,
                None => Ok((None, Vec::new())),
            }
        });
        let (cursors, keys): (Vec<_>, Vec<_>) = try_join_all(steps).await?.into_iter().unzip();
        let goes_on = cursors.iter().any(Option::is_some);
        let next = SearchFrom { cursors, at: Some(Instant::now()) };
        Ok((keys.concat(), goes_on.then_some(next)))
    }

    async fn at_each<T, F>(&self, ask: impl Fn(Link) -> F) -> Result<Vec<T>, BackendError>
    where
        F: Future<Output = Result<T, BackendError>>,
    {
        let nodes = self.all_nodes().await?;
        try_join_all(nodes.into_iter().map(|node| ask(node.commands.clone()))).await
    }

    async fn all_nodes(&self) -> Result<Vec<Arc<Node>>, BackendError> {
        match &self.nodes {
            Nodes::Fixed(node) => Ok(vec![node.clone()]),
            Nodes::Found(found) => found.nodes().boxed().await,
        }
    }

    /// Has all connections replaced, after a reply that does not match its command.
    pub(super) fn give_up_connections(&self) {
        match &self.nodes {
            Nodes::Fixed(node) => node.give_up_connections(),
            Nodes::Found(found) => found.give_up_connections(),
        }
    }

    /// Waits for a connection to the server of a channel. The task of that connection then makes
    /// the connection for pushes.
    pub(super) async fn until_connected(&self, channel: &str) -> Result<(), BackendError> {
        let connect = async |node: Arc<Node>, _| Ok(node.commands.until_connected().await?);
        self.at(channel.as_bytes(), connect).await
    }

    pub(super) fn shard(&self, name: &Name) -> usize {
        match &self.nodes {
            Nodes::Fixed(_) => 0,
            Nodes::Found(found) => found.shard(name),
        }
    }
}

/// How many keys the server looks at in one step. A step takes the server some 100 us.
const SCAN_STEP: u32 = 125;
/// The pause before a step. So a search takes a hundredth of the server's time.
const SCAN_PAUSE: Duration = Duration::from_millis(10);

/// Returns the cursor of the next step, unless this was the last step, and the keys of this step.
async fn scan_step(
    link: &Link,
    pattern: &str,
    cursor: String,
) -> Result<(Option<String>, Vec<String>), BackendError> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(SCAN_STEP);
    let (next, keys): (String, Vec<Vec<u8>>) = from_redis_value(link.run(&scan, false).await?)
        .map_err(|error| BackendError::new(BackendErrorKind::Unknown, error))?;
    let keys = keys.into_iter().filter_map(|key| String::from_utf8(key).ok());
    Ok(((next != "0").then_some(next), keys.collect()))
}
