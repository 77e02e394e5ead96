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

/// Returns a backend that gives the fault to the first of these operations.
pub fn once(op: Op, fault: Fault) -> Faulty {
    let mut fault = Some(fault);
    Faulty::new(move |asked| if asked == op { fault.take() } else { None })
}

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
