//! The backend without its type, so that `Cache<V>` and `Locks` need no parameter for it, and
//! bounds on the time that it has for an answer.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::{sync::watch, time::timeout};

use super::{
    Acquired, Changes, Claim, Grant, Holding, Kept, Leases, Marked, Mode, Occupied, Renewal,
    SemaphoreKind, Tick,
};
use crate::{
    error::BackendError,
    key::{Name, Namespace},
};

/// Declares a trait with the methods of a trait of backends, and implements it for all of these.
/// Each async method returns a future in a box.
macro_rules! erased {
    (
        trait $erased:ident $(: $bound:path)?; for $backend:ident;
        $(async fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*
        $(fn $sync:ident($($sync_arg:ident: $sync_type:ty),*) -> $sync_answer:ty;)*
    ) => {
        pub trait $erased: $($bound +)? Send + Sync + 'static {
            $(fn $method<'a>(
                &'a self,
                $($arg: $type),*
            ) -> BoxFuture<'a, Result<$answer, BackendError>>;)*
            $(fn $sync(&self, $($sync_arg: $sync_type),*) -> $sync_answer;)*
        }

        impl<B: $backend> $erased for B {
            $(fn $method<'a>(
                &'a self,
                $($arg: $type),*
            ) -> BoxFuture<'a, Result<$answer, BackendError>> {
                $backend::$method(self, $($arg),*).boxed()
            })*
            $(fn $sync(&self, $($sync_arg: $sync_type),*) -> $sync_answer {
                $backend::$sync(self, $($sync_arg),*)
            })*
        }
    };
}

pub(super) use erased;

erased! {
    trait DynLeases; for Leases;
    async fn acquire(claim: &'a Claim) -> Acquired;
    async fn renew(claims: &'a [Claim]) -> Vec<Renewal>;
    async fn keep(claims: &'a [Claim], life: Duration) -> Kept;
    async fn release(claim: &'a Claim) -> bool;
    async fn pass(from: &'a Claim, to: &'a Claim) -> Option<Grant>;
    async fn pass_with_fence(from: &'a Claim, to: &'a Claim, fence: u64) -> Option<Grant>;
    async fn mark(claim: &'a Claim, tick: Tick) -> Marked;
    async fn holder(name: &'a Name, mode: Mode) -> Option<Occupied>;
    async fn holder_label(name: &'a Name, mode: Mode) -> Option<String>;
    async fn inspect(name: &'a Name, kind: SemaphoreKind) -> Holding;
    async fn lock_names(namespace: &'a Namespace) -> Vec<(Name, SemaphoreKind)>;
    async fn answer(name: &'a Name, text: &'a str) -> ();
    async fn clear(name: &'a Name, mode: Mode) -> bool;
    async fn changes(name: &'a Name) -> Changes;
    fn listen(name: &Name, claim: Option<&Claim>) -> Changes;
    fn time_limit() -> Option<Duration>;
    fn is_shared() -> bool;
    fn shard(name: &Name) -> usize;
    fn new_connections() -> Option<watch::Receiver<()>>;
}

/// A backend without its type.
pub struct Erased<T: ?Sized>(pub(crate) Arc<T>);

pub(crate) type ErasedLeases = Erased<dyn DynLeases>;

/// The limit for a backend that does not bound its own operations.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(1);

/// Waits for the answer to an operation; the outcome is unknown if the limit passes first.
pub(crate) async fn in_time<T>(
    limit: Duration,
    operation: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    timeout(limit, operation).await.unwrap_or_else(|elapsed| Err(BackendError::timed_out(elapsed)))
}

/// Waits for the answer to an operation that has no limit of its own.
pub(crate) async fn answered<T>(
    backend: &dyn DynLeases,
    operation: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    let limit = backend.time_limit().unwrap_or_default().max(ANSWER_LIMIT);
    answered_by(backend, limit, operation).await
}

/// Like [`in_time`], without a timer where the backend keeps the limit by itself.
pub(crate) async fn answered_by<T>(
    backend: &dyn DynLeases,
    limit: Duration,
    operation: impl Future<Output = Result<T, BackendError>>,
) -> Result<T, BackendError> {
    match backend.time_limit() {
        Some(own) if own <= limit => operation.await,
        _ => in_time(limit, operation).await,
    }
}
