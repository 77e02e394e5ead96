//! Fences only grow, over everything that ends a lease and over their own loss.

use crate::harness::*;

pub async fn fences_grow_over_expiries<H: Harness>(h: &H) {
    let (backend, name) = h.one();
    let mut last = 0;
    for _ in 0..10 {
        let fence = granted(&backend, &claim(&name)).await.fence();
        assert!(fence > last, "{fence} after {last}");
        last = fence;
        h.pass(LEASE).await;
    }
}

pub async fn fences_grow_over_writes<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let mut last = 0;
    let mut grown = |fence: u64| {
        assert!(fence > last, "{fence} after {last}");
        last = fence;
    };
    for _ in 0..10 {
        // The first of them is one of nothing.
        grown(invalidated(&backend, &name).await);
        grown(invalidated(&backend, &name).await);
        grown(stored(&backend, &name, "loaded").await);
        grown(put(&backend, &name, "put").await);
        // Beside a holder, too.
        grown(granted(&backend, &claim(&name)).await.fence());
        grown(invalidated(&backend, &name).await);
        grown(granted(&backend, &claim(&name)).await.fence());
        grown(put(&backend, &name, "put").await);
        let claim = claim(&name);
        grown(granted(&backend, &claim).await.fence());
        assert!(backend.release(&claim).await.unwrap());
    }
}

pub async fn fences_grow_though_the_last_one_is_forgotten<H: Harness>(h: &H) {
    let (backend, name) = h.one();
    let first = claim(&name);
    let last = granted(&backend, &first).await.fence();
    assert!(backend.release(&first).await.unwrap());
    h.forget_fence(&name).await;
    let fence = granted(&backend, &claim(&name)).await.fence();
    assert!(fence > last, "{fence} after {last}");
}

pub async fn fences_grow_past_the_entry_though_the_last_one_is_forgotten<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let claim = claim(&name);
    let grant = begun(&backend, &claim).await;
    // Ten lives of a fence, so that the entry outlives the fence where the fence ends by its time.
    let stored = backend.commit(&claim, &grant, &value("v"), Some(FENCE_LIFE * 10)).await.unwrap();
    assert_eq!(stored, Committed::Stored);
    h.forget_fence(&name).await;
    assert!(backend.get(&name).await.unwrap().is_some());
    let burnt = invalidated(&backend, &name).await;
    assert!(burnt > grant.fence(), "{burnt} after {}", grant.fence());
}

/// A load may take longer than a fence is remembered. Renewals of its lease keep the fence as well.
pub async fn a_fence_is_remembered_while_its_lease_is_renewed<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let mut long = claim(&name("k"));
    long.fence_life = LEASE + MOMENT;
    let grant: Grant = begun(&backend, &long).await;
    for _ in 0..4 {
        h.pass(LEASE - MOMENT).await;
        assert!(renewed(&backend, &long).await);
    }
    let outcome = backend.commit(&long, &grant, &value("v"), Some(TTL)).await.unwrap();
    assert_eq!(outcome, Committed::Stored);
}

/// The servers of a `Redlock` are given the greatest fence among them.
pub async fn a_holder_can_be_given_a_greater_fence<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let [holder, stranger] = [claim(&name), claim(&name)];
    let granted_first = granted(&here, &holder).await.fence();
    let far = granted_first + 3_600_000_000;
    assert!(!there.set_fence(&stranger, far).await.unwrap());
    h.pass(LEASE - MOMENT).await;
    for _ in 0..2 {
        assert!(here.set_fence(&holder, far).await.unwrap());
    }
    let occupied = held(&there, &stranger).await;
    assert_eq!(occupied.fence, far);
    assert!(occupied.remaining > LEASE - MOMENT, "the lease was not renewed: {occupied:?}");
    assert!(here.release(&holder).await.unwrap());
    assert!(!here.set_fence(&holder, far).await.unwrap());
    let next = granted(&there, &stranger).await.fence();
    assert!(next > far, "{next} after {far}");
    // A smaller one does not lower the last fence.
    there.set_fence(&stranger, granted_first).await.unwrap();
    assert!(there.release(&stranger).await.unwrap());
    assert!(granted(&here, &claim(&name)).await.fence() > next);
}
