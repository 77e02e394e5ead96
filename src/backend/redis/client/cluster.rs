//! The question to a Redis Cluster which node serves each slot.

use std::mem::discriminant;

use futures_util::{FutureExt, future::select_ok};
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind as ClientErrorKind, RedisError,
    aio::MultiplexedConnection,
};

use super::{
    connect::{connect, explain_unfit},
    settings::{self, RedisConfig},
    topology::SlotMap,
};
use crate::error::{BackendError, BackendErrorKind, Error, ErrorKind};

/// How many nodes are asked at once. With one node, a node that hangs would hold up the question.
/// With all nodes, a large cluster would get too many questions.
const AT_ONCE: usize = 2;

/// The nodes by which a cluster is found.
pub(super) struct Seeds(Vec<ConnectionInfo>);

impl Seeds {
    /// Returns the nodes with these URLs, and the settings of the first node.
    pub(super) fn new(urls: &[String]) -> Result<(Self, ConnectionInfo), Error> {
        let invalid = |why| Err(Error::new(ErrorKind::InvalidConfig, why));
        let seeds = settings::parse_all(urls)?;
        let Some(first) = seeds.first().cloned() else {
            return invalid("no node of the cluster was given; give the URL of one node or more");
        };
        let is_unusable = |info: &ConnectionInfo| {
            info.redis_settings().db() != 0
                || matches!(info.addr(), ConnectionAddr::Unix(_))
                || discriminant(info.addr()) != discriminant(first.addr())
        };
        if seeds.iter().any(is_unusable) {
            return invalid(
                "the URLs of cluster nodes must all begin with `redis://`, or all with \
                 `rediss://`, and name host and port without a database",
            );
        }
        Ok((Self(seeds), first))
    }

    /// Asks the known nodes and the seeds for the map of slots, a few at once. Each turn begins
    /// with another node, because the map of a node may be out of date.
    pub(super) async fn slots(
        &self,
        mut known: Vec<ConnectionInfo>,
        config: &RedisConfig,
        turn: usize,
    ) -> Result<SlotMap, BackendError> {
        known.extend(self.0.iter().cloned());
        let count = known.len();
        known.rotate_left(turn % count);
        let ask = async |node| {
            let question = async |connection: &mut _| slots(connection, node).await;
            connect(node, config, None, question).await.map(|(_, slots)| slots)
        };
        let mut failure = None;
        for some in known.chunks(AT_ONCE) {
            match select_ok(some.iter().map(|node| ask(node).boxed())).await {
                Ok((slots, _others)) => return Ok(slots),
                Err(error) => failure = Some(error),
            }
        }
        Err(failure.unwrap_or_else(|| {
            BackendError::new(BackendErrorKind::Unavailable, "there is no node to ask")
        }))
    }
}

async fn slots(
    connection: &mut MultiplexedConnection,
    node: &ConnectionInfo,
) -> Result<SlotMap, RedisError> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let reply = connection.send_packed_command(&question).await?.extract_error();
    let reply = reply.map_err(|error| {
        explain_unfit(error, "the server is no node of a cluster: use `server` or `sentinels`")
    })?;
    let slots = match node.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => {
            SlotMap::read(&reply, host)
        }
        _ => None,
    };
    let none = (ClientErrorKind::Client, "the cluster has no slots assigned");
    slots.ok_or_else(|| RedisError::from(none))
}
