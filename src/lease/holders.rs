//! What an engine does with pushes about leases for which no caller waits.

use std::sync::Arc;

use tokio::runtime::Handle;
use tracing::debug;

use super::{Janitor, Release, renewals::Renewals};
use crate::backend::{Claim, Holders, Owner};

/// The leases of one engine, as the backend sees them.
pub(super) struct LocalHolders {
    pub(super) janitor: Arc<Janitor>,
    pub(super) renewals: Arc<Renewals>,
}

impl Holders for LocalHolders {
    fn has(&self, owner: Owner) -> bool {
        self.renewals.has(owner)
    }

    fn ended(&self, owner: Owner) {
        self.renewals.check(|claim| claim.owner == owner);
    }

    fn orphaned(&self, claim: Claim) {
        // Without a runtime, the lease ends by itself after the time of a handover.
        if Handle::try_current().is_ok() {
            debug!(name = ?claim.name, "a lease was handed over to a caller that has left");
            Release::new(&self.janitor, claim).undo();
        }
    }
}
