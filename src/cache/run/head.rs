//! The first of two landings: the callers of this process get the head of a value, while its rest
//! is on its way.

use std::{convert::Infallible, future::pending};

use tracing::debug;

use super::Run;
use crate::{
    cache::{
        Lead,
        outcome::{Head, Outcome},
    },
    error::ErrorKind,
    flight::Epoch,
    lease::LeaseGuard,
};

impl<V: Clone + Send + Sync + 'static> Run<V> {
    /// Lands the head of the value for the callers that joined before the epoch of its load.
    pub(super) fn land_head(&self, head: &Head, lead: &Lead<V>, epoch: Epoch) {
        self.leader.land_first(Outcome::Head(head.clone(), lead.source()), epoch);
    }

    /// Lands the head when it is announced, and admits the callers that join later.
    ///
    /// A late joiner may know of a change since the load began. Each act that changes the value
    /// ends the lease, so a lease that is held says that there was none. A rare key has no lease,
    /// so its late joiners join anew.
    pub(super) async fn serve_head(
        &self,
        lead: &Lead<V>,
        guard: Option<&LeaseGuard>,
        epoch: Epoch,
    ) -> Infallible {
        lead.announced().await;
        if let Some(head) = lead.head() {
            self.land_head(head, lead, epoch);
        }
        if self.is_anew() || lead.is_rare() {
            self.leader.close_first();
            return pending().await;
        }
        let Some(guard) = guard else { return pending().await };
        loop {
            self.leader.late_joiner().await;
            let epoch = self.leader.begin_epoch();
            let is_silent = self.shard.breaker.is_open();
            let held = if is_silent { Ok(()) } else { Box::pin(guard.renew()).await };
            match held {
                Err(error) if error.kind() == ErrorKind::Lost => break,
                // The end of a tag takes no lease away.
                Ok(()) if !is_silent && !Box::pin(self.are_current(lead)).await => break,
                // Without an answer, they are served as all callers are without a lease.
                Ok(()) | Err(_) => self.leader.admit(epoch),
            }
        }
        debug!("the lease is lost or a tag has ended, so no more callers are served this load");
        self.leader.close_first();
        pending().await
    }
}
