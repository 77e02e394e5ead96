use super::{Claim, Mode};

/// What a batch of renewals may cost its server, in leases that have one holder each. A script of
/// so many takes some hundred microseconds.
pub(crate) const RENEWAL_BATCH: usize = 100;

/// The number of permits that cost a server as much as one lease. It renews each permit by itself.
const PERMITS_A_LEASE: usize = 4;

/// The answer to [`Leases::renew`](super::Leases::renew) for one claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Renewal {
    /// The claim has the lease, which lasts its full time from now.
    Held,
    /// The claim does not have the lease.
    NotHeld,
    /// The outcome for this claim is unknown, though it is known for others of the same call.
    ///
    /// A majority of servers returns it for a lease about which too few servers answered. A cluster
    /// returns it for the leases of a node that does not answer.
    Unknown,
}

impl Renewal {
    /// Returns whether the claim has the lease for certain.
    pub fn is_held(self) -> bool {
        self == Self::Held
    }
}

impl From<bool> for Renewal {
    /// Converts the answer of a server that always knows it.
    fn from(held: bool) -> Self {
        if held { Self::Held } else { Self::NotHeld }
    }
}

/// Returns how many of these claims, from the first, one batch renews at a cost of at most
/// `budget`. It is at least one, as a batch cannot have a part of a claim.
pub(crate) fn renewed_together<'a>(
    claims: impl Iterator<Item = &'a Claim>,
    budget: usize,
) -> usize {
    let spent = claims.scan(0, |spent, claim| {
        *spent += cost(claim);
        Some(*spent)
    });
    spent.take_while(|spent| *spent <= budget).count().max(1)
}

/// What the renewal of a claim costs its server, in leases.
fn cost(claim: &Claim) -> usize {
    match claim.mode {
        Mode::Permit { count, .. } => 1 + count as usize / PERMITS_A_LEASE,
        Mode::Exclusive | Mode::Fair | Mode::Read | Mode::Write => 1,
    }
}
