//! The traits that say which methods a kind of lock, or a way to hold a lock, has.

use self::sealed::{HasMode, Sealed};

/// A kind of lock whose lease is renewed while its guard lives. It has the settings of the renewal,
/// such as [`Lock::renew_every`](super::Lock::renew_every).
///
/// Only kinds of this crate implement the trait.
pub trait Renewed: Sealed {}

/// A kind of lock whose holder any process can read, and whose leases any process can end by force:
/// [`Lock::holder`](super::Lock::holder) and [`Lock::force_unlock`](super::Lock::force_unlock).
///
/// Only kinds of this crate implement the trait.
pub trait Inspected: HasMode {}

/// A way to hold a lock that gives each hold a [fencing token](super::Guard::fence).
///
/// Only types of this crate implement the trait.
pub trait Fenced: Sealed {}

pub(super) mod sealed {
    use crate::backend::Mode;

    /// Other crates cannot name this trait, and so cannot implement the traits that require it.
    pub trait Sealed {}

    /// The mode by which the backend finds the holders.
    pub trait HasMode {
        /// Returns a mode of the holders.
        fn mode(&self) -> Mode;
    }
}
