//! The backend without its type, so that `Cache<V>` and `Locks` need no parameter for it.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};

use super::{
    Acquired, AcquiredAll, BackOff, Changes, Claimed, Committed, Countdown, Failure, Kept, Latches,
    Leases, Renewal, Store, Windows,
};
use crate::{
    backend::{Announcement, Claim, Entry, Grant, Mode, Occupied, Owner},
    error::BackendError,
    key::Name,
};

/// Declares a trait with the methods of a trait of backends, and implements it for all of these.
/// Each async method returns a future in a box.
macro_rules! erased {
    (
        trait $erased:ident: $($bound:path),+; for $backend:ident;
        $(async fn $method:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*
        $(fn $sync:ident($($sync_arg:ident: $sync_type:ty),*) -> $sync_answer:ty;)*
    ) => {
        pub trait $erased: $($bound +)+ Send + Sync + 'static {
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

erased! {
    trait DynLeases: Apart; for Leases;
    async fn acquire(claim: &'a Claim) -> Acquired;
    async fn acquire_all(claims: &'a [Claim]) -> AcquiredAll;
    async fn renew(claims: &'a [Claim]) -> Vec<Renewal>;
    async fn keep(claims: &'a [Claim]) -> Kept;
    async fn keep_each(queues: &'a [Vec<Claim>]) -> Vec<Result<Kept, BackendError>>;
    async fn release(claim: &'a Claim) -> bool;
    async fn pass(from: &'a Claim, to: &'a Claim) -> Option<Grant>;
    async fn holder(name: &'a Name, mode: Mode) -> Option<Occupied>;
    async fn introduce(name: &'a Name, label: &'a str) -> ();
    async fn holder_label(name: &'a Name, mode: Mode) -> Option<String>;
    async fn clear(name: &'a Name, mode: Mode) -> bool;
    async fn changes(name: &'a Name) -> Changes;
    async fn changes_for(claim: &'a Claim) -> Changes;
    fn missed_pushes(claim: &Claim) -> u64;
    fn changes_since(claim: &Claim, missed: u64) -> Option<Changes>;
    fn time_limit() -> Option<Duration>;
    fn is_shared() -> bool;
    fn shard(name: &Name) -> usize;
}

erased! {
    trait DynStore: DynLeases; for Store;
    async fn get(name: &'a Name) -> Option<Entry>;
    async fn get_aged(name: &'a Name) -> Option<Entry>;
    async fn fetch(name: &'a Name, announced: &'a Announcement) -> Option<Entry>;
    async fn claim(claim: &'a Claim, seen: u64) -> Claimed;
    async fn commit(
        claim: &'a Claim,
        grant: &'a Grant,
        entry: &'a Entry,
        ttl: Option<Duration>
    ) -> Committed;
    async fn commit_unchanged(
        claim: &'a Claim,
        grant: &'a Grant,
        seen: u64,
        entry: &'a Entry
    ) -> Committed;
    async fn fail(
        claim: &'a Claim,
        failure: &'a Failure,
        back_off: Option<BackOff>
    ) -> bool;
    async fn put(name: &'a Name, entry: &'a Entry, ttl: Duration, fence_life: Duration) -> u64;
    async fn touch(name: &'a Name, windows: Windows, fence_life: Duration) -> Option<u64>;
    async fn expire(name: &'a Name, fence_life: Duration) -> u64;
    async fn supersede(name: &'a Name, fence_life: Duration) -> u64;
    async fn invalidate(name: &'a Name, fence_life: Duration) -> u64;
}

erased! {
    trait DynLatches: Send; for Latches;
    async fn set_latch(name: &'a Name, id: Owner, count: u32, ttl: Duration) -> bool;
    async fn count_down(name: &'a Name, id: Owner, by: u32) -> Option<Countdown>;
    async fn latch(name: &'a Name) -> Option<Countdown>;
    async fn clear_latch(name: &'a Name) -> bool;
}

/// [`Leases::apart`] without the type.
pub trait Apart {
    fn apart(&self) -> Option<Arc<dyn DynLeases>>;
}

impl<B: Leases> Apart for B {
    fn apart(&self) -> Option<Arc<dyn DynLeases>> {
        Leases::apart(self).map(|apart| Arc::new(apart) as _)
    }
}

/// A backend without its type.
pub struct Erased<T: ?Sized>(pub(crate) Arc<T>);

pub(crate) type ErasedLeases = Erased<dyn DynLeases>;
pub(crate) type ErasedStore = Erased<dyn DynStore>;
pub(crate) type ErasedLatches = Erased<dyn DynLatches>;
