//! Locks of a process that may not publish.
//!
//! No push tells of its releases, and the waiters of other processes know nothing of that. So such
//! a process leaves a key beside each lock that it waits for or holds. The scripts of the waiters
//! see it, and make them look at short intervals.

use std::{future::Future, sync::atomic::Ordering, time::Duration};

use futures_util::future::{join, join_all};
use tracing::debug;

use super::{super::RedisBackend, acquire::deadlines_at, millis, replies};
use crate::{
    backend::{
        Claim,
        redis::{
            keys,
            scripts::{Call, SCRIPTS},
        },
    },
    error::{BackendError, Chain},
    key::Family,
};

/// How many locks one script tells of.
const BATCH: usize = 100;

impl RedisBackend {
    /// Runs a script that acquires locks. If this backend may not publish, tells the other waiters
    /// before, as long as it waits, and behind it if the locks were granted.
    pub(super) async fn telling_if_muted<T>(
        &self,
        claims: &[Claim],
        script: impl Future<Output = T>,
        is_granted: impl FnOnce(&T) -> bool,
    ) -> T {
        if self.0.has_published.load(Ordering::Relaxed) {
            return script.await;
        }
        let waiting = claims.iter().filter(|claim| claim.waits).collect();
        let telling = self.tell_if_muted(waiting, Claim::queue_entry_life);
        let (_, reply) = join(Box::pin(telling), script).await;
        if is_granted(&reply) {
            Box::pin(self.tell_if_muted(claims.iter().collect(), |claim| claim.lease)).await;
        }
        reply
    }

    /// Runs a script that renews locks. If this backend may not publish, tells the waiters until
    /// the next renewal.
    pub(super) async fn renewing_if_muted<T>(
        &self,
        claims: &[Claim],
        script: impl Future<Output = T>,
    ) -> T {
        if self.0.has_published.load(Ordering::Relaxed) {
            return script.await;
        }
        let telling = self.tell_if_muted(claims.iter().collect(), |claim| claim.lease);
        join(Box::pin(telling), script).await.1
    }

    /// Tells the waiters for locks that this backend may not publish, for a time for each claim. It
    /// finds out if it does not know.
    async fn tell_if_muted(&self, mut claims: Vec<&Claim>, life: fn(&Claim) -> Duration) {
        claims.retain(|claim| claim.name.family() != Family::Cache);
        let mut claims = &claims[..];
        if !self.0.servers.channels().is_mute() {
            // While one request finds out, the others do without.
            let Ok(_finding_out) = self.0.finds_out_rights.try_lock() else { return };
            let Some((first, rest)) = claims.split_first() else { return };
            if !self.0.has_published.load(Ordering::Relaxed) {
                self.tell_muted(std::slice::from_ref(first), life).await;
            }
            claims = rest;
        }
        if self.0.servers.channels().is_mute() {
            let together = self.0.servers.serve_together(claims.iter().map(|claim| &claim.name));
            let batches = claims.chunks(if together { BATCH } else { 1 });
            join_all(batches.map(|batch| self.tell_muted(batch, life))).await;
        }
    }

    async fn tell_muted(&self, claims: &[&Claim], life: fn(&Claim) -> Duration) {
        let Some(first) = claims.first() else { return };
        let mut call = Call::new(&SCRIPTS.tell_muted, 2 * claims.len());
        for claim in claims {
            call = call.keys(&claim.name, &[keys::MUTED, deadlines_at(claim.mode)]);
        }
        call = call.arg(self.unheard_channel(&first.name));
        for claim in claims {
            call = call.arg(millis(life(claim)));
        }
        match self.told(call).await {
            Ok(published) => self.record_publish_refused(Some(!published)),
            Err(error) => {
                let name = &first.name;
                debug!(?name, error = %Chain(&error), "waiters do not know whether it is muted");
            }
        }
    }

    /// Returns whether the server has published.
    async fn told(&self, call: Call<'_>) -> Result<bool, BackendError> {
        let words = self.checked(replies::words(self.0.servers.call(&call).await?))?;
        match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["published"] => Ok(true),
            ["refused"] => Ok(false),
            _ => self.checked(Err(replies::unreadable("the rights of a claim"))),
        }
    }
}
