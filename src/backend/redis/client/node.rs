//! The connections to one server.

use super::{
    commands::CommandConnection, config::RedisConfig, endpoint::Endpoint, events::NodeEvents,
    push::PushConnection, replicas::Replicas,
};

/// One server and its connections, each made when it is first needed.
pub(super) struct Node {
    pub(super) commands: CommandConnection,
    /// For grants that replicas confirm: a `WAIT` delays all later commands of its connection.
    pub(super) granting: CommandConnection,
    pub(super) push: PushConnection,
}

impl Node {
    pub(super) fn new(endpoint: &Endpoint, config: &RedisConfig, events: NodeEvents) -> Self {
        let commands = || CommandConnection::new(endpoint.clone(), config.clone(), events.clone());
        Self {
            commands: commands(),
            granting: commands(),
            push: PushConnection::new(endpoint.clone(), config.clone(), events.clone()),
        }
    }

    /// Returns the connection for a command that `replicas` must confirm.
    pub(super) fn connection(&self, replicas: Option<Replicas>) -> &CommandConnection {
        match replicas {
            Some(_) => &self.granting,
            None => &self.commands,
        }
    }

    /// Replaces the connections after a reply that does not match its command.
    pub(super) fn replace_connections(&self) {
        self.commands.replace();
        self.granting.replace();
    }
}
