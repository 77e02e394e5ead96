//! What most of these tests use.

pub use bellwether::{
    BoxError, Cache, Error, ErrorKind, Key, Locks, MemoryBackend,
    backend::{Claim, Leases, Mode, Store},
    cache::{AfterFailure, Builder, EarlyRefresh, Lead, Loaded, Source},
    key::{Family, Name, Namespace},
};
pub use futures_util::future::{BoxFuture, FutureExt, join_all};
pub use std::{
    future::{Future, Pending, Ready, pending, ready},
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
    first(1, op, fault)
}

/// Returns a backend that gives the fault to so many of the first of these operations.
pub fn first(mut count: usize, op: Op, fault: Fault) -> Faulty {
    Faulty::new(move |asked| {
        let is_wrong = asked == op && count > 0;
        count -= usize::from(is_wrong);
        is_wrong.then_some(fault)
    })
}

/// Returns the kind of the error.
pub fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

/// Spawns a task in a box, so that what drives it is compiled once for each output.
pub fn spawn<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(work.boxed())
}

/// Returns the outputs of tasks.
pub async fn all<T>(tasks: impl IntoIterator<Item = JoinHandle<T>>) -> Vec<T> {
    join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

/// Returns a loader of this value.
pub fn value<V: Send + 'static>(
    value: V,
) -> impl FnOnce(Lead<V>) -> Ready<Result<V, BoxError>> + Send {
    |_| ready(Ok(value))
}

/// Returns a loader that takes a time.
pub fn after<V: Send + 'static>(
    takes: Duration,
    value: V,
) -> impl FnOnce(Lead<V>) -> BoxFuture<'static, Result<V, BoxError>> + Send {
    move |_| sleep(takes).map(|()| Ok(value)).boxed()
}

/// Returns a loader that fails.
pub fn fails<V: Send + 'static>(
    why: &'static str,
) -> impl FnOnce(Lead<V>) -> Ready<Result<V, BoxError>> + Send {
    move |_| ready(Err(why.into()))
}

/// Returns a loader that hangs.
pub fn hangs<V: Send + 'static>() -> impl FnOnce(Lead<V>) -> Pending<Result<V, BoxError>> + Send {
    |_| pending()
}

/// Returns the name of an entry of a cache.
pub fn entry_name(namespace: &str, key: &str) -> Name {
    Name::new(&Namespace::new(namespace).unwrap(), Family::Cache, &Key::from(key), 512).unwrap()
}

pub const MS: Duration = Duration::from_millis(1);
pub const SECOND: Duration = Duration::from_secs(1);
