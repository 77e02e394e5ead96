//! The markers of locks with and without fencing tokens.

/// Marks a lock of [`Locks`](crate::Locks), whose guard has a
/// [fencing token](super::MutexGuard::fence).
#[derive(Clone, Copy, Debug)]
pub enum Fenced {}

/// Marks a lock of a [`Redlock`](crate::Redlock), whose servers have
/// [no fencing token in common](crate::Redlock#there-is-no-fencing-token).
///
/// # Examples
///
/// ```
/// use bellwether::{Error, Redlock, lock::{MutexGuard, Unfenced}};
///
/// async fn lock(redlock: &Redlock) -> Result<MutexGuard<Unfenced>, Error> {
///     redlock.mutex("nightly-report").lock().await
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Unfenced {}
