//! The engine under every primitive: the right to act on a name for a limited time.
//!
//! A [`Claim`] asks for a lease, a [`Grant`] with its fence proves it. The engine tries, waits and tries
//! again (`pending`, `place`, `wait`), keeps what it holds alive and tells its holder when it is lost (`watchdog`,
//! `watch`), gives it back, and undoes every acquisition whose outcome it does not know (`engine`, `owed`). What it
//! hands out is a `Held` (`held`), which the locks and the caches wrap.
//!
//! # What a lease promises
//!
//! A holder's deadline fires before the server lets anyone else in, while its process runs and the server
//! keeps its data and its clock. Otherwise (failover, restart without its data, eviction, forced unlock, a
//! suspended process) the loss is told at the first contact, and only the fence protects.

mod engine;
mod finish;
mod held;
mod line;
mod owed;
mod pending;
mod place;
mod retry;
mod several;
mod wait;
mod watch;
mod watchdog;

pub use self::retry::{Retry, RetryStrategy};
pub(crate) use self::{
    engine::Engine,
    held::Held,
    pending::Pending,
    wait::{Turn, Waiting},
    watch::Watch,
};

use std::time::Duration;

use crate::backend::{CALL_LIFE, Claim, Grant, HANDOVER_LIFE, Mode, Occupied, Owner};

/// How a lease is kept while it is held.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Upkeep {
    /// How often the lease is renewed; never, if there is none.
    pub(crate) refresh: Option<Duration>,
    /// How long it may be held in all.
    pub(crate) max_hold: Duration,
}

/// How much of a lease its holder does not trust: the clocks of two machines run apart by less than a
/// hundredth, and a timer fires up to 2 ms late. (The drift of the Redlock description.)
pub(crate) fn drift(lease: Duration) -> Duration {
    lease / 100 + Duration::from_millis(2)
}
