//! Entries that are too large to be pushed, and that a backend may move by another way.

use crate::harness::*;

/// Sizes on both sides of the default limit of a push, of 64 KiB, and far above it.
const SIZES: [usize; 5] = [40_000, (64 << 10) - 96, 64 << 10, 100_000, 3_000_000];

fn large(size: usize, mark: &str) -> Entry {
    value(&(mark.to_owned() + &"x".repeat(size)))
}

pub async fn a_large_entry_is_found_whole<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    for size in SIZES {
        let name = name(&format!("{size}"));
        let refresh = claim(&name);
        let grant = begun(&here, &refresh).await;
        let fence = edit(&there, &name, &Edit::Put(large(size, "put"), TTL)).await;
        let expected = large(size, "put").with_fence(fence);
        // A second read may take another way.
        for _ in 0..2 {
            assert!(here.get(&name).await.unwrap().as_ref() == Some(&expected), "{size}: get");
        }
        let found = here.claim(&claim(&name), 0).await.unwrap();
        assert!(found == Claimed::Newer(expected.clone()), "{size}: claim");
        let found = here.commit(&refresh, &grant, &large(size, "late"), Some(TTL)).await.unwrap();
        assert!(found == Committed::Newer(expected), "{size}: commit");
        assert!(!here.release(&refresh).await.unwrap(), "the lease outlived the put");
    }
}

pub async fn a_large_entry_is_committed_and_ends_with_its_time<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    for size in SIZES {
        let name = name(&format!("{size}"));
        let load = claim(&name);
        let grant = begun(&here, &load).await;
        for _ in 0..2 {
            let outcome = here.commit(&load, &grant, &large(size, "v"), Some(TTL)).await;
            assert_eq!(outcome.unwrap(), Committed::Stored, "{size}");
        }
        assert!(!here.release(&load).await.unwrap(), "the lease outlived its commit");
        let expected = large(size, "v").with_fence(grant.fence());
        h.pass(TTL - MOMENT).await;
        assert!(there.get(&name).await.unwrap() == Some(expected), "{size}");
        h.pass(MOMENT).await;
        assert!(there.get(&name).await.unwrap().is_none(), "{size} did not end");
    }
}

pub async fn a_large_commit_gives_way_to_an_invalidation<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for size in SIZES {
        let name = name(&format!("{size}"));
        let load = claim(&name);
        let grant = begun(&backend, &load).await;
        invalidated(&backend, &name).await;
        for ttl in [Some(TTL), None] {
            let outcome = backend.commit(&load, &grant, &large(size, "old"), ttl).await.unwrap();
            assert_eq!(outcome, Committed::Refused, "{size}");
        }
        assert!(backend.get(&name).await.unwrap().is_none(), "{size}");
    }
}

pub async fn large_and_small_entries_replace_each_other<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    for size in SIZES {
        let fence = edit(&here, &name, &Edit::Put(large(size, ""), TTL)).await;
        for backend in [&here, &there] {
            let found = backend.get(&name).await.unwrap();
            assert!(found == Some(large(size, "").with_fence(fence)), "{size}");
        }
        stored(&there, &name, "small").await;
        for backend in [&here, &there] {
            assert_eq!(read(backend, &name).await.as_deref(), Some("small"));
        }
        invalidated(&here, &name).await;
        for backend in [&here, &there] {
            assert_eq!(read(backend, &name).await, None);
        }
    }
}

pub async fn the_waiters_for_a_large_entry_are_told<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    for size in SIZES {
        let name = name(&format!("{size}"));
        let load = claim(&name);
        let grant = begun(&here, &load).await;
        let mut changes = listen(&there, &name).await;
        here.commit(&load, &grant, &large(size, ""), Some(TTL)).await.unwrap();
        let expected = large(size, "").with_fence(grant.fence());
        match next(&mut changes).await {
            Change::Entry(entry) => assert!(entry == expected, "{size}"),
            Change::Announced(announced) => {
                assert_eq!((announced.fence, announced.bytes), (expected.fence, size + 88));
                let fetched = there.get(&name).await.unwrap();
                assert!(fetched == Some(expected), "{size}");
            }
            other => panic!("{size}: {other:?}"),
        }
    }
}
