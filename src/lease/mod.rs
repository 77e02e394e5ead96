//! Leases: the right to act on a name for a limited time, granted by a
//! [`backend`](crate::backend). The files:
//!
//! | file | holds |
//! |---|---|
//! | `engine` | the parts that the leases of one `Cache` or one `Locks` share |
//! | `acquire` | the loop of an acquisition: send the claim, wait, and send the claim again |
//! | `acquisition` | one claim on its way to a lease, and its undo |
//! | `request_limit` | how many acquisitions send a request to a shard at once |
//! | `waiting` | the wait of one caller, with the times of its `retry_strategy` |
//! | `local_queue` | the callers of this process that want the same lease |
//! | `keeper` | the queue entries of this process at the backend |
//! | `held` | a lease that is held |
//! | `guard` | the end of a held lease: a release, a pass or a conversion |
//! | `renewals` | the task that renews the held leases |
//! | `release` | releases, which must happen whatever becomes of their callers |
//! | `holders` | pushes about leases that no caller waits for |
//!
//! # What a lease promises
//!
//! A holder's deadline passes before the server lets another holder in. This holds while the
//! process of the holder runs, and the server keeps its data and its clock. It does not hold after
//! a failover, a restart without data, an eviction or a forced unlock, nor in a suspended process.
//! In these cases, the holder learns of the loss when it next reaches the server, and only the
//! fence protects.
//!
//! A task renews a lease for its guard. Before there is a guard, only a caller that waits for
//! further leases renews its lease, and only while the caller is polled. So the lease of a caller
//! that is not polled ends by itself.

mod acquire;
mod acquisition;
mod engine;
mod guard;
mod held;
mod holders;
mod keeper;
mod local_queue;
mod release;
mod renewals;
mod request_limit;
mod retry_strategy;
mod waiting;

pub(crate) use self::{
    acquire::AcquireTerms,
    acquisition::{Acquisition, Granted},
    engine::Engine,
    guard::{Conversion, LeaseGuard},
    held::run_until,
    release::{Janitor, Release},
    retry_strategy::try_limit,
    waiting::{Waiting, Woken},
};
pub use self::{
    held::Lease,
    retry_strategy::{Retry, RetryStrategy},
};

use std::time::Duration;

/// How a lease is kept while it is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upkeep {
    /// How often the lease is renewed. `None` for a fixed lease, which is never renewed.
    pub(crate) renew_every: Option<Duration>,
    /// How long the lease may be held in all.
    pub(crate) max_hold: Duration,
}

/// Returns the part of a lease that its holder trusts. The clocks of two machines run apart by less
/// than a hundredth, and a timer fires up to 2 ms late.
pub(crate) fn trusted(lease: Duration) -> Duration {
    lease.saturating_sub(lease / 100 + Duration::from_millis(2))
}
