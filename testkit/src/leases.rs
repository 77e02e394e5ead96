//! Claims whose outcome a test knows, and the changes that are pushed.

use std::time::Duration;

use bellwether::backend::{
    Change, Changes, Claim, Claimed, Entry, Failure, Grant, Leases, Occupied, Store,
};
use bytes::Bytes;
use tokio::time::timeout;

use crate::LIMIT;

pub async fn granted(backend: &impl Leases, claim: &Claim) -> Grant {
    match backend.acquire(claim).await {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("{claim:?} was not granted: {other:?}"),
    }
}

pub async fn held(backend: &impl Leases, claim: &Claim) -> Occupied {
    match backend.acquire(claim).await {
        Ok(Claimed::Occupied(occupied)) => occupied,
        other => panic!("{claim:?} was not refused: {other:?}"),
    }
}

/// Claims a load, which must be granted.
pub async fn begun(backend: &impl Store, claim: &Claim) -> Grant {
    begun_over(backend, claim, 0).await
}

/// Claims a load in place of an entry that was seen, which must be granted.
pub async fn begun_over(backend: &impl Store, claim: &Claim, seen: u64) -> Grant {
    match backend.claim(claim, seen).await {
        Ok(Claimed::Granted(grant)) => grant,
        other => panic!("{claim:?} was not granted: {other:?}"),
    }
}

pub fn value(text: &str) -> Entry {
    Entry::value(7, Duration::from_millis(5), Bytes::copy_from_slice(text.as_bytes()))
}

/// Returns a failure as it arrives from another process.
pub fn failure(fence: u64, message: &str) -> Failure {
    match Change::decode(&Bytes::from(format!("f{fence:016}l{:016}{message}", 0))) {
        Change::Failed(failure) => failure,
        other => panic!("the bytes were not decoded as a failure: {other:?}"),
    }
}

pub async fn next(changes: &mut Changes) -> Change {
    timeout(LIMIT, changes.next()).await.expect("no change was pushed in time")
}
