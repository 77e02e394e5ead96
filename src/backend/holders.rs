//! The pushes to a process about leases for which no waiter of the process waits.

use super::{Claim, Owner};

/// The leases of one engine, for the pushes to its process.
#[doc(hidden)]
pub trait Holders: Send + Sync + 'static {
    /// Returns whether this owner holds a lease here.
    fn has(&self, owner: Owner) -> bool;

    /// Renews the lease of this owner, if it is here, because another caller has ended the lease.
    /// So the holder notices the loss.
    fn ended(&self, owner: Owner);

    /// Releases a lease that was handed over to an owner which is no longer here.
    fn orphaned(&self, claim: Claim);
}
