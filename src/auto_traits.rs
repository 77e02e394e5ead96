//! The table of what is `Send`, `Sync` and `Unpin`. It is checked at compile time.
//!
//! A change of a private field can remove such a trait from a public type without a notice. Then
//! this file does not compile. The futures of the main calls are `Send`, so that any task can run
//! them.

#![allow(dead_code)]

use std::{convert::Infallible, time::Duration};

use crate::{
    BoxError, Cache, Error, ErrorKind, Key, Locks, MemoryBackend, Redlock, backend, cache, error,
    key, lease, lock,
};

type Value = String;

fn all<T: Send + Sync + Unpin>() {}
fn shared<T: ?Sized + Send + Sync>() {}
fn send<T: Send>(_: T) {}

macro_rules! all {
    ($($type:ty),* $(,)?) => { $( const _: fn() = all::<$type>; )* };
}

all!(BoxError, Error, ErrorKind, error::BackendError, error::BackendErrorKind);
all!(Key, key::Name, key::Namespace, key::Family);
all!(Cache<Value>, cache::Builder<Value>, cache::Request<Value>, cache::Loaded<Value>);
all!(cache::Lead, cache::Stats, cache::Source, cache::Json, cache::Raw, cache::Abandoned);
all!(MemoryBackend, backend::Change, backend::Changes, backend::Channels, backend::Claim);
all!(backend::Countdown, backend::Entry, backend::Grant, backend::Mode, backend::Owner);
all!(lease::Retry);
const _: fn() = shared::<dyn lease::RetryStrategy>;
all!(Locks, lock::Latch, lock::Several, lock::SeveralGuard, lock::Permits, lock::PermitId);
all!(lock::Mutex, lock::MutexGuard, lock::Mutex<lock::Unfenced>, lock::MutexGuard<lock::Unfenced>);
all!(lock::ReentrantMutex, lock::ReentrantHolder, lock::ReentrantGuard);
all!(lock::RwLock, lock::ReadGuard, lock::WriteGuard, lock::Semaphore, lock::SemaphorePermit);
all!(Redlock);

#[cfg(feature = "redis")]
all!(backend::RedisBackend, backend::RedisBackendBuilder, backend::Replicas);
#[cfg(feature = "redis")]
all!(backend::SentinelMaster);

#[cfg(feature = "tower")]
mod layer {
    use super::{Infallible, Key, Value, all, send};
    use crate::layer::{Bellwether, BellwetherLayer, ResponseFuture, Values};

    type Mode = Values<Value, fn(&u32) -> Option<Key>>;

    all!(BellwetherLayer<Mode>, Bellwether<(), Mode>);

    fn futures(response: ResponseFuture<Value, Infallible>) {
        send(response);
    }
}

#[cfg(feature = "http")]
mod http {
    use super::all;
    use crate::layer::{
        Bellwether, BellwetherLayer, CachedResponse, Http, ResponseBody, ResponseCodec,
    };

    type Body = http_body_util::Empty<bytes::Bytes>;

    all!(BellwetherLayer<Http>, Bellwether<(), Http>, CachedResponse, ResponseCodec);
    all!(ResponseBody<Body>);
}

async fn load(_lead: cache::Lead) -> Result<Value, Infallible> {
    Ok(Value::new())
}

fn futures(cache: &Cache<Value>, locks: &Locks, guard: lock::MutexGuard) {
    send(cache.get("k"));
    send(cache.get_or_load("k", load));
    send(cache.request("k").load(load));
    send(cache.invalidate("k"));
    send(cache.shutdown(Duration::ZERO));
    send(locks.mutex("k").lock());
    send(locks.rw_lock("k").write());
    send(locks.semaphore("k", 3).acquire());
    send(locks.several(["a", "b"]).lock());
    send(locks.latch("k").wait());
    send(locks.shutdown(Duration::ZERO));
    send(guard.unlock());
}
