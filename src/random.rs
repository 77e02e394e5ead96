//! All randomness of the crate: jitter, the ids of owners, and the hashers of maps. It is in one
//! module, so that a simulation can control it.

use std::time::Duration;

#[cfg(not(bellwether_sim))]
use hashbrown::DefaultHashBuilder as MapHasher;
use uuid::Uuid;

/// In a simulation, maps have no seed, so that each run of a schedule has the same order.
#[cfg(bellwether_sim)]
type MapHasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// The hasher of the maps whose keys come from callers. The hasher is seeded, so that no caller can
/// choose keys that collide.
pub(crate) type Hasher = MapHasher;

/// The maps and sets whose order can be seen from outside, such as in the order of commands.
pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, Hasher>;
pub(crate) type HashSet<T> = std::collections::HashSet<T, Hasher>;

/// Returns a random number from 0 to below 1.
pub(crate) fn fraction() -> f64 {
    fastrand::f64()
}

/// Returns a random number from 0 to below `end`, or 0 if that is 0.
pub(crate) fn below(end: u32) -> u32 {
    if end == 0 { 0 } else { fastrand::u32(..end) }
}

/// Returns a random number of 64 bits.
pub(crate) fn number() -> u64 {
    fastrand::u64(..)
}

/// Returns a random time from zero to below `longest`.
pub(crate) fn up_to(longest: Duration) -> Duration {
    longest.mul_f64(fraction())
}

/// Returns a random time from half of `longest` to below `longest`.
pub(crate) fn upper_half(longest: Duration) -> Duration {
    longest.mul_f64(0.5 + fraction() / 2.0)
}

/// Returns 128 bits that nobody can guess, of which six are fixed.
pub(crate) fn id() -> Uuid {
    #[cfg(bellwether_sim)]
    return uuid::Builder::from_random_bytes(fastrand::u128(..).to_le_bytes()).into_uuid();
    #[cfg(not(bellwether_sim))]
    Uuid::new_v4()
}
