//! The backend without its type, so that `Cache<V>` and `Locks` need no parameter for it.

use std::{sync::Arc, time::Duration};

use futures_util::{FutureExt, future::BoxFuture};

use super::{
    Acquired, AcquiredAll, Changes, Claimed, Committed, Countdown, Failure, Latches, Leases,
    Renewal, Store,
};
use crate::{
    backend::{Claim, Entry, Grant, Mode, Occupied, Owner},
    error::BackendError,
    key::Name,
};

type Answer<'a, T> = BoxFuture<'a, Result<T, BackendError>>;

pub(crate) trait DynLeases: Send + Sync + 'static {
    fn acquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Acquired>;
    fn acquire_all<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, AcquiredAll>;
    fn renew<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, Vec<Renewal>>;
    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, bool>;
    fn pass<'a>(&'a self, from: &'a Claim, to: &'a Claim) -> Answer<'a, Option<Grant>>;
    fn holder<'a>(&'a self, name: &'a Name, mode: Mode) -> Answer<'a, Option<Occupied>>;
    fn clear<'a>(&'a self, name: &'a Name, mode: Mode) -> Answer<'a, bool>;
    fn changes<'a>(&'a self, name: &'a Name) -> Answer<'a, Changes>;
    fn changes_along(&self, name: &Name) -> Option<Changes>;
    fn time_limit(&self) -> Option<Duration>;
    fn is_shared(&self) -> bool;
    fn shard(&self, name: &Name) -> usize;
    fn apart(&self) -> Option<Arc<dyn DynLeases>>;
}

impl<B: Leases> DynLeases for B {
    fn acquire<'a>(&'a self, claim: &'a Claim) -> Answer<'a, Acquired> {
        Leases::acquire(self, claim).boxed()
    }

    fn acquire_all<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, AcquiredAll> {
        Leases::acquire_all(self, claims).boxed()
    }

    fn renew<'a>(&'a self, claims: &'a [Claim]) -> Answer<'a, Vec<Renewal>> {
        Leases::renew(self, claims).boxed()
    }

    fn release<'a>(&'a self, claim: &'a Claim) -> Answer<'a, bool> {
        Leases::release(self, claim).boxed()
    }

    fn pass<'a>(&'a self, from: &'a Claim, to: &'a Claim) -> Answer<'a, Option<Grant>> {
        Leases::pass(self, from, to).boxed()
    }

    fn holder<'a>(&'a self, name: &'a Name, mode: Mode) -> Answer<'a, Option<Occupied>> {
        Leases::holder(self, name, mode).boxed()
    }

    fn clear<'a>(&'a self, name: &'a Name, mode: Mode) -> Answer<'a, bool> {
        Leases::clear(self, name, mode).boxed()
    }

    fn changes<'a>(&'a self, name: &'a Name) -> Answer<'a, Changes> {
        Leases::changes(self, name).boxed()
    }

    fn changes_along(&self, name: &Name) -> Option<Changes> {
        Leases::changes_along(self, name)
    }

    fn time_limit(&self) -> Option<Duration> {
        Leases::time_limit(self)
    }

    fn is_shared(&self) -> bool {
        Leases::is_shared(self)
    }

    fn shard(&self, name: &Name) -> usize {
        Leases::shard(self, name)
    }

    fn apart(&self) -> Option<Arc<dyn DynLeases>> {
        Leases::apart(self).map(|apart| Arc::new(apart) as _)
    }
}

pub(crate) trait DynStore: DynLeases {
    fn get<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<Entry>>;
    fn claim<'a>(&'a self, claim: &'a Claim, seen: u64) -> Answer<'a, Claimed>;
    fn commit<'a>(
        &'a self,
        claim: &'a Claim,
        grant: &'a Grant,
        entry: &'a Entry,
        ttl: Option<Duration>,
    ) -> Answer<'a, Committed>;
    fn fail<'a>(&'a self, claim: &'a Claim, failure: &'a Failure) -> Answer<'a, bool>;
    fn put<'a>(
        &'a self,
        name: &'a Name,
        entry: &'a Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> Answer<'a, u64>;
    fn invalidate<'a>(&'a self, name: &'a Name, fence_life: Duration) -> Answer<'a, u64>;
}

impl<B: Store> DynStore for B {
    fn get<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<Entry>> {
        Store::get(self, name).boxed()
    }

    fn claim<'a>(&'a self, claim: &'a Claim, seen: u64) -> Answer<'a, Claimed> {
        Store::claim(self, claim, seen).boxed()
    }

    fn commit<'a>(
        &'a self,
        claim: &'a Claim,
        grant: &'a Grant,
        entry: &'a Entry,
        ttl: Option<Duration>,
    ) -> Answer<'a, Committed> {
        Store::commit(self, claim, grant, entry, ttl).boxed()
    }

    fn fail<'a>(&'a self, claim: &'a Claim, failure: &'a Failure) -> Answer<'a, bool> {
        Store::fail(self, claim, failure).boxed()
    }

    fn put<'a>(
        &'a self,
        name: &'a Name,
        entry: &'a Entry,
        ttl: Duration,
        fence_life: Duration,
    ) -> Answer<'a, u64> {
        Store::put(self, name, entry, ttl, fence_life).boxed()
    }

    fn invalidate<'a>(&'a self, name: &'a Name, fence_life: Duration) -> Answer<'a, u64> {
        Store::invalidate(self, name, fence_life).boxed()
    }
}

pub(crate) trait DynLatches: Send + Sync + 'static {
    fn set_latch<'a>(
        &'a self,
        name: &'a Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Answer<'a, bool>;
    fn count_down<'a>(
        &'a self,
        name: &'a Name,
        id: Owner,
        by: u32,
    ) -> Answer<'a, Option<Countdown>>;
    fn latch<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<Countdown>>;
    fn clear_latch<'a>(&'a self, name: &'a Name) -> Answer<'a, bool>;
}

impl<B: Latches> DynLatches for B {
    fn set_latch<'a>(
        &'a self,
        name: &'a Name,
        id: Owner,
        count: u32,
        ttl: Duration,
    ) -> Answer<'a, bool> {
        Latches::set_latch(self, name, id, count, ttl).boxed()
    }

    fn count_down<'a>(
        &'a self,
        name: &'a Name,
        id: Owner,
        by: u32,
    ) -> Answer<'a, Option<Countdown>> {
        Latches::count_down(self, name, id, by).boxed()
    }

    fn latch<'a>(&'a self, name: &'a Name) -> Answer<'a, Option<Countdown>> {
        Latches::latch(self, name).boxed()
    }

    fn clear_latch<'a>(&'a self, name: &'a Name) -> Answer<'a, bool> {
        Latches::clear_latch(self, name).boxed()
    }
}
