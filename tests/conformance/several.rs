//! Several leases are acquired all or none, in one step and one after another.

use std::sync::atomic::{AtomicBool, Ordering};

use bellwether::{
    backend::{Acquired, AcquiredAll, Claim, Leases, Mode, Occupied, Renewal, acquire_in_order},
    error::BackendErrorKind,
    key::Name,
};
use futures_util::future::join_all;

use crate::harness::{
    FENCE_LIFE, Harness, LEASE, MOMENT, assert_newer, claim, granted, hasty, held, name,
};

/// The way in which several leases are acquired.
#[derive(Clone, Copy, Debug)]
enum Way {
    AtOnce,
    InOrder,
}

const WAYS: [Way; 2] = [Way::AtOnce, Way::InOrder];

impl Way {
    async fn acquire(self, backend: &impl Leases, claims: &[Claim]) -> AcquiredAll {
        let answer = match self {
            Self::AtOnce => backend.acquire_all(claims).await,
            Self::InOrder => acquire_in_order(backend, claims).await,
        };
        answer.unwrap()
    }

    async fn fences(self, backend: &impl Leases, claims: &[Claim]) -> Vec<u64> {
        match self.acquire(backend, claims).await {
            AcquiredAll::Granted(grants) => grants.iter().map(|grant| grant.fence()).collect(),
            other => panic!("{self:?}: the claims were not granted: {other:?}"),
        }
    }

    async fn held(self, backend: &impl Leases, claims: &[Claim]) -> (usize, Occupied) {
        match self.acquire(backend, claims).await {
            AcquiredAll::Occupied(at, occupied) => (at, occupied),
            other => panic!("{self:?}: the claims were granted: {other:?}"),
        }
    }

    fn names(self) -> [Name; 3] {
        ["a", "b", "c"].map(|key| name(&format!("{key} {self:?}")))
    }
}

fn claims(names: &[Name]) -> Vec<Claim> {
    names.iter().map(claim).collect()
}

async fn is_free(backend: &impl Leases, name: &Name) -> bool {
    backend.holder(name, Mode::Exclusive).await.unwrap().is_none()
}

pub async fn all_leases_are_granted_each_with_a_fence<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    for way in WAYS {
        let names = way.names();
        let mut last = Vec::new();
        for name in &names {
            let claim = claim(name);
            last.push(granted(&here, &claim).await.fence());
            assert!(here.release(&claim).await.unwrap());
        }
        let all = claims(&names);
        let fences = way.fences(&here, &all).await;
        assert_eq!(fences.len(), 3);
        for (at, name) in names.iter().enumerate() {
            assert_newer::<H>(fences[at], last[at]);
            let occupied = held(&there, &claim(name)).await;
            assert_eq!(occupied.fence, fences[at]);
            assert!(occupied.remaining > LEASE - MOMENT);
        }
        assert_eq!(here.renew(&all).await.unwrap(), [Renewal::Held; 3]);
        assert_eq!(way.fences(&here, &claims(&names[..0])).await, [0; 0]);
    }
}

pub async fn several_leases_are_granted_all_or_none<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    for way in WAYS {
        let names = way.names();
        for in_the_way in 0..3 {
            let other = claim(&names[in_the_way]);
            let fence = granted(&there, &other).await.fence();
            let all = claims(&names);
            let (at, occupied) = way.held(&here, &all).await;
            assert_eq!((at, occupied.fence), (in_the_way, fence), "{way:?}");
            assert!(occupied.remaining <= LEASE && occupied.remaining > LEASE - MOMENT);
            assert_eq!(here.renew(&all).await.unwrap(), [Renewal::NotHeld; 3]);
            for (at, name) in names.iter().enumerate() {
                assert_eq!(is_free(&there, name).await, at != in_the_way, "{way:?}");
            }
            assert!(there.release(&other).await.unwrap());
            // Afterwards the same claims are granted.
            way.fences(&here, &all).await;
            for claim in &all {
                assert!(here.release(claim).await.unwrap());
            }
        }
    }
}

