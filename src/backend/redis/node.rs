//! The connections to one server.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{
    RedisOptions, Replicas, cluster::Share, commands::Commands, push::Push, target::Target,
};
use crate::backend::Channels;

/// One server: a connection for commands, one for grants that replicas must confirm, one for pushes. Each is
/// made when it is first needed.
pub(super) struct Node {
    pub(super) commands: Commands,
    /// A `WAIT` holds up whatever comes behind it on its connection.
    pub(super) granting: Commands,
    pub(super) push: Push,
}

/// What the connections to a server have to tell others.
#[derive(Clone)]
pub(super) struct Signs {
    pub(super) channels: Channels,
    pub(super) scope: Scope,
    /// Told when there is a connection for commands again.
    pub(super) connected: Arc<Notify>,
    /// Told when a connection broke, or could not be made.
    pub(super) trouble: Arc<Notify>,
}

/// Which channels are a server's.
#[derive(Clone)]
pub(super) enum Scope {
    All,
    /// Those of the slots that it serves, in a cluster.
    Share(Share),
}

impl Node {
    pub(super) fn new(target: &Target, options: &RedisOptions, signs: Signs) -> Self {
        let commands = || Commands::new(target.clone(), options.clone(), signs.clone());
        Self {
            commands: commands(),
            granting: commands(),
            push: Push::new(target.clone(), options.clone(), signs.clone()),
        }
    }

    /// The connection for what so many replicas must confirm.
    pub(super) fn connection(&self, replicas: Option<Replicas>) -> &Commands {
        match replicas {
            Some(_) => &self.granting,
            None => &self.commands,
        }
    }
}

impl Signs {
    /// The signs of the only server.
    pub(super) fn of_one(channels: Channels) -> Self {
        Self { channels, scope: Scope::All, connected: Arc::default(), trouble: Arc::default() }
    }

    /// Whoever listens to one of the server's channels is told to look.
    pub(super) fn wake(&self) {
        self.channels.wake(|channel| self.scope.has(channel));
    }

    /// None of its subscriptions is in place any more.
    pub(super) fn forget_answers(&self) {
        self.channels.forget_answers(|channel| self.scope.has(channel));
    }
}

impl Scope {
    pub(super) fn has(&self, channel: &str) -> bool {
        match self {
            Self::All => true,
            Self::Share(share) => share.has(channel),
        }
    }
}
