//! The parts that most of these tests use.

pub use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

pub use bellwether::{
    BoxError, Cache, Error, ErrorKind, Key, Locks, RedisBackend,
    backend::{
        Change, Claim, Claimed, Committed, Edit, Entry, Leases, Mode, RedisBackendBuilder, Renewal,
        Store,
    },
    cache::{LocalTier, Source},
    error::{BackendError, BackendErrorKind},
    http_cache,
    key::{Family, Name, Namespace},
    lease::Retry,
    lock::MutexGuard,
};
pub use bytes::Bytes;
pub use futures_util::future::join_all;
use testkit::Call;
pub use testkit::{
    Cluster, LIMIT, Process, Raw, RedisServer, comes_true, eventually,
    leases::{begun, begun_over, granted, held, next, value},
    open,
    proxy::{Fault, Proxy, PushFault},
};
pub use tokio::{
    sync::Notify,
    task::{JoinHandle, JoinSet},
    time::{Instant, sleep, timeout},
};

pub const MS: Duration = Duration::from_millis(1);
/// A lease that no test outlasts.
pub const LEASE: Duration = Duration::from_secs(60);
pub const FENCE_LIFE: Duration = Duration::from_secs(600);
pub const TTL: Duration = Duration::from_secs(120);

/// Returns the name of a cache entry in the namespace `t`.
pub fn name(key: &str) -> Name {
    name_in(Family::Cache, key)
}

pub fn name_in(family: Family, key: &str) -> Name {
    Name::new(&Namespace::new("t").unwrap(), family, &Key::from(key), 512).unwrap()
}

pub fn claim(name: &Name) -> Claim {
    Claim::new(name.clone(), Mode::Exclusive, LEASE, FENCE_LIFE)
}

/// Returns a claim of a mutex.
pub fn mutex_claim(key: &str) -> Claim {
    claim(&name_in(Family::Lock, key))
}

/// Returns the commands of operations, without the commands of connections.
pub fn commands(calls: Vec<Call>) -> Vec<String> {
    let others = ["SCRIPT", "INFO", "ROLE", "CLIENT", "HELLO", "PING", "TIME"];
    let commands = calls.into_iter().map(|call| call.command);
    commands.filter(|command| !others.contains(&command.as_str())).collect()
}

/// Reads until the local tier has a copy: its channels must be confirmed first.
pub async fn warm<V>(cache: &Cache<V>, key: &str)
where
    V: Clone + Send + Sync + serde::Serialize + serde::de::DeserializeOwned + 'static,
{
    let kept = async || cache.get(key).await.is_ok() && cache.get_local(key).is_some();
    assert!(comes_true(LIMIT, kept).await, "no copy is kept");
}
