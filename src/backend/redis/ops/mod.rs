//! The backend traits: each operation is one call of a script, and reads its reply.

mod acquire;
mod changes;
mod entries;
mod latches;
mod leases;
mod ready;
mod replies;
mod store;
mod tier;

use std::time::Duration;

#[cfg(any(fuzzing, test))]
pub(super) use self::replies::check_any_reply;
pub(super) use self::{entries::AgedNamespaces, tier::Heartbeat};

/// The bytes of a newer entry that a reply has at most. They take 5 ms at 100 Mbit/s. The caller
/// reads a larger entry by itself.
const PART: usize = 64 << 10;

/// Returns whole milliseconds, at least one, because Redis refuses a time of zero.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).clamp(1, 1 << 52)
}
