//! Calls of the script that keeps queue entries, and grants what is free.

use std::time::Duration;

use super::{
    super::RedisBackend,
    acquire::{queue_entry, semaphore_keys},
    millis, replies,
};
use crate::{
    backend::{Claim, Kept, redis::scripts::SCRIPTS},
    error::BackendError,
};

impl RedisBackend {
    /// Keeps the queue entries of a process in one queue.
    ///
    /// A script that has more to do than it may says so, and is called again.
    pub(super) async fn keep_entries(
        &self,
        claims: &[Claim],
        life: Duration,
    ) -> Result<Kept, BackendError> {
        let Some(first) = claims.first() else { return Ok(Kept::nothing()) };
        let mut call = semaphore_keys(&SCRIPTS.keep_lock, first, &[self.channel()])
            .arg(millis(first.fence_life))
            .arg(millis(life));
        for claim in claims {
            call = call.arg(queue_entry(claim));
        }
        loop {
            let reply = self.0.servers.call(&call).await?;
            let (mut kept, told) = self.checked(replies::kept(reply, claims.len()))?;
            self.record_publish_refused(told.publish_refused);
            if !told.again {
                // No push tells them that the lease is free, so they ask.
                kept.has_lapsed |= told.publish_refused == Some(true);
                return Ok(kept);
            }
        }
    }
}
