//! Subscriptions to the changes of names.
//!
//! A release notifies one waiter on the channel of its process, so that the other processes do not
//! wake. The end of a load is told to the backends that registered for it. At a single server each
//! has one such channel for all names, and keeps it. So a wait costs no subscription.
//!
//! In a cluster a script publishes in the slot of its name only. So a process has such a channel
//! for each name that it waits for.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::sleep;

use super::super::{RedisBackend, keys};
use crate::{
    backend::{Changes, Claim},
    error::{BackendError, BackendErrorKind},
    key::{Family, Name},
};

impl RedisBackend {
    /// Subscribes to all changes of a name.
    pub(super) async fn subscribe(&self, name: &Name) -> Result<Changes, BackendError> {
        let channel: Arc<str> = name.suffixed(self.channel()).into();
        let channels = self.0.servers.channels();
        let changes = match &self.0.process_channels {
            Some(own) => channels.listen_to_all(&channel, &own.of(name).queued, name.prefix()),
            None => channels.listen_to_both(&channel, &keys::own_shard_channel(&channel)),
        };
        self.confirmed(changes, &channel).await
    }

    /// Subscribes to the changes of which a claim must know while it waits.
    pub(super) async fn subscribe_for(&self, claim: &Claim) -> Result<Changes, BackendError> {
        let mut changes = if let Some(shared) = self.shared_channel(claim) {
            let changes = self.0.servers.channels().listen_through(&shared, claim.name.prefix());
            self.confirmed(changes, &shared).await?
        } else if is_queued(claim) {
            self.subscribe(&claim.name).await?
        } else {
            let channel: Arc<str> = claim.name.suffixed(self.channel()).into();
            let changes = self.0.servers.channels().listen(&channel);
            self.confirmed(changes, &channel).await?
        };
        changes.address(claim.owner);
        Ok(changes)
    }

    /// Returns the subscription of [`subscribe_for`](Self::subscribe_for), if the server has
    /// confirmed it already, and no push was missed since [`missed_by`](Self::missed_by) returned
    /// `missed`.
    pub(super) fn subscribed_since(&self, claim: &Claim, missed: u64) -> Option<Changes> {
        let (channels, name) = (self.0.servers.channels(), &claim.name);
        let mut changes = if let Some(shared) = self.shared_channel(claim) {
            channels.listen_along_through(&shared, name.prefix())?
        } else if is_queued(claim) {
            let channel = name.suffixed(self.channel()).into();
            channels.listen_along(&channel, &keys::own_shard_channel(&channel))?
        } else {
            return None;
        };
        changes.address(claim.owner);
        (self.missed_by(claim) == missed).then_some(changes)
    }

    /// Returns how many pushes a waiter for a claim may have missed until now. Asks for the channel
    /// of this process, without a wait.
    pub(super) fn missed_by(&self, claim: &Claim) -> u64 {
        let channels = self.0.servers.channels();
        if self.0.process_channels.is_some() {
            if self.shared_channel(claim).is_some() {
                // A server that is down refuses the claim as well.
                let _ = self.0.servers.start_own_push();
            }
            return channels.missed(claim.name.prefix(), claim.owner);
        }
        let channel: Arc<str> = claim.name.suffixed(self.channel()).into();
        let each = [&channel, &keys::own_shard_channel(&channel)];
        each.into_iter().map(|channel| channels.missed(channel, claim.owner)).sum()
    }

    /// Returns whether a claim of this process waits for a name.
    pub(super) fn is_waited_for(&self, name: &Name) -> bool {
        let channels = self.0.servers.channels();
        match self.0.process_channels {
            Some(_) => channels.has_listeners(name.prefix()),
            None => channels.has_listeners(&name.suffixed(self.channel())),
        }
    }

    /// Returns the id that a claim of an entry's lease registers. It is empty where the processes
    /// listen to the channel of the name.
    pub(super) fn registration(&self) -> &str {
        self.0.process_channels.as_ref().map_or("", |channels| &channels.id)
    }

    /// Returns the channel of this process on which a claim is told of all that it must know.
    fn shared_channel(&self, claim: &Claim) -> Option<Arc<str>> {
        let is_queued = is_queued(claim);
        if !is_queued && claim.name.family() != Family::Cache {
            return None;
        }
        let own = self.0.process_channels.as_ref()?.of(&claim.name);
        let shared = if is_queued { &own.queued } else { &own.registered };
        if !own.is_wanted.swap(true, Ordering::Relaxed) {
            let channels = self.0.servers.channels();
            channels.open_process_channel(shared);
            if !is_queued {
                channels.open_process_channel(&own.common);
            }
        }
        Some(shared.clone())
    }

    /// Waits until the server has confirmed a subscription.
    async fn confirmed(
        &self,
        mut changes: Changes,
        channel: &str,
    ) -> Result<Changes, BackendError> {
        let mut answer = self.0.servers.start_push(channel).await?;
        let limit = answer.limit;
        tokio::select! {
            reply = changes.confirmed() => reply.map(|()| changes),
            error = answer.failed() => Err(error),
            () = sleep(limit) => {
                let why = format!("no subscription within {limit:?}");
                Err(BackendError::new(BackendErrorKind::Unavailable, why))
            }
        }
    }
}

/// Returns whether a claim is told of its turn by its owner.
fn is_queued(claim: &Claim) -> bool {
    claim.waits
}
