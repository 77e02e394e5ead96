//! A lease has one holder, for a limited time.

use bellwether::backend::{Change, Claim, Edit, Leases, Renewal, SemaphoreKind, Store};

use crate::harness::{
    FENCE_LIFE, FullHarness, Harness, LEASE, MOMENT, claim, granted, held, listen, name, next,
};

pub async fn a_lease_has_one_holder_at_a_time<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    let name = name("stock:42");
    let (first, second) = (claim(&name), claim(&name));
    granted(&here, &first).await;
    held(&there, &second).await;
    held(&here, &second).await;
    assert!(here.release(&first).await.unwrap());
    granted(&there, &second).await;
    held(&here, &first).await;
}

pub async fn a_claim_sent_twice_is_granted_twice_with_one_fence<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    let claim = claim(&name("k"));
    let fence = granted(&here, &claim).await.fence();
    // An answer was lost, and the claim is sent again, maybe on another connection.
    assert_eq!(granted(&there, &claim).await.fence(), fence);
    // The lease was granted once, so one release ends it.
    assert!(here.release(&claim).await.unwrap());
    assert!(!there.release(&claim).await.unwrap());
}

pub async fn an_occupied_lease_tells_its_fence_and_its_remaining_time<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let fence = granted(&backend, &claim(&name)).await.fence();
    h.pass(LEASE / 2).await;
    let occupied = held(&backend, &claim(&name)).await;
    assert_eq!(occupied.fence, fence);
    assert!(occupied.remaining <= LEASE / 2, "{occupied:?}");
    assert!(occupied.remaining > LEASE / 2 - MOMENT, "{occupied:?}");
}

pub async fn a_lease_ends_by_itself<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (first, second) = (claim(&name), claim(&name));
    granted(&backend, &first).await;
    h.pass(LEASE - MOMENT).await;
    held(&backend, &second).await;
    h.pass(MOMENT).await;
    granted(&backend, &second).await;
}

pub async fn a_renewed_lease_lasts_its_full_time_from_then<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (first, second) = (claim(&name), claim(&name));
    let fence = granted(&backend, &first).await.fence();
    for _ in 0..3 {
        h.pass(LEASE - MOMENT).await;
        assert_eq!(backend.renew(std::slice::from_ref(&first)).await.unwrap(), [Renewal::Held]);
    }
    h.pass(LEASE - MOMENT).await;
    assert_eq!(held(&backend, &second).await.fence, fence);
    h.pass(MOMENT).await;
    granted(&backend, &second).await;
}

pub async fn a_claim_granted_again_lasts_its_full_time_from_then<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (first, second) = (claim(&name), claim(&name));
    granted(&backend, &first).await;
    h.pass(LEASE - MOMENT).await;
    granted(&backend, &first).await;
    h.pass(LEASE - MOMENT).await;
    held(&backend, &second).await;
}

pub async fn renewals_are_answered_one_by_one_and_in_order<H: Harness>(h: &H) {
    let backend = h.backend();
    // More claims than one script takes, of three kinds.
    let claims: Vec<Claim> = (0..257).map(|at| claim(&name(&format!("k{at}")))).collect();
    for (at, one) in claims.iter().enumerate() {
        let stranger = claim(&one.name);
        if at % 3 < 2 {
            granted(&backend, if at % 3 == 0 { one } else { &stranger }).await;
        }
    }
    let expected: Vec<Renewal> = (0..claims.len()).map(|at| (at % 3 == 0).into()).collect();
    assert_eq!(backend.renew(&claims).await.unwrap(), expected);
    assert_eq!(backend.renew(&[]).await.unwrap(), [Renewal::NotHeld; 0]);
}

pub async fn a_stranger_renews_nothing<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let stranger = claim(&name);
    granted(&backend, &claim(&name)).await;
    h.pass(LEASE - MOMENT).await;
    assert_eq!(backend.renew(std::slice::from_ref(&stranger)).await.unwrap(), [Renewal::NotHeld]);
    h.pass(MOMENT).await;
    granted(&backend, &stranger).await;
}

pub async fn an_ended_lease_cannot_be_renewed<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let first = claim(&name);
    granted(&backend, &first).await;
    h.pass(LEASE).await;
    assert_eq!(backend.renew(std::slice::from_ref(&first)).await.unwrap(), [Renewal::NotHeld]);
    // The renewal has not restored the lease.
    granted(&backend, &claim(&name)).await;
}

pub async fn a_stranger_releases_nothing<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (first, stranger) = (claim(&name), claim(&name));
    granted(&backend, &first).await;
    assert!(!backend.release(&stranger).await.unwrap());
    held(&backend, &stranger).await;
    assert!(backend.release(&first).await.unwrap());
}

pub async fn a_second_release_does_nothing<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let first = claim(&name);
    let mut changes = listen(&backend, &name).await;
    granted(&backend, &first).await;
    assert!(backend.release(&first).await.unwrap());
    assert!(!backend.release(&first).await.unwrap());
    // The second release woke no waiter: the next push after the first wake is the invalidation.
    let burnt = backend.edit(&name, &Edit::Invalidate, FENCE_LIFE).await.unwrap();
    assert_eq!(next(&mut changes).await, Change::Wake);
    assert_eq!(next(&mut changes).await, Change::Invalidated(burnt));
}

/// The first holder stalls, its lease ends, and another claim takes the name. Then the release of
/// the first holder arrives. A release that only checks for the presence of a lease would end the
/// second lease.
pub async fn a_late_release_does_not_end_a_newer_lease<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (late, newer) = (claim(&name), claim(&name));
    granted(&backend, &late).await;
    h.pass(LEASE).await;
    let fence = granted(&backend, &newer).await.fence();
    assert!(!backend.release(&late).await.unwrap());
    assert_eq!(held(&backend, &claim(&name)).await.fence, fence);
    assert_eq!(backend.renew(&[late, newer]).await.unwrap(), [Renewal::NotHeld, Renewal::Held]);
}

pub async fn a_holder_is_told_by_the_label_of_its_process<H: FullHarness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    let name = name("k");
    let label = async || there.inspect(&name, SemaphoreKind::Mutex).await.unwrap().owner;
    let labelled = |label: Option<&str>| {
        let mut claim = claim(&name);
        claim.label = label.map(Into::into);
        claim
    };
    let first = labelled(Some("pod-7"));
    granted(&here, &first).await;
    assert_eq!(label().await.as_deref(), Some("pod-7"));
    assert_eq!(there.inspect(&name, SemaphoreKind::ReadWrite).await.unwrap().owner, None);
    let second = labelled(Some("a pod: 8,é"));
    assert!(here.pass(&first, &second).await.unwrap().is_some());
    assert_eq!(label().await, second.label.as_deref().map(str::to_owned));
    assert_eq!(here.renew(std::slice::from_ref(&second)).await.unwrap(), [Renewal::Held]);
    let third = labelled(None);
    assert!(here.pass(&second, &third).await.unwrap().is_some());
    assert_eq!(label().await, None);
    assert!(here.release(&third).await.unwrap());
    assert_eq!(label().await, None);
}
