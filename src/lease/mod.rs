//! Leases: the right to act on a name for a limited time, granted by a
//! [`backend`](crate::backend). The files:
//!
//! - `engine`: what the leases of one `Cache` or one `Locks` share.
//! - `acquire`: ask, wait, and ask again; with `acquisition` (a claim and its undo), and `retry`.
//! - `queue`: the callers of this process for one lease. `keeper`: their entries at the backend.
//! - `guard`, `record`, `renewals`: a lease that is held, renewed, passed on, or lost.
//! - `release`: releases that must happen.
//!
//! # What a lease promises
//!
//! A holder's deadline passes before the server lets another holder in, while its process runs and
//! the server keeps its data and its clock. It does not hold after a failover, a restart without
//! data, an eviction, a forced unlock, or in a suspended process. There the holder learns of the
//! loss when it next reaches the server, and only the fence protects.

mod acquire;
mod acquisition;
mod engine;
mod guard;
mod keeper;
mod queue;
mod record;
mod release;
mod renewals;
mod retry;

pub(crate) use self::{
    acquire::AcquireTerms,
    acquisition::{Acquisition, Waiting, Woken},
    engine::Engine,
    guard::LeaseGuard,
    record::{Granted, run_until},
    release::{Janitor, Release},
    retry::try_limit,
};
pub use self::{
    record::Lease,
    retry::{Retry, RetryStrategy},
};

use std::time::Duration;

/// How a lease is kept while it is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upkeep {
    /// How often the lease is renewed; never, if there is none.
    pub(crate) renew_every: Option<Duration>,
    /// How long it may be held in all.
    pub(crate) max_hold: Duration,
}

/// Returns the part of a lease that its holder trusts. The clocks of two machines run apart by less
/// than a hundredth, and a timer fires up to 2 ms late.
pub(crate) fn trusted(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + Duration::from_millis(2))
}
