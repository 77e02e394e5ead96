//! A table of the auto traits of every public type and future, checked when this file compiles.
//!
//! A program relies on these: it spawns the futures, and keeps the values in its own types. A field
//! that is added inside the crate must not take a trait away, and a guard must not become `Clone`.

use std::{
    convert::Infallible,
    marker::PhantomData,
    time::{Duration, SystemTime},
};

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
        Candidate, Latch, ListedLock, Majority, Mutex, MutexGuard, PermitId, Permits, ReadGuard,
        ReentrantMutex, RwLock, Semaphore, SemaphorePermit, SeveralGuard, Term, Ticks, Turn,
        WriteGuard,
    },
    testing::{Answer, Fault, Faults, Faulty, Interceptor, Op, Operation},
};

/// Evaluates to `true` if a type implements a trait. The inherent constant, which exists only with
/// the trait, shadows the constant of the fallback.
macro_rules! implements {
    ($type:ty: $($bound:tt)+) => {{
        #[allow(dead_code)]
        trait Fallback {
            const YES: bool = false;
        }
        impl<T: ?Sized> Fallback for T {}
        #[allow(dead_code)]
        struct Probe<T: ?Sized>(PhantomData<T>);
        #[allow(dead_code)]
        impl<T: ?Sized + $($bound)+> Probe<T> {
            const YES: bool = true;
        }
        Probe::<$type>::YES
    }};
}

macro_rules! answer {
    (yes) => {
        true
    };
    (no) => {
        false
    };
}

macro_rules! check {
    ($type:ty: $bound:ident, $expected:ident) => {
        assert!(
            implements!($type: $bound) == answer!($expected),
            concat!(stringify!($bound), " of ", stringify!($type), " differs from the table")
        );
    };
}

macro_rules! types {
    ($($type:ty => $send:ident $sync:ident $unpin:ident $clone:ident;)+) => {$(
        const _: () = {
            check!($type: Send, $send);
            check!($type: Sync, $sync);
            check!($type: Unpin, $unpin);
            check!($type: Clone, $clone);
        };
    )+};
}

types! {
    // Send, Sync, Unpin, Clone
    Locks => yes yes yes yes;
    Redlock => yes yes yes yes;
    Majority => yes yes yes yes;
    Candidate => yes yes yes yes;
    Ticks => yes yes yes yes;
    Turn => yes yes yes no;
    Term => yes yes yes yes;
    Lease => yes yes yes no;
    Mutex => yes yes yes yes;
    MutexGuard => yes yes yes no;
    ReentrantMutex => yes yes yes yes;
    RwLock => yes yes yes yes;
    ReadGuard => yes yes yes yes;
    WriteGuard => yes yes yes no;
    Semaphore => yes yes yes yes;
    SemaphorePermit => yes yes yes no;
    Permits => yes yes yes yes;
    PermitId => yes yes yes yes;
    SeveralGuard => yes yes yes no;
    Latch => yes yes yes yes;

    Cache<String> => yes yes yes yes;
    Builder<String> => yes yes yes no;
    Request<String> => yes yes yes no;
    Lead<String> => yes yes yes yes;
    Loaded<String> => yes yes yes yes;
    Source => yes yes yes yes;
    Stats => yes yes yes yes;
    EntryState => yes yes yes yes;
    Explanation => yes yes yes yes;
    Json => yes yes yes yes;
    Postcard => yes yes yes yes;
    Raw => yes yes yes yes;
    Box<dyn Codec<String>> => yes yes yes no;

    BellwetherLayer<Http> => yes yes yes yes;
    BellwetherLayer<Values<String, fn(&String) -> Key>> => yes yes yes yes;
    Bellwether<(), Http> => yes yes yes yes;
    Http => yes yes yes yes;
    CachedResponse => yes yes yes yes;
    ResponseBody => yes no yes no;

    ListedLock => yes yes yes yes;
    Key => yes yes yes yes;
    Name => yes yes yes yes;
    Namespace => yes yes yes yes;
    Family => yes yes yes yes;
    Retry => yes yes yes yes;
    Box<dyn RetryStrategy> => yes yes yes no;
    Error => yes yes yes yes;
    ErrorKind => yes yes yes yes;
    BoxError => yes yes yes no;
    BackendError => yes yes yes yes;
    BackendErrorKind => yes yes yes yes;

    MemoryBackend => yes yes yes yes;
    RedisBackend => yes yes yes yes;
    RedisBackendBuilder => yes yes yes yes;
    Change => yes yes yes yes;
    Changes => yes yes yes no;
    Channels => yes yes yes yes;
    Claim => yes yes yes yes;
    Claimed => yes yes yes no;
    Committed => yes yes yes no;
    Countdown => yes yes yes yes;
    Entry => yes yes yes yes;
    EntryKind => yes yes yes yes;
    Failure => yes yes yes yes;
    Holding => yes yes yes yes;
    SemaphoreKind => yes yes yes yes;
    Grant => yes yes yes no;
    Handover => yes yes yes yes;
    Mode => yes yes yes yes;
    Occupied => yes yes yes yes;
    Owner => yes yes yes yes;
    Renewal => yes yes yes yes;
    Tick => yes yes yes yes;
    Undecodable => yes yes yes yes;

    Faulty => yes yes yes yes;
    Faults => yes yes yes yes;
    Interceptor<RedisBackend, Faults> => yes yes yes yes;
    Fault => yes yes yes yes;
    Op => yes yes yes yes;
    Operation => yes yes yes yes;
    Answer => yes yes yes no;
}

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
    locks: Locks => locks.shutdown(NO_TIME), locks.list(), locks.explain("k");
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
    permit: SemaphorePermit => permit.lost(), permit.renew(), permit.release();
    permits: Permits => permits.acquire(), permits.try_acquire();
    permit: (Permits, PermitId) => permit.0.renew(permit.1), permit.0.release(permit.1);
    guard: SeveralGuard => guard.lost(), guard.renew(), guard.unlock();
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
