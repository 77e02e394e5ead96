//! A table of the auto traits of every public type and future, checked when this file compiles.
//!
//! A program relies on these: it spawns the futures, and keeps the values in its own types. A field
//! that is added inside the crate must not take a trait away, and a guard must not become `Clone`.

use std::{
    convert::Infallible,
    time::{Duration, SystemTime},
};

use axum::body::Body;
use bellwether::{
    BellwetherLayer, BoxError, Cache, Error, ErrorKind, Key, Locks, MemoryBackend, RedisBackend,
    Redlock,
    backend::{
        Change, Changes, Channels, Claim, Claimed, Committed, Countdown, Edit, Entry, EntryKind,
        Failure, Grant, Handover, Holding, Leases, Mode, Occupied, Owner, RedisBackendBuilder,
        Renewal, SemaphoreKind, Store, Tick, TickStep, Undecodable,
    },
    cache::{
        Builder, Codec, EntryState, Explanation, Json, Lead, Loaded, Postcard, Raw, Request,
        Source, Stats,
    },
    error::{BackendError, BackendErrorKind},
    key::{Family, Name, Namespace},
    layer::{Bellwether, CachedResponse, Http, ResponseBody, Values},
    lease::{Lease, Retry, RetryStrategy},
    lock::{
        Candidate, JobMark, Latch, ListedLock, Majority, Mutex, MutexGuard, PermitId, Permits,
        ReadGuard, ReentrantMutex, RwLock, Semaphore, SemaphorePermit, SeveralGuard, Term, Ticks,
        Turn, WriteGuard,
    },
    testing::{Answer, Fault, Faults, Faulty, Interceptor, Op, Operation},
};
use http::Response;
use tower::Service;

/// Compiles if all these types are `Send`, `Sync`, `Unpin` and `Clone`.
macro_rules! all_traits {
    ($($type:ty),+ $(,)?) => {
        const _: () = {
            const fn check<T: Send + Sync + Unpin + Clone>() {}
            $(check::<$type>();)+
        };
    };
}

/// Compiles if none of these types has the trait: the call would be ambiguous.
macro_rules! none_is {
    ($bound:ident: $($type:ty),+ $(,)?) => {
        const _: fn() = || {
            trait Lacks<A> {
                fn check() {}
            }
            impl<T> Lacks<()> for T {}
            struct Has;
            impl<T: $bound> Lacks<Has> for T {}
            $(<$type as Lacks<_>>::check();)+
        };
    };
}

/// Compiles if all these types have the same traits, but for `Clone`.
macro_rules! all_but_clone {
    ($($type:ty),+ $(,)?) => {
        const _: () = {
            const fn check<T: Send + Sync + Unpin>() {}
            $(check::<$type>();)+
        };
        none_is!(Clone: $($type),+);
    };
}

all_traits! {
    Locks, Redlock, Majority, Candidate, Ticks, Term, Mutex, ReentrantMutex, RwLock, ReadGuard,
    Semaphore, Permits, PermitId, Latch, Cache<String>, Lead<String>, Loaded<String>, Source, Stats,
    EntryState, Explanation, Json, Postcard, Raw, BellwetherLayer<Http>,
    BellwetherLayer<Values<String, fn(&String) -> Key>>, Bellwether<(), Http>, Http, CachedResponse,
    ListedLock, JobMark, Key, Name, Namespace, Family, Retry, Error, ErrorKind, BackendError,
    BackendErrorKind, MemoryBackend, RedisBackend, RedisBackendBuilder, Change, Channels, Claim,
    Countdown, Entry, EntryKind, Failure, Grant, Holding, SemaphoreKind, Handover, Mode, Occupied,
    Owner, Renewal, Tick, Undecodable, Faulty, Faults, Interceptor<RedisBackend, Faults>, Fault, Op,
    Operation,
}

all_but_clone! {
    Turn, Lease, MutexGuard, WriteGuard, SemaphorePermit, SeveralGuard, Builder<String>,
    Request<String>, Box<dyn Codec<String>>, Box<dyn RetryStrategy>, BoxError, Changes, Claimed,
    Committed, Answer,
}

// A body is neither `Sync` nor `Clone`.
const _: () = {
    const fn check<T: Send + Unpin>() {}
    check::<ResponseBody<Body>>();
};
none_is!(Sync: ResponseBody<Body>);
none_is!(Clone: ResponseBody<Body>);

const NO_TIME: Duration = Duration::ZERO;

/// A future must be `Send`, so that it can be spawned. `Sync` and `Unpin` are not promised.
fn send<F: Future + Send>(future: F) {
    drop(future);
}

macro_rules! futures {
    ($($this:ident: $type:ty => $($future:expr),+;)+) => {$(
        const _: fn($type) = |$this| {
            $(send($future);)+
        };
    )+};
}

