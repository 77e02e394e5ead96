//! Leases: the right to act on a name for a limited time, granted by a
//! [`backend`](crate::backend). The files:
//!
//! - `engine`: what the leases of one `Cache` or one `Locks` share.
//! - `acquire`: ask, wait, and ask again, as its caller polls it; with `acquisition` (a claim and
//!   its undo), `asking` (how many ask at once), `waiting`, and `retry`.
//! - `local_queue`: the callers of this process for one lease. `keeper`: their entries at the
//!   backend.
//! - `held`: a lease that is held. `guard`: its end, by a release or a pass. `renewals`: the task
//!   that renews.
//! - `release`: releases that must happen. `holders`: what is pushed about leases that no caller
//!   waits for.
//!
//! # What a lease promises
//!
//! A holder's deadline passes before the server lets another holder in, while its process runs and
//! the server keeps its data and its clock. It does not hold after a failover, a restart without
//! data, an eviction, a forced unlock, or in a suspended process. There the holder learns of the
//! loss when it next reaches the server, and only the fence protects.
//!
//! A lease is renewed from the moment in which its caller has it. A caller whose future is not
//! polled is not waited for: its lease ends by itself.

mod acquire;
mod acquisition;
mod asking;
mod engine;
mod guard;
mod held;
mod holders;
mod keeper;
mod local_queue;
mod release;
mod renewals;
mod retry;
mod waiting;

pub(crate) use self::{
    acquire::AcquireTerms,
    acquisition::{Acquisition, Granted},
    engine::Engine,
    guard::LeaseGuard,
    held::run_until,
    release::{Janitor, Release},
    retry::try_limit,
    waiting::{Waiting, Woken},
};
pub use self::{
    held::Lease,
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
