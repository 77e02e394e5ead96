//! Whether a lock has fencing tokens.

/// Marks a lock that is kept by one server, as those of [`Locks`](crate::Locks) are: its guard has a
/// [fencing token](super::MutexGuard::fence).
#[derive(Clone, Copy, Debug)]
pub enum Fenced {}

/// Marks a lock that is kept by a majority of servers, as those of a [`Redlock`](crate::Redlock) are: they have
/// [no fencing token in common](crate::Redlock#there-is-no-fence).
#[derive(Clone, Copy, Debug)]
pub enum Unfenced {}