futures! {
    locks: Locks => locks.shutdown(NO_TIME), locks.list(), locks.explain("k"), locks.answer_top();
    redlock: Redlock => redlock.ready(), redlock.shutdown(NO_TIME);
    locks: Locks => locks.once("k", SystemTime::now()).begin(), locks.several(["k"]).lock(),
        locks.several(["k"]).try_lock();
    ticks: (Ticks,) => { let (mut ticks,) = ticks; async move { ticks.next().await } };
    turn: Turn => turn.retry(NO_TIME, 1, || async { Ok::<_, Infallible>(()) }), turn.done();
    candidate: Candidate => candidate.run(|_| async {});
    term: Term => term.lost();
    mutex: Mutex => mutex.lock(), mutex.try_lock(), mutex.holder(), mutex.force_unlock();
    guard: MutexGuard => guard.lost(), guard.renew(), guard.unlock();
    holder: ReentrantMutex => holder.lock(), holder.try_lock();
    lock: RwLock => lock.read(), lock.try_read(), lock.write(), lock.try_write(), lock.holder(),
        lock.force_unlock();
    guard: ReadGuard => guard.lost(), guard.renew(), guard.clone().try_upgrade(), guard.unlock();
    guard: WriteGuard => guard.lost(), guard.renew(), guard.unlock();
    guard: WriteGuard => guard.downgrade();
    semaphore: Semaphore => semaphore.acquire(), semaphore.try_acquire(),
        semaphore.acquire_many(2), semaphore.try_acquire_many(2), semaphore.available(),
        semaphore.holder(), semaphore.force_unlock();
    permit: SemaphorePermit => permit.lost(), permit.renew(), permit.unlock();
    permits: Permits => permits.acquire(), permits.try_acquire();
    permit: (Permits, PermitId) => permit.0.renew(permit.1), permit.0.release(permit.1),
        permit.0.acquire_many(2), permit.0.available();
    guard: SeveralGuard => guard.lost(), guard.unlock();
    latch: Latch => latch.set(1), latch.count_down(), latch.count_down_by(1), latch.left(),
        latch.wait(), latch.clear();

    cache: Cache<String> => cache.get("k"), cache.insert("k", &String::new()),
        cache.invalidate("k"), cache.shutdown(NO_TIME),
        cache.explain("k"), cache.expire("k"), cache.request("k").touch(), cache.peek("k"),
        cache.request("k").refresh(|_| async { Ok::<_, Infallible>(String::new()) }),
        cache.get_or_load("k", |_| async { Ok::<_, Infallible>(String::new()) });
    request: Request<String> => request.load(|_| async { Ok::<_, Infallible>(String::new()) });
    lead: Lead<String> => lead.lost();

    redis: RedisBackend => redis.ping();
    changes: (Changes,) => { let (mut changes,) = changes; async move { changes.next().await } };
}

/// The traits promise `Send` of the futures of every backend.
#[allow(dead_code)]
fn futures_of_leases<B: Leases>(backend: &B, claim: &Claim, name: &Name) {
    let claims = std::slice::from_ref(claim);
    send(backend.acquire(claim));
    send(backend.renew(claims));
    send(backend.release(claim));
    send(backend.pass(claim, claim));
    send(backend.clear(name, Mode::Exclusive));
    send(backend.mark(claim, Tick { at: 1, step: TickStep::Done, kept: NO_TIME }));
    send(backend.changes(name));
}

#[allow(dead_code)]
fn futures_of_a_store<B: Store>(
    backend: &B,
    claim: &Claim,
    grant: &Grant,
    (entry, failure): (&Entry, &Failure),
) {
    let name = &claim.name;
    send(backend.get(name));
    send(backend.claim(claim, 0));
    send(backend.commit(claim, grant, entry, None));
    send(backend.fail(claim, failure, None));
    send(backend.edit(name, &Edit::Put(entry.clone(), NO_TIME), NO_TIME));
    send(backend.edit(name, &Edit::Invalidate, NO_TIME));
    send(backend.read(name, true));
    send(backend.edit(name, &Edit::Expire, NO_TIME));
}

#[allow(dead_code)]
fn futures_of_latches<B: Store>(backend: &B, name: &Name, id: Owner) {
    send(backend.set_latch(name, id, 1, NO_TIME));
    send(backend.count_down(name, id, 1));
    send(backend.latch(name));
    send(backend.clear_latch(name));
}

type Keyed = Values<String, fn(&String) -> Option<Key>>;

/// A service has futures that may be spawned if those of the inner service may be.
#[allow(dead_code)]
fn futures_of_a_layer<S>(mut service: Bellwether<S, Keyed>, request: String)
where
    S: Service<String, Response = String> + Clone + Send + 'static,
    S::Error: Into<BoxError> + 'static,
    S::Future: Send + 'static,
{
    send(service.call(request));
}

#[allow(dead_code)]
fn futures_of_an_http_layer<S, B>(mut service: Bellwether<S, Http>, request: http::Request<Body>)
where
    S: Service<http::Request<Body>, Response = Response<B>> + Clone + Send + 'static,
    S::Error: Send + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Error: Into<BoxError>> + Send + 'static,
{
    send(service.call(request));
}
