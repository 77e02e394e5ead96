//! Locks of a process that may not publish.
//!
//! No push tells of its releases, and the waiters of other processes know nothing of that. So such
//! a process leaves a key beside each lock that it claims, for as long as the lease. The scripts of
//! the waiters see it, and make them look at short intervals.

use std::{future::Future, sync::atomic::Ordering};

use futures_util::future::{join, join_all};
use tracing::debug;

use super::{super::RedisBackend, millis, replies};
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

impl RedisBackend {
    /// Runs what acquires or renews some locks, and tells their waiters if this backend may not
    /// publish: first, so that a script that acquires sees it.
    pub(super) async fn telling_if_muted<T>(
        &self,
        claims: &[Claim],
        script: impl Future<Output = T>,
    ) -> T {
        if self.0.has_published.load(Ordering::Relaxed) {
            return script.await;
        }
        join(Box::pin(self.tell_if_muted(claims)), script).await.1
    }

    async fn tell_if_muted(&self, claims: &[Claim]) {
        let mut locks = claims.iter().filter(|claim| claim.name.family() != Family::Cache);
        if !self.0.servers.channels().is_mute() {
            // While one request finds out, the others do without.
            let Ok(_finding_out) = self.0.finds_out_rights.try_lock() else { return };
            let Some(first) = locks.next() else { return };
            self.tell_muted(first).await;
        }
        if self.0.servers.channels().is_mute() {
            join_all(locks.map(|claim| self.tell_muted(claim))).await;
        }
    }

    async fn tell_muted(&self, claim: &Claim) {
        let call = Call::new(&SCRIPTS.tell_muted, 1)
            .keys(&claim.name, &[keys::MUTED])
            .arg(self.unheard_channel(&claim.name))
            // It lasts from one renewal to the next.
            .arg(millis(claim.lease));
        match self.told(call).await {
            Ok(published) => self.record_publish_refused(Some(!published)),
            Err(error) => {
                let name = &claim.name;
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
            _ => self.checked(Err(replies::unreadable("a claim's rights"))),
        }
    }
}
