//! Keeping the map of a cluster: asked for when it is first needed, and whenever something does not fit it.

use std::{collections::HashSet, sync::Arc, time::Duration};

use redis::{Client, ErrorKind, RedisError};
use tokio::time::{sleep, timeout};
use tracing::debug;

use super::{
    Shared,
    slots::{Slots, slot_of},
};
use crate::{
    backend::redis::connect::{self, Backoff},
    error::{BackendError, BackendErrorKind},
};

/// How long one node may take to say where the slots are: the next one knows it, too.
const ASK_LIMIT: Duration = Duration::from_millis(250);
/// The least time between two questions: what moves often is asked for less often than it moves.
const SETTLE: Duration = Duration::from_millis(20);

/// A run of the keeper. When it ends, with its runtime, whoever needs the map starts the next one.
pub(super) struct Run(pub(super) Arc<Shared>);

impl Drop for Run {
    fn drop(&mut self) {
        self.0.chart.abandon();
    }
}

pub(super) async fn keep(run: Run) {
    let shared = &run.0;
    let chart = &shared.chart;
    let mut backoff = Backoff::new();
    for turn in 0.. {
        match shared.look(turn).await {
            Ok(slots) => {
                chart.take(slots);
                shared.settle();
                backoff = Backoff::new();
                sleep(SETTLE).await;
                chart.trouble.notified().await;
                // A slot may have moved: those who listen there are served at once.
                shared.settle();
            }
            Err(error) => {
                debug!(error = %crate::error::Chain(&error), "no node says where the slots of the cluster are; trying again");
                chart.failed(BackendError::new(BackendErrorKind::Unavailable, error));
                sleep(backoff.pause()).await;
            }
        }
    }
}

impl Shared {
    /// Asks the nodes where the slots are, in turn: each time another one first, for what a node says may
    /// be old, and it may be the one that is in trouble.
    async fn look(&self, turn: usize) -> Result<Slots, RedisError> {
        let known = self.chart.known();
        let owners = known.iter().flat_map(|slots| slots.owners());
        let mut asked: Vec<_> = owners.filter_map(|address| self.client(address).ok()).collect();
        asked.extend(self.seeds.iter().cloned());
        let count = asked.len();
        asked.rotate_left(turn % count.max(1));
        let mut why = None;
        for client in asked {
            match timeout(ASK_LIMIT, slots(&client)).await {
                Ok(Ok(slots)) => return Ok(slots),
                Ok(Err(error)) => why = Some(error),
                Err(_) => {}
            }
        }
        Err(why.unwrap_or_else(|| RedisError::from((ErrorKind::Client, "no node answers"))))
    }

    /// Drops the nodes that serve no slot any more, and has those that serve the slots of what is listened to
    /// subscribe.
    fn settle(&self) {
        let Some(slots) = self.chart.known() else { return };
        let gone: Vec<_> = {
            let mut nodes = self.nodes();
            let gone = nodes.extract_if(|address, _| !slots.owners().contains(address));
            gone.collect()
        };
        // Not under the lock: with a node ends whatever its connections were in the middle of.
        drop(gone);
        let wanted = self.chart.channels.wanted();
        let owners: HashSet<_> =
            wanted.iter().filter_map(|channel| slots.owner(slot_of(channel.as_bytes()))).collect();
        for owner in owners {
            if let Ok(member) = self.member(owner) {
                // While it is down it tries by itself.
                let _ = member.node.push.start();
            }
        }
    }
}

async fn slots(client: &Client) -> Result<Slots, RedisError> {
    let config = connect::config();
    let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let answer = connection.send_packed_command(&question).await?.extract_error()?;
    let host = match client.get_connection_info().addr() {
        redis::ConnectionAddr::Tcp(host, _) => host,
        redis::ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    };
    Slots::read(&answer, host)
        .ok_or_else(|| RedisError::from((ErrorKind::Client, "the cluster has no slots assigned")))
}
