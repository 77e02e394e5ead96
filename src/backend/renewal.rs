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
