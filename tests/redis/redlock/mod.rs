//! A lock over a majority of real servers that are killed, suspended and restarted. In `process`
//! the holders die. `tests/memory/redlock` has the other promises.

mod process;
mod servers;

use bellwether::Redlock;

use crate::prelude::*;

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
