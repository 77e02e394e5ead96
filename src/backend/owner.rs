use std::{fmt, str::FromStr, sync::LazyLock};

use uuid::Uuid;

/// Who holds a lease: 64 random bits of the process, and 64 that are made anew for each acquisition.
///
/// A token is never used for two acquisitions, nor again if it was given back without an answer, so a late release
/// cannot end what came after it. By its first half a backend finds the process that it stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(Uuid);

impl Owner {
    /// A token that nobody else has.
    pub fn fresh() -> Self {
        let low = Uuid::new_v4().as_u64_pair().1;
        Self(Uuid::from_u64_pair(*PROCESS, low))
    }

    /// The 32 hexadecimal digits that it is written with.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        self.0.as_simple().encode_lower(&mut digits);
        digits
    }

    /// The half of the token that all tokens of this process have.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn process() -> String {
        format!("{:016x}", *PROCESS)
    }
}

/// What tells this process from all others.
static PROCESS: LazyLock<u64> = LazyLock::new(|| {
    let (high, low) = Uuid::new_v4().as_u64_pair();
    high ^ low
});

impl FromStr for Owner {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Uuid::try_parse(text).map(Self)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_simple().fmt(f)
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}
