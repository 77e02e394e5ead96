//! The faults, and what each of them moves.

use super::prometheus::Series;

/// A fault, in the order in which they are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    OriginFails,
    LockStuck,
    HotKeyExpires,
    RedisAway,
}

/// The series of a panel that a fault moves. They are zero while all is well.
pub struct Moved {
    /// The title of the panel.
    pub title: &'static str,
    /// A label of the series. All series count if there is none.
    pub label: Option<(&'static str, &'static str)>,
}

impl Moved {
    pub fn is_of(&self, series: &Series) -> bool {
        let has = |(name, value)| series.labels.get(name).is_some_and(|label| label == value);
        self.label.is_none_or(has)
    }
}

impl Fault {
    pub const ALL: [Self; 4] =
        [Self::OriginFails, Self::LockStuck, Self::HotKeyExpires, Self::RedisAway];

    pub fn words(self) -> &'static str {
        match self {
            Self::OriginFails => "the origin fails",
            Self::LockStuck => "a lock is stuck",
            Self::HotKeyExpires => "a hot key expires",
            Self::RedisAway => "Redis is away",
        }
    }

    pub fn panel(self) -> Moved {
        let (title, label) = match self {
            Self::OriginFails => ("Loads that failed, or did not begin", ("cache", "products")),
            Self::LockStuck => ("Acquisitions in vain", ("locks", "shop")),
            Self::HotKeyExpires => ("Callers that waited for a load", ("cache", "prices")),
            Self::RedisAway => ("Backends that do not answer", ("cache", "products")),
        };
        Moved { title, label: Some(label) }
    }

    /// Returns the alerts whose queries hold during the fault.
    pub fn alerts(self) -> &'static [&'static str] {
        match self {
            Self::OriginFails => &["BellwetherLoadsFail"],
            Self::LockStuck => &["BellwetherLockStuck", "BellwetherLockWaitsLong"],
            Self::HotKeyExpires => &[],
            Self::RedisAway => &[
                "BellwetherBackendAway",
                "BellwetherDegraded",
                "BellwetherLocalTierNotTrusted",
                "BellwetherLocksFail",
            ],
        }
    }
}
