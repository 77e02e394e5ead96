use std::{future::Future, time::Duration};

use super::Leases;
use crate::{backend::Owner, error::BackendError, key::Name};

/// Count-down latches: set once, counted down by many, waited for by many.
///
/// Beside [`Leases`], and not part of it: a latch counts, and a count needs one place that has it. A lock over a
/// majority of servers is made of leases alone, for a latch that is counted down at different majorities never
/// ends.
///
/// A latch ends with its time, whether it was counted down or not. Counted down to zero, it stands for that
/// time once more, so that who looks late sees zero.
///
/// # Errors
///
/// As those of [`Leases`]; [`BackendErrorKind::Foreign`](crate::error::BackendErrorKind::Foreign) where what
/// stands under the name is not a latch, and it is left alone.
///
/// # Cancel safety
///
/// As that of [`Leases`].
pub trait Latches: Leases {
    /// Sets a latch to `count`, for `ttl`, unless one stands. Says whether one stands that was set under this
    /// `id`: so a setting that is sent twice is recognised.
    fn set_latch(
        &self,
        name: &Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> impl Future<Output = Result<bool, BackendError>> + Send;

    /// Counts a latch down by so many, to zero at most, and says what is left; none, where no latch stands.
    ///
    /// What was counted under an `id` is not counted again. Who listens to the name is told of zero, and not
    /// of the steps before.
    fn count_down(
        &self,
        name: &Name,
        id: Owner,
        by: u32,
    ) -> impl Future<Output = Result<Option<Countdown>, BackendError>> + Send;

    /// What is left of a latch; none, where no latch stands.
    fn latch(
        &self,
        name: &Name,
    ) -> impl Future<Output = Result<Option<Countdown>, BackendError>> + Send;

    /// Removes a latch, or whatever stands in its place, and wakes who waits. Says whether something was there.
    fn clear_latch(&self, name: &Name) -> impl Future<Output = Result<bool, BackendError>> + Send;
}

/// How far a latch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Countdown {
    /// What is left; zero, if it is done.
    pub left: u32,
    /// After how long nothing of it stands any more.
    pub remaining: Duration,
}
