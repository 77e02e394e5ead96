//! The connections to one server.

use redis::ConnectionInfo;

use super::{
    events::NodeEvents,
    link::Link,
    replicas::{GrantReply, Grants},
    settings::RedisConfig,
};
use crate::backend::redis::scripts::Call;

/// One server and its connections for commands. Any caller may become a waiter, so the task of
/// these connections keeps one more connection, for pushes.
pub(super) struct Node {
    pub(super) commands: Link,
    /// Only if replicas confirm grants. A `WAIT` delays all later commands of its connection.
    grants: Option<Grants>,
}

impl Node {
    pub(super) fn new(server: &ConnectionInfo, config: &RedisConfig, events: &NodeEvents) -> Self {
        let Some(needed) = config.replicas else {
            let [commands] = Link::all(server, config, events);
            return Self { commands, grants: None };
        };
        let [commands, grants] = Link::all(server, config, events);
        Self { commands, grants: Some(Grants::new(grants, needed)) }
    }

    pub(super) async fn grant(&self, call: &Call<'_>, asking: bool) -> GrantReply {
        match &self.grants {
            Some(grants) => Box::pin(grants.call(call, asking)).await,
            None => Ok((self.commands.call(call, asking).await?, Ok(()))),
        }
    }

    pub(super) fn give_up_connections(&self) {
        self.commands.give_up();
        if let Some(grants) = &self.grants {
            grants.link.give_up();
        }
    }
}
