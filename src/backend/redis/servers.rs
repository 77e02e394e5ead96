//! The one seam between what is asked (`leases`, `store`) and who is asked: a server, or a cluster of them.

use futures_util::FutureExt;
use redis::{Cmd, Value};

use super::{
    RedisOptions, Replicas,
    cluster::{Cluster, Seeds, share_a_slot},
    commands::{Answer, Escort, Limit},
    node::{Node, Signs},
    script::Call,
    target::Target,
};
use crate::{backend::Channels, error::BackendError, key::Name};

/// Who is asked, without the connections.
#[derive(Clone)]
pub(super) enum Origin {
    One(Target),
    Cluster(Seeds),
}

pub(super) struct Servers {
    options: RedisOptions,
    kind: Kind,
}

/// What is asked of a cluster is boxed, so that the way to a single server stays small.
enum Kind {
    One { node: Box<Node>, channels: Channels },
    Cluster(Cluster),
}

/// As many leases are renewed by one script: few enough not to hold the server up.
const RENEW_BATCH: usize = 100;

impl Servers {
    pub(super) fn new(origin: Origin, options: RedisOptions) -> Self {
        let kind = match origin {
            Origin::One(target) => {
                let channels = Channels::default();
                let node = Node::new(&target, &options, Signs::of_one(channels.clone()));
                Kind::One { node: Box::new(node), channels }
            }
            Origin::Cluster(seeds) => Kind::Cluster(Cluster::new(seeds, options.clone())),
        };
        Self { options, kind }
    }

    /// Runs a script.
    pub(super) async fn call(&self, call: Call<'_>) -> Result<Value, BackendError> {
        Ok(self.answer(&call, None).await?.value)
    }

    /// Runs a script that grants something. Says, too, whether so many replicas have it as are asked for.
    pub(super) async fn grant(&self, call: Call<'_>) -> Result<(Value, bool), BackendError> {
        let answer = self.answer(&call, self.options.replicas).await?;
        Ok(self.confirmed(answer))
    }

    /// Runs scripts that renew what was granted, all at once, as [`grant`](Self::grant) does.
    pub(super) async fn renew(
        &self,
        calls: &[Call<'_>],
    ) -> Result<Vec<(Value, bool)>, BackendError> {
        let replicas = self.options.replicas;
        let answers = match &self.kind {
            Kind::One { .. } => {
                let each = calls.iter().map(|call| self.answer(call, replicas));
                futures_util::future::try_join_all(each).await?
            }
            Kind::Cluster(cluster) => cluster.call_each(calls, replicas).boxed().await?,
        };
        Ok(answers.into_iter().map(|answer| self.confirmed(answer)).collect())
    }

    /// How many leases one script may renew. In a cluster each has its own: hardly two share a slot, and one
    /// that is just being moved would hold up the others.
    pub(super) fn renewed_together(&self) -> usize {
        match self.kind {
            Kind::One { .. } => RENEW_BATCH,
            Kind::Cluster(_) => 1,
        }
    }

    /// Whether one script may be about all of these names.
    pub(super) fn serve_together<'a>(&self, names: impl Iterator<Item = &'a Name>) -> bool {
        match self.kind {
            Kind::One { .. } => true,
            Kind::Cluster(_) => share_a_slot(names),
        }
    }

    /// Runs a command about one key.
    pub(super) async fn run(&self, command: &Cmd, key: &str) -> Result<Value, BackendError> {
        match &self.kind {
            Kind::One { node, .. } => {
                let limit = Limit::of(&self.options);
                Ok(node.commands.run(command, Escort::default(), limit).await?.value)
            }
            Kind::Cluster(cluster) => Ok(cluster.run(command, key).boxed().await?.value),
        }
    }

    pub(super) async fn ping(&self) -> Result<(), BackendError> {
        match &self.kind {
            Kind::One { node, .. } => {
                let ping = redis::cmd("PING");
                node.commands.run(&ping, Escort::default(), Limit::of(&self.options)).await?;
                Ok(())
            }
            Kind::Cluster(cluster) => cluster.ping().boxed().await,
        }
    }

    /// Gives the present connections up: an answer was not one to what was asked.
    pub(super) fn out_of_step(&self) {
        match &self.kind {
            Kind::One { node, .. } => {
                node.commands.out_of_step();
                node.granting.out_of_step();
            }
            Kind::Cluster(cluster) => cluster.out_of_step(),
        }
    }

    pub(super) fn channels(&self) -> &Channels {
        match &self.kind {
            Kind::One { channels, .. } => channels,
            Kind::Cluster(cluster) => cluster.channels(),
        }
    }

    /// Has somebody keep the subscription to a channel that is listened to. Fails where that is known to be
    /// in vain for now.
    pub(super) async fn attend(&self, channel: &str) -> Result<(), BackendError> {
        match &self.kind {
            Kind::One { node, .. } => node.push.start(),
            Kind::Cluster(cluster) => cluster.attend(channel).boxed().await,
        }
    }

    pub(super) fn shard(&self, name: &Name) -> usize {
        match &self.kind {
            Kind::One { .. } => 0,
            Kind::Cluster(cluster) => cluster.shard(name),
        }
    }

    async fn answer(
        &self,
        call: &Call<'_>,
        replicas: Option<Replicas>,
    ) -> Result<Answer, BackendError> {
        match &self.kind {
            Kind::One { node, .. } => {
                let escort = Escort { replicas, ..Escort::default() };
                Ok(node.connection(replicas).call(call, escort, Limit::of(&self.options)).await?)
            }
            Kind::Cluster(cluster) => cluster.call(call, replicas).boxed().await,
        }
    }

    fn confirmed(&self, answer: Answer) -> (Value, bool) {
        let enough = self.options.replicas.is_none_or(|replicas| replicas.are(answer.confirmed));
        (answer.value, enough)
    }
}