pub async fn claims_sent_twice_are_granted_twice_with_their_fences<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    for way in WAYS {
        let names = way.names();
        let all = claims(&names);
        let fences = way.fences(&here, &all).await;
        h.pass(LEASE / 2).await;
        assert_eq!(way.fences(&here, &all).await, fences);
        // A repeated grant lasts its full time from the repetition.
        for name in &names {
            assert!(held(&there, &claim(name)).await.remaining > LEASE - MOMENT);
        }
    }
}

pub async fn free_leases_are_granted_beside_the_callers_own<H: Harness>(h: &H) {
    let backend = h.backend();
    for way in WAYS {
        let all = claims(&way.names());
        let own = granted(&backend, &all[1]).await.fence();
        let fences = way.fences(&backend, &all).await;
        assert_eq!(fences[1], own);
        assert_eq!(backend.renew(&all).await.unwrap(), [Renewal::Held; 3], "{way:?}");
    }
}

pub async fn leases_acquired_together_are_renewed_and_released_one_by_one<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    for way in WAYS {
        let names = way.names();
        let all = claims(&names);
        let fences = way.fences(&here, &all).await;
        assert!(here.release(&all[1]).await.unwrap());
        assert_eq!(
            here.renew(&all).await.unwrap(),
            [Renewal::Held, Renewal::NotHeld, Renewal::Held]
        );
        let next = claim(&names[1]);
        assert_newer::<H>(granted(&there, &next).await.fence(), fences[1]);
        let (at, _) = way.held(&there, &claims(&names)).await;
        assert_eq!(at, 0);
        h.pass(LEASE).await;
        assert_newer::<H>(way.fences(&there, &claims(&names)).await[0], fences[0]);
        assert_eq!(here.renew(&all).await.unwrap(), [Renewal::NotHeld; 3]);
    }
}

pub async fn only_exclusive_claims_are_acquired_together<H: Harness>(h: &H) {
    let backend = h.backend();
    let [a, b, _] = Way::AtOnce.names();
    for mode in [Mode::Fair, Mode::Read, Mode::Write, Mode::Permit { limit: 2, count: 1 }] {
        let all = [claim(&a), Claim::new(b.clone(), mode, LEASE, FENCE_LIFE)];
        for answer in [backend.acquire_all(&all).await, acquire_in_order(&backend, &all).await] {
            assert_eq!(answer.unwrap_err().kind(), BackendErrorKind::Refused, "{mode:?}");
        }
        assert!(is_free(&backend, &a).await);
    }
}

/// Three contenders want two of three names each, and one wants all three. In each round of tries
/// one contender succeeds.
pub async fn claims_of_overlapping_sets_never_block_each_other<H: Harness>(h: &H) {
    for way in WAYS {
        let names = way.names();
        let busy: [AtomicBool; 3] = Default::default();
        let wanted: [&[usize]; 4] = [&[0, 1], &[1, 2], &[0, 2], &[0, 1, 2]];
        let contenders = wanted.map(|wanted| {
            let (backend, names, busy) = (h.backend(), &names, &busy);
            async move {
                let mut rounds = 0;
                while rounds < 20 {
                    let all: Vec<_> = wanted.iter().map(|at| hasty(&names[*at])).collect();
                    let AcquiredAll::Granted(_) = way.acquire(&backend, &all).await else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    for at in wanted {
                        assert!(
                            !busy[*at].swap(true, Ordering::SeqCst),
                            "two contenders hold the lease at once"
                        );
                    }
                    tokio::task::yield_now().await;
                    for (at, claim) in wanted.iter().zip(&all) {
                        busy[*at].store(false, Ordering::SeqCst);
                        assert!(backend.release(claim).await.unwrap());
                    }
                    rounds += 1;
                }
            }
        });
        join_all(contenders).await;
        for name in &names {
            let free = h.backend().acquire(&claim(name)).await.unwrap();
            assert!(matches!(free, Acquired::Granted(_)), "{way:?}: a lease was left behind");
        }
    }
}
