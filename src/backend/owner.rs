use std::{fmt, str::FromStr, sync::LazyLock};

use uuid::Uuid;

/// The id of a holder: 64 random bits of the process, then 62 random bits of the acquisition.
///
/// Each acquisition has a fresh owner, and a release without an answer ends its use. So a late
/// release cannot end a later grant. A backend finds the process of an owner by its first half: the
/// scripts read the first 16 digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(Uuid);

impl Owner {
    /// Creates an owner that no other acquisition has.
    pub fn fresh() -> Self {
        let low = Uuid::new_v4().as_u64_pair().1;
        Self(Uuid::from_u64_pair(*PROCESS, low))
    }

    /// Returns its 32 hexadecimal digits.
    #[cfg_attr(not(feature = "redis"), allow(dead_code))]
    pub(crate) fn digits(self) -> [u8; 32] {
        let mut digits = [0; 32];
        self.0.as_simple().encode_lower(&mut digits);
        digits
    }

    /// Returns the half that all owners of one process share.
    pub(crate) fn process_half(self) -> u64 {
        self.0.as_u64_pair().0
    }

    /// Returns the half that all owners of this process share, as text.
    pub(crate) fn process() -> String {
        format!("{:016x}", *PROCESS)
    }
}

/// The id of this process. Each half of a version 4 UUID has fixed bits, and their XOR has none.
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
