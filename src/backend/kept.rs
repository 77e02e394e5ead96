use std::time::Duration;

/// The answer to [`Leases::keep`](super::Leases::keep).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// After how long the lease that is in the way ends if it is not renewed. If nothing is in the
    /// way and the first waiter does not hear of that, it is how long the entry of that waiter
    /// still lasts. Otherwise it is zero.
    pub remaining: Duration,
    /// The process had stopped to keep its entries, and others may have removed them.
    pub has_lapsed: bool,
    /// Nothing was in the way, and the lease was handed to a waiter that hears of it.
    pub handed_over: bool,
    /// Whether each claim has an entry, in their order.
    pub stands: Vec<bool>,
}

impl Kept {
    /// Returns the answer where no claim was given.
    pub(super) fn nothing() -> Self {
        let remaining = Duration::MAX;
        Self { remaining, has_lapsed: false, handed_over: false, stands: Vec::new() }
    }
}
