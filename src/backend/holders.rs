//! What is pushed to a process about leases that no waiter of the process waits for.

use super::{Claim, Owner};

/// The leases of one engine, as the pushes for its process see them.
#[doc(hidden)]
pub trait Holders: Send + Sync + 'static {
    /// Returns whether this owner holds a lease here.
    fn has(&self, owner: Owner) -> bool;

    /// Finds out whether a lease is still held that was ended from outside, if its owner is here.
    fn ended(&self, owner: Owner);

    /// Releases a lease that was handed over to an owner which is no longer here.
    fn orphaned(&self, claim: Claim);
}
