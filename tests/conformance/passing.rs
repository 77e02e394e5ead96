//! A lease passes from one owner to another, and can be looked at or ended from outside.

use crate::harness::*;

pub async fn a_lease_passes_on_in_one_step_with_a_greater_fence<H: Harness>(h: &H) {
    let (here, there, name) = h.two();
    let first = claim(&name);
    let second = claim(&name);
    let before = granted(&here, &first).await.fence();
    h.pass(LEASE / 2).await;
    let after = here.pass(&first, &second).await.unwrap().unwrap().fence();
    assert!(after > before, "{after} after {before}");
    // Only the second owner holds the lease, for its full time from the pass.
    assert_eq!(
        here.renew(&[first.clone(), second.clone()]).await.unwrap(),
        [Renewal::NotHeld, Renewal::Held]
    );
    assert!(!here.release(&first).await.unwrap());
    let occupied = held(&there, &claim(&name)).await;
    assert_eq!(occupied.fence, after);
    assert!(occupied.remaining > LEASE - MOMENT, "{occupied:?}");
    assert!(there.release(&second).await.unwrap());
}

pub async fn a_pass_sent_twice_passes_once<H: Harness>(h: &H) {
    let (backend, name) = h.one();
    let first = claim(&name);
    let second = claim(&name);
    granted(&backend, &first).await;
    let once = backend.pass(&first, &second).await.unwrap().unwrap();
    assert_eq!(backend.pass(&first, &second).await.unwrap(), Some(once));
    assert!(backend.release(&second).await.unwrap());
    assert_eq!(backend.pass(&first, &second).await.unwrap(), None);
}

pub async fn a_claim_without_a_lease_passes_nothing<H: Harness>(h: &H) {
    let (backend, name) = h.one();
    let [first, second, third]: [Claim; 3] = std::array::from_fn(|_| claim(&name));
    assert_eq!(backend.pass(&first, &second).await.unwrap(), None);
    let fence = granted(&backend, &third).await.fence();
    assert_eq!(backend.pass(&first, &second).await.unwrap(), None);
    assert_eq!(held(&backend, &first).await.fence, fence);
    h.pass(LEASE).await;
    assert_eq!(backend.pass(&third, &second).await.unwrap(), None);
}
