//! The connections to one server.

use std::sync::Arc;

use super::{
    commands::CommandConnection, config::RedisConfig, endpoint::Endpoint, events::NodeEvents,
    push::PushConnection, replicas::Replicas,
};
use crate::backend::redis::scripts::Call;

/// One server and its connections, each made when it is first needed.
pub(super) struct Node {
    pub(super) commands: Arc<CommandConnection>,
    granting: CommandConnection,
    bulk: CommandConnection,
    pub(super) push: PushConnection,
}

/// The connection for a command.
#[derive(Clone, Copy)]
pub(super) enum Lane {
    Commands,
    /// For grants that replicas confirm: a `WAIT` delays all later commands of its connection.
    Granting,
    /// For large entries: their transfer delays all later commands of its connection.
    Bulk,
}

impl Lane {
    /// Returns the lane of a call, which `replicas` must confirm.
    pub(super) fn of(call: &Call<'_>, replicas: Option<Replicas>) -> Self {
        match (call.staged(), replicas) {
            (Some(staged), _) if staged.is_large => Self::Bulk,
            (None, Some(_)) => Self::Granting,
            _ => Self::Commands,
        }
    }
}

impl Node {
    pub(super) fn new(endpoint: &Endpoint, config: &RedisConfig, events: NodeEvents) -> Self {
        let commands = || CommandConnection::new(endpoint.clone(), config.clone(), events.clone());
        Self {
            commands: Arc::new(commands()),
            granting: commands(),
            bulk: commands(),
            push: PushConnection::new(endpoint.clone(), config.clone(), events.clone()),
        }
    }

    /// Returns a connection for a command. A waiter may listen behind it, so pushes are ready.
    pub(super) fn connection(&self, lane: Lane) -> &CommandConnection {
        self.push.start();
        match lane {
            Lane::Commands => &self.commands,
            Lane::Granting => &self.granting,
            Lane::Bulk => &self.bulk,
        }
    }

    /// Replaces the connections after a reply that does not match its command.
    pub(super) fn replace_connections(&self) {
        self.commands.replace();
        self.granting.replace();
        self.bulk.replace();
    }
}
