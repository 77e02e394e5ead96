use std::time::Duration;

/// The round trip to a server, as far as its backend knows it.
///
/// The order is that in which servers can be expected to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RoundTrip {
    /// The backend does not measure it.
    Untold,
    /// It took so long when it was measured last.
    Measured(Duration),
    /// No connection was made yet, and the first request has to wait for one.
    Unmeasured,
}
