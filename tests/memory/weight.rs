//! The weight limit of the memory backend. Entries make room, leases and fences never do.

use bellwether::{
    backend::{Committed, Edit, Entry},
    error::BackendErrorKind,
};
use bytes::Bytes;
use testkit::leases::{begun_over, held};

use crate::prelude::*;

const LEASE: Duration = Duration::from_secs(60);
const FENCE_LIFE: Duration = Duration::from_secs(600);
const TTL: Duration = Duration::from_secs(120);
/// The weight of ten entries of 1,000 bytes.
const LIMIT: usize = 10_000;

/// Returns a name. All are of one length.
fn name(key: &str) -> Name {
    Name::new(&Namespace::standard(), Family::Cache, &Key::from(format!("{key:>8}")), 512).unwrap()
}

fn claim(name: &Name) -> Claim {
    Claim::new(name.clone(), Mode::Exclusive, LEASE, FENCE_LIFE)
}

/// Stores an entry that takes so many bytes. Returns its fence.
async fn put(backend: &MemoryBackend, name: &Name, weight: usize) -> u64 {
    let put = Edit::Put(entry(weight).await, TTL);
    backend.edit(name, &put, FENCE_LIFE).await.unwrap()
}

async fn is_kept(backend: &MemoryBackend, name: &Name) -> bool {
    backend.get(name).await.unwrap().is_some()
}

/// Returns an entry that takes so many bytes, with its key and its fence.
async fn entry(weight: usize) -> Entry {
    let of = |bytes| Entry::value(7, Duration::ZERO, Bytes::from(vec![b'v'; bytes]));
    let alone = MemoryBackend::new();
    alone.edit(&name("k"), &Edit::Put(of(0), TTL), FENCE_LIFE).await.unwrap();
    of(weight - alone.weight())
}

#[tokio::test(start_paused = true)]
async fn the_least_recently_used_entries_make_room() {
    let backend = MemoryBackend::with_weight(LIMIT);
    let names: Vec<_> = (0..11).map(|at| name(&format!("k{at}"))).collect();
    for name in &names[..10] {
        put(&backend, name, 1000).await;
    }
    assert_eq!(backend.weight(), LIMIT);
    assert!(is_kept(&backend, &names[0]).await);
    put(&backend, &names[10], 1000).await;
    assert_eq!(backend.weight(), LIMIT);
    assert!(is_kept(&backend, &names[0]).await && !is_kept(&backend, &names[1]).await);
    // One large entry may replace many.
    put(&backend, &names[1], LIMIT).await;
    assert_eq!(backend.weight(), LIMIT);
    assert!(!is_kept(&backend, &names[0]).await && is_kept(&backend, &names[1]).await);
}

#[tokio::test(start_paused = true)]
async fn leases_and_fences_make_no_room() {
    let backend = MemoryBackend::with_weight(LIMIT);
    let mut all = Vec::new();
    for at in 0..1000 {
        let claim = claim(&name(&format!("held{at}")));
        let grant = begun_over(&backend, &claim, 0).await;
        all.push((claim, grant));
    }
    for at in 0..100 {
        put(&backend, &name(&format!("k{at}")), 9000).await;
    }
    for (claim, grant) in all {
        let stranger = self::claim(&claim.name);
        held(&backend, &stranger).await;
        let outcome = backend.commit(&claim, &grant, &entry(1000).await, Some(TTL)).await.unwrap();
        assert_eq!(outcome, Committed::Stored);
    }
    assert_eq!(backend.weight(), LIMIT);
}

/// Like a full Redis server, the backend hands the value over and removes the older entry.
#[tokio::test(start_paused = true)]
async fn a_commit_that_is_too_large_hands_over_and_drops_the_older_entry() {
    let backend = MemoryBackend::with_weight(LIMIT);
    let name = name("k");
    let seen = put(&backend, &name, 1000).await;
    let refresh = claim(&name);
    let grant = begun_over(&backend, &refresh, seen).await;
    for _ in 0..2 {
        let outcome =
            backend.commit(&refresh, &grant, &entry(LIMIT + 1).await, Some(TTL)).await.unwrap();
        assert_eq!(outcome, Committed::Pushed);
    }
    assert_eq!(backend.get(&name).await.unwrap(), None);
    assert_eq!(backend.weight(), 0);
}

/// Like a full Redis server, the backend refuses the put, and the load under way continues.
#[tokio::test(start_paused = true)]
async fn a_put_that_is_too_large_fails_and_changes_nothing() {
    let backend = MemoryBackend::with_weight(LIMIT);
    let name = name("k");
    let seen = put(&backend, &name, 1000).await;
    let refresh = claim(&name);
    let grant = begun_over(&backend, &refresh, seen).await;
    let error =
        backend.edit(&name, &Edit::Put(entry(LIMIT + 1).await, TTL), FENCE_LIFE).await.unwrap_err();
    assert_eq!(error.kind(), BackendErrorKind::Refused);
    assert_eq!(backend.get(&name).await.unwrap(), Some(entry(1000).await.with_fence(seen)));
    let outcome = backend.commit(&refresh, &grant, &entry(2000).await, Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
    assert_eq!(backend.weight(), 2000);
}

/// An entry that is never read again must not stay for ever.
#[tokio::test(start_paused = true)]
async fn an_ended_entry_weighs_nothing() {
    let backend = MemoryBackend::with_weight(LIMIT);
    for at in 0..5 {
        put(&backend, &name(&format!("k{at}")), 1000).await;
    }
    backend.edit(&name("k0"), &Edit::Put(entry(2000).await, TTL * 2), FENCE_LIFE).await.unwrap();
    assert_eq!(backend.weight(), 6000);
    tokio::time::advance(TTL).await;
    assert_eq!(backend.get(&name("other")).await.unwrap(), None);
    assert_eq!(backend.weight(), 2000);
    backend.edit(&name("k0"), &Edit::Invalidate, FENCE_LIFE).await.unwrap();
    assert_eq!(backend.weight(), 0);
}

/// A fence that makes room for entries must not let another one be granted twice.
#[tokio::test(start_paused = true)]
async fn fences_grow_when_they_are_evicted_with_their_entries() {
    let backend = MemoryBackend::with_weight(LIMIT);
    let mut last = [0; 20];
    for at in 0..100 {
        let name = name(&format!("k{}", at % 20));
        let last = &mut last[at % 20];
        let fence = put(&backend, &name, 1000).await;
        let claim = claim(&name);
        let grant = begun_over(&backend, &claim, fence).await;
        assert!(fence > *last && grant.fence() > fence, "{last}, {fence}, {grant:?}");
        *last = grant.fence();
        assert!(backend.release(&claim).await.unwrap());
    }
}

/// A load whose fence was evicted is refused, as if its key had been invalidated.
#[tokio::test(start_paused = true)]
async fn a_load_whose_fence_was_evicted_is_not_stored() {
    let backend = MemoryBackend::with_weight(LIMIT);
    let name = name("k");
    let seen = put(&backend, &name, 1000).await;
    let late = claim(&name);
    let grant = begun_over(&backend, &late, seen).await;
    assert!(backend.release(&late).await.unwrap());
    for at in 0..10 {
        put(&backend, &self::name(&format!("k{at}")), 1000).await;
    }
    let outcome = backend.commit(&late, &grant, &entry(1000).await, Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Refused);
    assert_eq!(backend.get(&name).await.unwrap(), None);
}
