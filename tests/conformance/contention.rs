//! Several processes contend for one name.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicI32, Ordering},
};

use crate::harness::*;

pub async fn contenders_never_hold_together<H: Harness>(h: &H) {
    let busy = Arc::new(AtomicBool::new(false));
    let fences = Arc::new(Mutex::new(Vec::new()));
    let contenders = (0..4).map(async |_| {
        let backend = h.backend();
        let name = name("k");
        let mut rounds = 0;
        while rounds < 25 {
            // Each try has a claim of its own, which is not sent again.
            let claim = hasty(&name);
            let Claimed::Granted(grant) = backend.acquire(&claim).await.unwrap() else {
                tokio::task::yield_now().await;
                continue;
            };
            assert!(!busy.swap(true, Ordering::SeqCst), "two claims hold the lease at once");
            fences.lock().unwrap().push(grant.fence());
            // Let the other contenders run while the lease is held.
            tokio::task::yield_now().await;
            busy.store(false, Ordering::SeqCst);
            assert!(backend.release(&claim).await.unwrap());
            rounds += 1;
        }
    });
    join_all(contenders).await;
    let fences = fences.lock().unwrap();
    assert_eq!(fences.len(), 100);
    for pair in fences.windows(2) {
        assert!(pair[1] > pair[0], "{pair:?}");
    }
}

/// Claims the lease until it is granted.
async fn won(backend: &impl Leases, claim: &Claim) -> u64 {
    loop {
        if let Claimed::Granted(grant) = backend.acquire(claim).await.unwrap() {
            return grant.fence();
        }
        tokio::task::yield_now().await;
    }
}

pub async fn readers_and_writers_never_hold_together<H: FullHarness>(h: &H) {
    // The number of readers inside. A writer counts as a thousand.
    let inside = Arc::new(AtomicI32::new(0));
    let last = Arc::new(Mutex::new(0));
    let contenders = (0..4).map(async |contender| {
        let backend = h.backend();
        let name = name("k");
        for round in 0..25 {
            let writes = (contender + round) % 3 == 0;
            let (mode, weight) = if writes { (Mode::Write, 1000) } else { (Mode::Read, 1) };
            let claim = claim_in(mode, &name);
            let fence = won(&backend, &claim).await;
            let before = inside.fetch_add(weight, Ordering::SeqCst);
            assert!(before < if writes { 1 } else { 1000 }, "{before} inside before {mode:?}");
            if writes {
                let before = std::mem::replace(&mut *last.lock().unwrap(), fence);
                assert!(fence > before, "the fences went backwards");
            }
            tokio::task::yield_now().await;
            inside.fetch_sub(weight, Ordering::SeqCst);
            assert!(backend.release(&claim).await.unwrap());
        }
    });
    join_all(contenders).await;
}

pub async fn permits_in_use_never_exceed_the_limit<H: FullHarness>(h: &H) {
    let out = Arc::new(AtomicI32::new(0));
    let contenders = (0..5).map(async |contender| {
        let backend = h.backend();
        let name = name("k");
        for round in 0..20 {
            let count = 1 + (contender + round) % 3;
            let claim = claim_in(Mode::Permit { limit: 4, count }, &name);
            won(&backend, &claim).await;
            let count = i32::try_from(count).unwrap();
            let before = out.fetch_add(count, Ordering::SeqCst);
            assert!(before + count <= 4, "{before} out, and {count} more");
            tokio::task::yield_now().await;
            out.fetch_sub(count, Ordering::SeqCst);
            assert!(backend.release(&claim).await.unwrap());
        }
    });
    join_all(contenders).await;
}

/// The commit is on its way when the name is invalidated. No entry is left, in either order.
pub async fn an_invalidation_wins_against_any_commit<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    for turn in 0..60 {
        let name = name(&format!("k{turn}"));
        let claim = claim(&name);
        let grant = begun(&here, &claim).await;
        let old = value("old");
        let commit = here.commit(&claim, &grant, &old, Some(TTL));
        let invalidate = there.edit(&name, &Edit::Invalidate, FENCE_LIFE);
        let (outcome, _) = match turn % 2 {
            0 => tokio::join!(commit, invalidate),
            _ => {
                let (burnt, outcome) = tokio::join!(invalidate, commit);
                (outcome, burnt)
            }
        };
        let outcome = outcome.unwrap();
        assert!(matches!(outcome, Committed::Stored | Committed::Refused), "{outcome:?}");
        assert_eq!(read(&here, &name).await, None, "{turn}: {outcome:?}");
    }
}

pub async fn a_put_wins_against_any_commit<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    for turn in 0..60 {
        let name = name(&format!("k{turn}"));
        let claim = claim(&name);
        let grant = begun(&here, &claim).await;
        let old = value("old");
        let new = value("new");
        let commit = here.commit(&claim, &grant, &old, Some(TTL));
        let put = Edit::Put(new.clone(), TTL);
        let put = there.edit(&name, &put, FENCE_LIFE);
        let (outcome, fence) = match turn % 2 {
            0 => tokio::join!(commit, put),
            _ => {
                let (fence, outcome) = tokio::join!(put, commit);
                (outcome, fence)
            }
        };
        let put = value("new").with_fence(fence.unwrap());
        let outcome = outcome.unwrap();
        assert!(outcome == Committed::Stored || outcome == Committed::Newer(put), "{outcome:?}");
        assert_eq!(read(&here, &name).await.as_deref(), Some("new"), "{turn}");
    }
}

pub async fn one_of_many_claims_is_granted<H: FullHarness>(h: &H) {
    let backends: Vec<_> = (0..3).map(|_| h.backend()).collect();
    for turn in 0..10 {
        let name = name(&format!("k{turn}"));
        let claims: Vec<_> = (0..30).map(|_| claim(&name)).collect();
        let sent = claims.iter().enumerate().map(|(at, claim)| backends[at % 3].claim(claim, 0));
        let answers = join_all(sent).await;
        let fences: Vec<_> = answers
            .iter()
            .filter_map(|answer| match answer {
                Ok(Claimed::Granted(grant)) => Some(grant.fence()),
                _ => None,
            })
            .collect();
        assert_eq!(fences.len(), 1, "{answers:?}");
        for answer in answers {
            match answer.unwrap() {
                Claimed::Granted(_) => {}
                Claimed::Occupied(occupied) => assert_eq!(occupied.fence, fences[0]),
                other => panic!("the answer is neither granted nor held: {other:?}"),
            }
        }
    }
}
