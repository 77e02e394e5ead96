use std::time::Duration;

/// How a name backs off after failed loads: for a time, no claim begins a load of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackOff {
    /// For how long it still backs off.
    pub wait: Duration,
    /// The number of failed loads in a row.
    pub failures: u32,
}

/// A failure is remembered at least so long after its back-off.
const REMEMBERED: Duration = Duration::from_secs(1);

impl BackOff {
    /// Returns how long the failures are remembered after the wait is over: as long again, and at
    /// least 1 s. A load that fails in this time counts as one more in the row.
    pub fn remembered(&self) -> Duration {
        self.wait.max(REMEMBERED)
    }
}
