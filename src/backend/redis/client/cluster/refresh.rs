//! The task that keeps the topology: asked for when it is first needed, and when something does not
//! fit.

use std::{collections::HashSet, sync::Arc, time::Duration};

use redis::{ErrorKind, RedisError, aio::MultiplexedConnection};
use tokio::time::{Instant, sleep};
use tracing::debug;

use super::nodes::ClusterNodes;
use crate::{
    backend::redis::client::{
        connect::ask,
        staggered::first_success,
        target::ConnectTarget,
        topology::{SlotMap, slot_of},
    },
    error::{BackendError, BackendErrorKind, BoxError, Chain},
    observe::Rarely,
    sync::lock,
    time::Pauses,
};

/// How long one node may take to report the slots, before the next one is asked, too.
const ASK_PAUSE: Duration = Duration::from_millis(80);
/// The least time between two questions to the cluster.
const REFRESH_PAUSE: Duration = Duration::from_millis(20);

/// A run of the task. When it ends with its runtime, the next command starts it again.
pub(super) struct RefreshRun(pub(super) Arc<ClusterNodes>);

impl Drop for RefreshRun {
    fn drop(&mut self) {
        self.0.topology.abandon();
    }
}

pub(super) async fn keep_known(run: RefreshRun) {
    let nodes = &run.0;
    let topology = &nodes.topology;
    let mut pauses = Pauses::default();
    for turn in 0.. {
        match nodes.ask_for_slots(turn).await {
            Ok(slots) => {
                topology.replace(slots);
                nodes.settle();
                pauses = Pauses::default();
                sleep(REFRESH_PAUSE).await;
                topology.trouble.notified().await;
                // If a slot has moved, its new node subscribes at once.
                nodes.settle();
            }
            Err(error) => {
                static SAID: Rarely = Rarely::once_in(1);
                if SAID.first() {
                    debug!(error = %Chain(&*error), "no node reports the cluster's slots");
                }
                topology.failed(BackendError::new(BackendErrorKind::Unavailable, error));
                sleep(pauses.next()).await;
            }
        }
    }
}

impl ClusterNodes {
    /// Asks the nodes for the map of slots, one after another.
    ///
    /// Each turn begins with another node, because one may be out of date or in trouble.
    async fn ask_for_slots(&self, turn: usize) -> Result<SlotMap, BoxError> {
        let known = self.topology.known();
        let owners = known.iter().flat_map(|slots| slots.owners());
        let mut asked: Vec<_> = owners.map(|address| self.target(address)).collect();
        asked.extend(self.seeds.iter().cloned());
        let count = asked.len();
        asked.rotate_left(turn % count.max(1));
        let (begun, limit) = (Instant::now(), self.config.connect_timeout);
        let questions = asked.into_iter().map(async |target| {
            let left = limit.saturating_sub(begun.elapsed());
            ask(&target, "the slots of the cluster", left, |it| slots(it, &target)).await
        });
        first_success(questions, ASK_PAUSE).await
    }

    /// Drops the nodes that serve no slot any more, and starts the push connections of those that
    /// serve the channels that are open.
    fn settle(&self) {
        let Some(slots) = self.topology.known() else { return };
        let gone: Vec<_> = {
            let mut nodes = lock(&self.nodes);
            let gone = nodes.extract_if(|address, _| !slots.owners().contains(address));
            gone.collect()
        };
        // Not under the lock, because a node ends with the tasks of its connections.
        drop(gone);
        let wanted = self.topology.channels.wanted();
        let owners: HashSet<_> =
            wanted.iter().filter_map(|channel| slots.owner(slot_of(channel.as_bytes()))).collect();
        for owner in owners {
            self.at(owner).connections.push.start();
        }
    }
}

async fn slots(
    mut connection: MultiplexedConnection,
    target: &ConnectTarget,
) -> Result<SlotMap, RedisError> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let reply = connection.send_packed_command(&question).await?.extract_error()?;
    let host = match target.info().addr() {
        redis::ConnectionAddr::Tcp(host, _) => host,
        redis::ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    };
    SlotMap::read(&reply, host)
        .ok_or_else(|| RedisError::from((ErrorKind::Client, "the cluster has no slots assigned")))
}
