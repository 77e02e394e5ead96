//! Calls of the scripts that end a lease.

use bytes::Bytes;

use super::{super::RedisBackend, millis, replies};
use crate::{
    backend::{
        Claim, HANDOVER_LIFE, Mode, TURN_LIFE,
        redis::{
            keys,
            scripts::{Call, SCRIPTS},
        },
    },
    error::BackendError,
};

impl RedisBackend {
    /// Ends the lease of an entry, and pushes the reason.
    pub(super) async fn release_entry(
        &self,
        claim: &Claim,
        message: Bytes,
    ) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.release, 2)
            .keys(&claim.name, &[keys::LEASE, self.channel()])
            .owner(claim.owner)
            .arg(&message[..]);
        self.released(call).await
    }

    pub(super) async fn release_queued(
        &self,
        claim: &Claim,
        keys: &[&str],
    ) -> Result<bool, BackendError> {
        // A grant that replicas must confirm cannot be handed over: its holder asks for it.
        let handover_life =
            if self.0.config.replicas.is_none() { millis(HANDOVER_LIFE) } else { 0 };
        let call = Call::new(&SCRIPTS.release_queued, keys.len())
            .keys(&claim.name, keys)
            .owner(claim.owner)
            .arg(millis(TURN_LIFE))
            .arg(handover_life)
            .arg(millis(claim.fence_life))
            .arg(millis(claim.queue_entry_life().saturating_sub(HANDOVER_LIFE)));
        // If this process waits for the name, other processes are likely to wait as well, and hear
        // before this caller. A fair mutex is left out: each of its releases would be two commands.
        let is_contended = claim.mode == Mode::Exclusive && self.is_waited_for(&claim.name);
        self.released(call.answered_last(is_contended)).await
    }

    pub(super) async fn release_permit(
        &self,
        claim: &Claim,
        count: u32,
    ) -> Result<bool, BackendError> {
        let call = Call::new(&SCRIPTS.release_permit, 2)
            .keys(&claim.name, &[keys::PERMITS, self.channel()])
            .owner(claim.owner)
            .arg(count);
        self.released(call).await
    }

    async fn released(&self, call: Call<'_>) -> Result<bool, BackendError> {
        let reply = replies::released(self.0.servers.call(call).await?);
        let (was_held, publish_refused) = self.checked(reply)?;
        self.record_publish_refused(publish_refused);
        Ok(was_held)
    }
}
