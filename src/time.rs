//! Sums of time that cannot overflow.

use std::time::Duration;

use tokio::time::Instant;

/// Returns the time `wait` after `start`, at most thirty years after it.
pub(crate) fn after(start: Instant, wait: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(30 * 365 * 86_400);
    start.checked_add(wait.min(FAR)).unwrap_or(start)
}
