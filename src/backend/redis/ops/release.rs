//! Calls of the scripts that end a lease, and hand it over.

use bytes::Bytes;

use super::{super::RedisBackend, acquire::lock_call, millis, replies};
use crate::{
    backend::{
        BackOff, Claim, Mode,
        redis::{
            keys,
            scripts::{Call, SCRIPTS},
        },
    },
    error::BackendError,
    key::Family,
};

impl RedisBackend {
    /// Ends the lease of an entry, and pushes the reason. The name may back off after it.
    pub(super) async fn release_entry(
        &self,
        claim: &Claim,
        message: Bytes,
        back_off: Option<BackOff>,
    ) -> Result<bool, BackendError> {
        let mut call = Call::new(&SCRIPTS.release, 2 + usize::from(back_off.is_some()))
            .keys(&claim.name, &[keys::LEASE, self.channel()]);
        if back_off.is_some() {
            call = call.keys(&claim.name, &[keys::FAILURE]);
        }
        call = call.owner(claim.owner).arg(&message[..]);
        if let Some(back_off) = back_off {
            call = call.arg(millis(back_off.wait)).arg(millis(back_off.remembered()));
            call = call.arg(back_off.failures);
        }
        self.released(call).await
    }

    /// Ends a lease and its queue entry, and hands over what is free then.
    ///
    /// A script that has more to do than it may says so, and is called again. If this process ends
    /// before that, the next script of any waiter goes on.
    pub(super) async fn release_and_hand_over(&self, claim: &Claim) -> Result<bool, BackendError> {
        // Waiters for an entry, and those for a majority, have no queue. All are woken.
        let is_mutex = matches!(claim.mode, Mode::Exclusive | Mode::Fair);
        let has_no_queue = matches!(claim.name.family(), Family::Cache | Family::Redlock);
        let wakes_all = u8::from(is_mutex && has_no_queue);
        let call = lock_call(&SCRIPTS.release_lock, claim, &[self.channel()]).arg(wakes_all);
        // If this process waits for the name, other processes are likely to wait as well. The
        // server writes to them before it answers this caller. For a fair mutex each release would
        // be two commands.
        let is_contended = claim.mode == Mode::Exclusive && self.is_waited_for(&claim.name);
        let mut was_held = false;
        let call = call.answered_last(is_contended);
        loop {
            let reply = replies::released(self.0.servers.call(&call).await?);
            let (held, told) = self.checked(reply)?;
            was_held |= held;
            self.record_publish_refused(told.publish_refused);
            if !told.again {
                return Ok(was_held);
            }
        }
    }

    async fn released(&self, call: Call<'_>) -> Result<bool, BackendError> {
        let reply = replies::released(self.0.servers.call(&call).await?);
        let (was_held, told) = self.checked(reply)?;
        self.record_publish_refused(told.publish_refused);
        Ok(was_held)
    }
}
