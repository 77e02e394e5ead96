use std::{fmt, time::Duration};

use uuid::Uuid;

use crate::key::Name;

/// Who holds a lease: 122 random bits, made anew for each acquisition.
///
/// A token is never used for two acquisitions, so a late release of the first cannot end the second.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token(Uuid);

impl Token {
    /// A token that nobody else has.
    pub fn fresh() -> Self {
        Self(Uuid::new_v4())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_simple().fmt(f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({self})")
    }
}

/// How a lease is held, and beside whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By one holder at a time.
    Exclusive,
}

/// What is asked of [`Leases`](crate::backend::Leases): the right to act on a name for a limited time.
///
/// A claim is sent as often as needed: it carries its token, so that a backend recognises the second
/// sending of a claim that it has granted already.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// What the lease is for.
    pub name: Name,
    /// Who will hold it.
    pub holder: Token,
    /// How it will be held.
    pub mode: Mode,
    /// How long the lease lasts unless it is renewed.
    pub lease: Duration,
    /// How long the last fence of the name is remembered after it was granted or renewed.
    pub fence_life: Duration,
}

impl Claim {
    /// A claim by a fresh [`Token`].
    pub fn new(name: Name, mode: Mode, lease: Duration, fence_life: Duration) -> Self {
        Self { name, holder: Token::fresh(), mode, lease, fence_life }
    }
}

/// Proof that a claim was granted. It is not `Clone`: one grant, one commit.
#[derive(Debug, PartialEq, Eq)]
pub struct Grant {
    fence: u64,
}

impl Grant {
    /// A grant with its fence, as a backend hands it out.
    pub fn new(fence: u64) -> Self {
        Self { fence }
    }

    /// A number that is greater than that of every earlier grant of this name.
    pub fn fence(&self) -> u64 {
        self.fence
    }
}

/// Who stands in the way of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Occupied {
    /// The fence of the one who holds the lease.
    pub fence: u64,
    /// After how long the lease ends if it is not renewed.
    pub remaining: Duration,
}
