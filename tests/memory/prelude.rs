//! What most of these tests use.

pub use bellwether::{
    BoxError, Cache, Error, ErrorKind, Key, Locks, MemoryBackend,
    backend::{Claim, Leases, Mode, Store},
    cache::{AfterFailure, Builder, EarlyRefresh, Lead, Loaded, Source},
    key::{Family, Name, Namespace},
};
pub use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};
pub use testkit::faulty::{Fault, Faulty, Op};
pub use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
