//! A lease has one holder, for a limited time, in every mode.

use crate::harness::*;

/// Returns a claim in each mode, and one that cannot hold beside it and does not wait.
fn rivals<H: Harness>() -> impl Iterator<Item = (Claim, Claim)> {
    H::PAIRS.iter().map(|[one, other]| {
        let name = name(&format!("{one:?} {other:?}"));
        (claim_in(*one, &name), hasty_in(*other, &name))
    })
}

/// Returns how many holders a claim counts as.
fn units(claim: &Claim) -> u32 {
    if let Mode::Permit { count, .. } = claim.mode { count } else { 1 }
}

fn is_newer(next: (&Claim, u64), last: (&Claim, u64)) -> bool {
    let are_fenced = next.0.mode.is_fenced() && last.0.mode.is_fenced();
    !are_fenced || next.1 > last.1
}

pub async fn a_lease_has_one_holder_at_a_time<H: Harness>(h: &H) {
    let (here, there, _) = h.two();
    for (first, second) in rivals::<H>() {
        let fence = granted(&here, &first).await.fence();
        for backend in [&there, &here] {
            let occupied = held(backend, &second).await;
            assert_eq!((occupied.fence, occupied.holders), (fence, units(&first)), "{first:?}");
            assert!(!backend.release(&second).await.unwrap());
        }
        assert!(here.release(&first).await.unwrap());
        let next = granted(&there, &second).await.fence();
        assert!(is_newer((&second, next), (&first, fence)), "{next} after {fence}");
        held(&here, &first).await;
    }
}

/// An answer was lost, and the claim is sent again, maybe on another connection. It was granted
/// once, so one release ends it.
pub async fn a_claim_sent_twice_is_granted_one_lease<H: Harness>(h: &H) {
    let (here, there, _) = h.two();
    for (claim, rival) in rivals::<H>() {
        let fence = granted(&here, &claim).await.fence();
        h.pass(LEASE / 2).await;
        assert_eq!(granted(&there, &claim).await.fence(), fence);
        let occupied = held(&here, &rival).await;
        assert_eq!(occupied.holders, units(&claim));
        assert!(occupied.remaining > LEASE - MOMENT, "{occupied:?}");
        // The same holds while another claim waits.
        let waiting = claim_in(rival.mode, &rival.name);
        held(&here, &waiting).await;
        assert_eq!(granted(&there, &claim).await.fence(), fence);
        assert!(here.release(&claim).await.unwrap());
        assert!(!there.release(&claim).await.unwrap());
        granted(&here, &waiting).await;
        assert!(!here.release(&claim).await.unwrap());
        assert!(renewed(&there, &waiting).await);
    }
}

/// A renewal and a claim that is granted again make it last for its full time. Neither a stranger
/// nor a late holder changes the lease of another claim.
pub async fn a_lease_ends_by_itself_unless_it_is_renewed<H: Harness>(h: &H) {
    let backend = h.backend();
    for (holder, rival) in rivals::<H>() {
        let fence = granted(&backend, &holder).await.fence();
        for round in 0..4 {
            h.pass(LEASE - MOMENT).await;
            let occupied = held(&backend, &rival).await;
            assert!(occupied.remaining <= MOMENT && occupied.fence == fence, "{occupied:?}");
            assert!(!renewed(&backend, &rival).await);
            match round {
                0 | 1 => assert!(renewed(&backend, &holder).await),
                2 => assert_eq!(granted(&backend, &holder).await.fence(), fence),
                _ => h.pass(MOMENT).await,
            }
        }
        assert!(!renewed(&backend, &holder).await);
        granted(&backend, &rival).await;
        assert!(!backend.release(&holder).await.unwrap());
        let renewed = backend.renew(&[holder, rival]).await.unwrap();
        assert_eq!(renewed, [Renewal::NotHeld, Renewal::Held]);
    }
}

/// A clear ends the queue as well.
pub async fn a_lease_can_be_looked_at_and_cleared<H: Harness>(h: &H) {
    let (here, there, _) = h.two();
    for (holder, rival) in rivals::<H>() {
        let name = &holder.name;
        let mode = holder.mode;
        assert_eq!(testkit::holder(&there, name, mode).await.unwrap(), None);
        assert!(!there.clear(name, mode).await.unwrap());
        let fence = granted(&here, &holder).await.fence();
        held(&here, &claim_in(rival.mode, name)).await;
        let occupied = testkit::holder(&there, name, mode).await.unwrap().unwrap();
        assert_eq!((occupied.fence, occupied.holders), (fence, units(&holder)));
        assert!(occupied.remaining <= LEASE && occupied.remaining > LEASE - MOMENT, "{occupied:?}");
        let mut changes = listen(&here, name).await;
        assert!(there.clear(name, mode).await.unwrap());
        assert_eq!(next(&mut changes).await, Change::Wake);
        assert_eq!(testkit::holder(&there, name, mode).await.unwrap(), None);
        assert!(!renewed(&here, &holder).await);
        assert!(!here.release(&holder).await.unwrap());
        let after = granted(&here, &rival).await.fence();
        assert!(is_newer((&rival, after), (&holder, fence)), "{after} after {fence}");
        assert!(here.release(&rival).await.unwrap());
        assert_eq!(testkit::holder(&there, name, mode).await.unwrap(), None);
    }
}

pub async fn renewals_are_answered_one_by_one_and_in_order<H: Harness>(h: &H) {
    let backend = h.backend();
    // More claims than one script takes, of three kinds.
    let claims: Vec<Claim> = (0..257).map(|at| claim(&name(&format!("k{at}")))).collect();
    let taken = claims.iter().enumerate().map(async |(at, one)| {
        let stranger = claim(&one.name);
        if at % 3 < 2 {
            granted(&backend, if at % 3 == 0 { one } else { &stranger }).await;
        }
    });
    join_all(taken).await;
    let expected: Vec<Renewal> = (0..claims.len()).map(|at| (at % 3 == 0).into()).collect();
    assert_eq!(backend.renew(&claims).await.unwrap(), expected);
    assert_eq!(backend.renew(&[]).await.unwrap(), [Renewal::NotHeld; 0]);
}

pub async fn a_second_release_does_nothing<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let first = claim(&name);
    let mut changes = listen(&backend, &name).await;
    granted(&backend, &first).await;
    assert!(backend.release(&first).await.unwrap());
    assert!(!backend.release(&first).await.unwrap());
    // The second release woke no waiter: the next push after the first wake is the invalidation.
    let burnt = invalidated(&backend, &name).await;
    assert_eq!(next(&mut changes).await, Change::Wake);
    assert_eq!(next(&mut changes).await, Change::Invalidated(burnt));
}

pub async fn a_holder_is_told_by_the_label_of_its_process<H: FullHarness>(h: &H) {
    let (here, there, name) = h.two();
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
    assert!(renewed(&here, &second).await);
    let third = labelled(None);
    assert!(here.pass(&second, &third).await.unwrap().is_some());
    assert_eq!(label().await, None);
    assert!(here.release(&third).await.unwrap());
    assert_eq!(label().await, None);
}
