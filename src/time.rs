//! Sums of time that cannot overflow.

use std::time::Duration;

use tokio::time::Instant;

/// The time `wait` after `start`; thirty years after it, if the clock cannot count that far.
pub(crate) fn after(start: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    start.checked_add(wait.min(FAR)).unwrap_or(start)
}
