use std::time::Duration;

/// The answer to [`Leases::keep`](super::Leases::keep).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// After how long the lease that is in the way ends if it is not renewed. It is zero if nothing
    /// is in the way, or the lease could not be handed to a waiter.
    pub remaining: Duration,
    /// The process had stopped to keep its entries, and others may have removed them.
    pub has_lapsed: bool,
    /// Whether each claim has an entry, in their order.
    pub stands: Vec<bool>,
}
