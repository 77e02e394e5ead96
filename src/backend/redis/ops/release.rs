//! Calls of the scripts that end a lease, and hand it over.

use bytes::Bytes;

use super::{super::RedisBackend, millis, replies};
use crate::{
    backend::{
        BackOff, Claim, HANDOVER_LIFE, Mode, TURN_LIFE,
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
        let mut call = Call::new(&SCRIPTS.release, 3 + usize::from(back_off.is_some()))
            .keys(&claim.name, &[keys::LEASE, self.channel(), keys::PROCESSES]);
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
        let keys = self.keys_of_queue(claim.mode);
        let script = match claim.mode {
            Mode::Exclusive | Mode::Fair => &SCRIPTS.release_queued,
            Mode::Read | Mode::Write => &SCRIPTS.release_rw,
            Mode::Permit { .. } => &SCRIPTS.release_permit,
        };
        let mut call = Call::new(script, keys.len()).keys(&claim.name, &keys).owner(claim.owner);
        if let Mode::Permit { limit, count } = claim.mode {
            call = call.arg(count).arg(limit);
        }
        let call = self.with_terms(claim, call);
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

    /// Returns the suffixes of the keys of a queue, and of the lease that it hands over.
    pub(super) fn keys_of_queue(&self, mode: Mode) -> Vec<&str> {
        let channel = self.channel();
        match mode {
            Mode::Exclusive | Mode::Fair => vec![
                keys::LEASE,
                channel,
                keys::FENCE,
                keys::QUEUE,
                keys::UNORDERED,
                keys::DEADLINES,
            ],
            Mode::Read | Mode::Write => vec![
                keys::WRITER,
                channel,
                keys::FENCE,
                keys::RW_QUEUE,
                keys::RW_DEADLINES,
                keys::READERS,
                keys::WAITING_WRITERS,
            ],
            Mode::Permit { .. } => {
                vec![keys::PERMITS, channel, keys::PERMIT_QUEUE, keys::PERMIT_DEADLINES]
            }
        }
    }

    /// Adds the terms of a handover to a call.
    pub(super) fn with_terms<'a>(&self, claim: &Claim, call: Call<'a>) -> Call<'a> {
        let call = call.arg(u8::from(self.hands_over())).arg(millis(HANDOVER_LIFE));
        match claim.mode {
            Mode::Exclusive | Mode::Fair => {
                // Waiters for an entry have no queue, and all of them are woken.
                let wakes_all = u8::from(claim.name.family() == Family::Cache);
                call.arg(millis(claim.fence_life)).arg(millis(TURN_LIFE)).arg(wakes_all)
            }
            Mode::Read | Mode::Write => call.arg(millis(claim.fence_life)),
            Mode::Permit { .. } => call,
        }
    }

    /// Returns whether a lease may be handed over. A grant that replicas must confirm may
    /// not be handed over. The waiter asks for it.
    pub(super) fn hands_over(&self) -> bool {
        self.0.config.replicas.is_none()
    }

    async fn released(&self, call: Call<'_>) -> Result<bool, BackendError> {
        let reply = replies::released(self.0.servers.call(&call).await?);
        let (was_held, told) = self.checked(reply)?;
        self.record_publish_refused(told.publish_refused);
        Ok(was_held)
    }
}
