//! The connections to one server.

use super::{
    events::NodeEvents,
    link::Link,
    replicas::{GrantReply, Grants},
    sentinel::Endpoint,
    settings::RedisConfig,
};
use crate::backend::redis::scripts::Call;

/// One server and its connections, each made when it is first needed.
pub(super) struct Node {
    commands: Link,
    /// Only if replicas confirm grants. A `WAIT` delays all later commands of its connection.
    grants: Option<Grants>,
    pub(super) push: Link,
}

impl Node {
    pub(super) fn new(endpoint: &Endpoint, config: &RedisConfig, events: &NodeEvents) -> Self {
        let link = |is_for_pushes| Link::new(endpoint, config, events, is_for_pushes);
        let grants = config.replicas.map(|needed| Grants::new(link(false), needed));
        Self { commands: link(false), grants, push: link(true) }
    }

    /// Returns the connection for commands. A waiter may listen behind it, so pushes are ready.
    pub(super) fn commands(&self) -> &Link {
        self.push.start();
        &self.commands
    }

    /// Runs a script that grants something. Returns whether enough replicas confirmed it, too.
    pub(super) async fn grant(&self, call: &Call<'_>, asking: bool) -> GrantReply {
        let commands = self.commands();
        match &self.grants {
            Some(grants) => Box::pin(grants.call(call, asking)).await,
            None => Ok((commands.call(call, asking).await?, Ok(()))),
        }
    }

    /// Replaces the connections after a reply that does not match its command.
    pub(super) fn replace_connections(&self) {
        self.commands.replace();
        if let Some(grants) = &self.grants {
            grants.link.replace();
        }
    }
}
