use std::time::Duration;

/// The holder of a lock, as any process sees it.
///
/// Returned by [`Mutex::holder`](super::Mutex::holder).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The label of its process, if it has [one](crate::Locks::owner).
    pub owner: Option<String>,
    /// How long it keeps the lock unless it renews its lease.
    pub expires_in: Duration,
    /// Its fencing token.
    pub fence: Option<u64>,
}
