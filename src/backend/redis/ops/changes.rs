//! The channels through which a waiter hears of changes.
//!
//! A release notifies one waiter on the channel of its process, so that the other processes do not
//! wake. The end of a load is told to the backends that registered for it. At a single server each
//! has one such channel for all names, and keeps it. So a wait costs no subscription.
//!
//! In a cluster a script publishes in the slot of its name only. So a process has such a channel
//! for each name that it waits for.

use std::sync::Arc;

use tokio::time::timeout;

use super::super::{RedisBackend, keys};
use crate::{
    backend::{Changes, Claim},
    error::{BackendError, BackendErrorKind},
    key::{Family, Name},
};

impl RedisBackend {
    /// Registers a waiter, and has the channel of this process opened.
    pub(super) fn register(&self, name: &Name, claim: Option<&Claim>) -> Changes {
        let (channels, owner) = (self.0.servers.channels(), claim.map(|claim| claim.owner));
        if let Some(own) = claim.and_then(|claim| self.own_channel(claim)) {
            return channels.register(name.prefix(), [Some(own), None], owner);
        }
        let of_name: Arc<str> = name.suffixed(self.channel()).into();
        // The process hears of what is granted to it in the queue.
        let own = claim.is_none_or(|claim| claim.waits).then(|| match &self.0.process_channels {
            Some(own) => own.of(name).queued.clone(),
            None => keys::own_shard_channel(&of_name),
        });
        channels.register(name.prefix(), [Some(of_name), own], owner)
    }

    /// Subscribes to all changes of a name.
    pub(super) async fn subscribed(&self, name: &Name) -> Result<Changes, BackendError> {
        let mut changes = self.register(name, None);
        let limit = self.0.servers.start_push(&name.suffixed(self.channel())).await?;
        match timeout(limit, changes.confirmed()).await {
            Ok(answer) => answer.map(|()| changes),
            Err(_elapsed) => {
                let why = format!("no subscription within {limit:?}");
                Err(BackendError::new(BackendErrorKind::Unavailable, why))
            }
        }
    }

    /// Returns the id that a claim of an entry's lease registers. It is empty where the processes
    /// listen to the channel of the name.
    pub(super) fn registration(&self) -> &str {
        self.0.process_channels.as_ref().map_or("", |channels| &channels.id)
    }

    /// Returns the channel of this process on which a claim is told of all that it must know. Has
    /// it opened.
    fn own_channel(&self, claim: &Claim) -> Option<Arc<str>> {
        if !claim.waits && claim.name.family() != Family::Cache {
            return None;
        }
        let own = self.0.process_channels.as_ref()?.of(&claim.name);
        let channel = if claim.waits { &own.queued } else { &own.registered };
        own.open(self.0.servers.channels(), channel);
        Some(channel.clone())
    }
}
