//! A semaphore grants a limited number of permits at a time.

use crate::harness::*;

fn of(limit: u32, count: u32, name: &Name) -> Claim {
    claim_in(Mode::Permit { limit, count }, name)
}

fn hasty(limit: u32, count: u32, name: &Name) -> Claim {
    hasty_in(Mode::Permit { limit, count }, name)
}

pub async fn several_permits_are_granted_all_or_none<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let some = of(5, 2, &name);
    let many = hasty(5, 4, &name);
    granted(&backend, &some).await;
    assert_eq!(held(&backend, &many).await.holders, 2);
    let rest = of(5, 3, &name);
    granted(&backend, &rest).await;
    // The first lease to end decides when a claim looks again.
    h.pass(LEASE / 2).await;
    assert!(renewed(&backend, &rest).await);
    assert!(held(&backend, &hasty(5, 3, &name)).await.remaining <= LEASE / 2);
    assert!(backend.release(&some).await.unwrap());
    assert_eq!(held(&backend, &many).await.holders, 3);
    assert!(backend.release(&rest).await.unwrap());
    granted(&backend, &many).await;
}

/// An id outlives its permit, so it may be released twice, also by another process.
pub async fn a_second_release_by_id_is_no_loss<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()].map(|backend| Locks::new(backend, "bellwether"));
    let permits = [here, there].map(|locks| locks.permits("k", 1).lease(LEASE));
    let id = permits[0].acquire().await.unwrap();
    assert!(permits[0].release(id).await.unwrap());
    for permits in &permits {
        assert!(!permits.release(id).await.unwrap());
    }
    let error = permits[0].renew(id).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("has ended or was released"), "{error}");
    let id = permits[1].acquire().await.unwrap();
    h.pass(LEASE).await;
    assert!(!permits[0].release(id).await.unwrap());
    assert!(permits[0].acquire().await.is_ok());
}

/// A backend may do this in several steps.
pub async fn many_permits_are_renewed_and_handed_over<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
    let mut holders = Vec::new();
    for _ in 0..3 {
        let holder = of(3000, 1000, &name);
        granted(&here, &holder).await;
        holders.push(holder);
    }
    h.pass(LEASE / 2).await;
    assert_eq!(here.renew(&holders).await.unwrap(), [Renewal::Held; 3]);
    h.pass(LEASE / 2).await;
    let waiting: [Claim; 4] = std::array::from_fn(|_| of(3000, 250, &name));
    for claim in &waiting {
        assert_eq!(held(&there, claim).await.holders, 3000);
    }
    let mut changes = listen(&there, &name).await;
    assert!(here.release(&holders[0]).await.unwrap());
    for claim in &waiting {
        handed_over(&mut changes, claim).await;
    }
    assert_eq!(held(&there, &hasty(3000, 1, &name)).await.holders, 3000);
}

/// The claim states the limit. A lower limit is therefore refused until enough permits are back.
pub async fn each_claim_brings_its_limit<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let claims: [Claim; 3] = std::array::from_fn(|_| of(3, 1, &name));
    for claim in &claims {
        granted(&backend, claim).await;
    }
    let lower = hasty(2, 1, &name);
    held(&backend, &lower).await;
    backend.release(&claims[0]).await.unwrap();
    held(&backend, &lower).await;
    // Permits that are out stay out, and can be renewed.
    assert_eq!(backend.renew(&claims[1..]).await.unwrap(), [Renewal::Held, Renewal::Held]);
    granted(&backend, &of(3, 1, &name)).await;
    backend.release(&claims[1]).await.unwrap();
    backend.release(&claims[2]).await.unwrap();
    granted(&backend, &lower).await;
}

pub async fn permits_do_not_interfere_with_other_modes<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let claims = [of(1, 1, &name), claim(&name), claim_in(Mode::Write, &name)];
    for claim in &claims {
        granted(&backend, claim).await;
    }
    assert_eq!(backend.renew(&claims).await.unwrap(), [Renewal::Held; 3]);
    for claim in &claims {
        assert!(backend.release(claim).await.unwrap());
        assert!(!backend.release(claim).await.unwrap());
    }
}
