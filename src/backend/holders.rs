//! The news about leases that no waiter of a process takes. The backend pushes the news of all
//! leases to a process, and [`Holders`] gets what no waiter takes.

use super::{Claim, Owner};

/// The leases of one `Cache` or `Locks`, for the pushes to its process.
#[doc(hidden)]
pub trait Holders: Send + Sync + 'static {
    /// Returns whether this owner holds one of these leases.
    fn has(&self, owner: Owner) -> bool;

    /// Begins a renewal of the lease of this owner, if the lease is one of these. Another caller
    /// has ended the lease, so the renewal is refused, and the holder notices the loss.
    fn ended(&self, owner: Owner);

    /// Begins the release of a lease that the backend has handed over to an owner which has left.
    fn orphaned(&self, claim: Claim);
}
