//! The notifications of a backend for a local tier, which keeps copies of entries in its process.

use tokio::time::Instant;

/// The number of channels on which a server notifies local tiers of changes, for each namespace.
/// Each name has one channel.
pub(crate) const STRIPES: usize = 4096;

/// A local tier.
///
/// A backend calls these methods in the order in which things happened at the server, and before it
/// reads what happened next.
pub trait Tap: Send + Sync + 'static {
    /// The entry of the name with this prefix was changed under this fence.
    fn changed(&self, prefix: &str, fence: u64);

    /// Changes may have been missed.
    fn lost(&self);

    /// The tier has received all changes that the server made before this moment.
    fn complete_until(&self, sent: Instant);
}

/// Returns the stripe of a name by its prefix, which is the same in all processes and versions: the
/// hash FNV-1a of G. Fowler, L. C. Noll and K.-P. Vo, folded.
pub(crate) fn stripe_of(prefix: &str) -> usize {
    let hash = prefix.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    (hash ^ (hash >> 32)) as usize % STRIPES
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Another version of this crate must find the same channels.
    #[test]
    fn the_stripe_of_a_name_never_changes() {
        assert_eq!(stripe_of("bellwether:c:{stock:42}:"), 1974);
        let stripes: HashSet<_> =
            (0..4096).map(|number| stripe_of(&format!("n:c:{{{number}}}:"))).collect();
        // As many as a random choice reaches: a part of 1 - 1/e.
        assert!((2450..2750).contains(&stripes.len()), "{}", stripes.len());
    }
}
