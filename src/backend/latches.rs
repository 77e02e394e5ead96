use std::time::Duration;

use async_trait::async_trait;

use super::{Leases, Owner};
use crate::{error::BackendError, key::Name};

/// Count-down latches: set once, counted down by many, waited for by many.
///
/// A majority of servers has none: a latch that is counted down at different majorities never ends.
///
/// A latch ends with its time, whether it was counted down or not. A latch at zero stands for that
/// time once more, so that a late waiter sees zero.
///
/// The error is [`BackendErrorKind::Foreign`](crate::error::BackendErrorKind::Foreign) if the name
/// holds something that is not a latch, which is left alone.
#[async_trait]
pub trait Latches: Leases {
    /// Sets a latch to `count`, for `ttl`, unless one stands. Returns whether one stands that was
    /// set under this `id`, so that a setting that is sent twice is recognised.
    async fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Result<bool, BackendError>;

    /// Counts a latch down, to zero at most. Returns what the step left, or `None` if no latch
    /// stands. A step by 0 only reads it.
    ///
    /// A step under an `id` is counted once. If it is sent again, it is told the count that it
    /// left, or zero once the latch is done. Listeners are told of zero, and not of the steps
    /// before.
    async fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> Result<Option<Countdown>, BackendError>;

    /// Returns what is left of a latch, or `None` if no latch stands.
    async fn latch(&self, name: &Name) -> Result<Option<Countdown>, BackendError> {
        self.count_down(name, Owner::fresh(), 0).await
    }

    /// Removes a latch, or whatever stands in its place, and wakes the waiters. Returns whether
    /// something was there.
    async fn clear_latch(&self, name: &Name) -> Result<bool, BackendError>;
}

/// The progress of a latch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Countdown {
    /// The steps that are left; zero if it is done.
    pub left: u32,
    /// After how long the latch ends.
    pub remaining: Duration,
}
