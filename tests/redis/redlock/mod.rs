//! The promises of a lock over a majority of servers. `memory`, `loss`, `undo`, `passing` and
//! `order` use paused time and faults that are `played`. `servers` uses real servers that are
//! killed, suspended and restarted. In `process` the holders die. `fences` is about the tokens.

mod fences;
mod loss;
mod memory;
mod order;
mod passing;
mod played;
mod process;
mod servers;
mod stray;
mod undo;

use std::time::Duration;

use bellwether::{
    Error, ErrorKind, Key, Redlock,
    backend::{Leases, Mode},
    key::{Family, Name, Namespace},
    lock::MutexGuard,
};

const MS: Duration = Duration::from_millis(1);

/// Returns the name of a lock as each server knows it.
fn name(key: &str) -> Name {
    Name::new(&Namespace::standard(), Family::Redlock, &Key::from(key), 512).unwrap()
}

/// Returns the number of servers at which some owner holds a share of the lock.
async fn shares(servers: &[impl Leases], key: &str) -> usize {
    let mut held = 0;
    for server in servers {
        held += usize::from(server.holder(&name(key), Mode::Exclusive).await.unwrap().is_some());
    }
    held
}

fn kind<T>(result: Result<T, Error>) -> ErrorKind {
    result.map(drop).unwrap_err().kind()
}

/// Tries until enough servers answer in time, which a busy machine may prevent.
async fn try_lock(redlock: &Redlock, key: &str) -> Option<MutexGuard> {
    for _ in 0..50 {
        match redlock.mutex(key).try_lock().await {
            Ok(got) => return got,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Backend),
        }
    }
    panic!("no majority answered");
}

/// Releases the lock. Too few servers may answer in time, on a busy machine or if one has just
/// gone. The release goes on in the background then.
async fn unlock(guard: MutexGuard) {
    if let Err(error) = guard.unlock().await {
        assert_eq!(error.kind(), ErrorKind::Backend);
    }
}

#[test]
fn worker() {
    process::work();
}
