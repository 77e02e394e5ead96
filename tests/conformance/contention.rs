//! Several processes at once.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use bellwether::backend::{Acquired, Claimed, Committed, Leases, Store};
use futures_util::future::join_all;

use crate::harness::{FENCE_LIFE, Harness, TTL, begun, claim, name, read, value};

pub async fn contenders_never_hold_together<H: Harness>(h: &H) {
    let busy = Arc::new(AtomicBool::new(false));
    let fences = Arc::new(Mutex::new(Vec::new()));
    let contenders = (0..4).map(async |_| {
        let backend = h.backend();
        let name = name("k");
        let mut rounds = 0;
        while rounds < 25 {
            let claim = claim(&name);
            let Acquired::Granted(grant) = backend.acquire(&claim).await.unwrap() else {
                tokio::task::yield_now().await;
                continue;
            };
            assert!(!busy.swap(true, Ordering::SeqCst), "two hold at once");
            fences.lock().unwrap().push(grant.fence());
            // Others get their turn while it is held.
            tokio::task::yield_now().await;
            busy.store(false, Ordering::SeqCst);
            assert!(backend.release(&claim).await.unwrap());
            rounds += 1;
        }
    });
    join_all(contenders).await;
    let fences = fences.lock().unwrap();
    assert_eq!(fences.len(), 100);
    assert!(fences.is_sorted_by(|a, b| a < b), "fences went back: {fences:?}");
}

/// The commit is on its way when the name is invalidated: whichever comes first, nothing is left.
pub async fn an_invalidation_wins_against_any_commit<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    for turn in 0..60 {
        let name = name(&format!("k{turn}"));
        let claim = claim(&name);
        let grant = begun(&here, &claim).await;
        let old = value("old");
        let commit = here.commit(&claim, &grant, &old, Some(TTL));
        let invalidate = there.invalidate(&name, FENCE_LIFE);
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

pub async fn a_put_wins_against_any_commit<H: Harness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    for turn in 0..60 {
        let name = name(&format!("k{turn}"));
        let claim = claim(&name);
        let grant = begun(&here, &claim).await;
        let (old, new) = (value("old"), value("new"));
        let commit = here.commit(&claim, &grant, &old, Some(TTL));
        let put = there.put(&name, &new, TTL, FENCE_LIFE);
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

pub async fn one_of_many_claims_is_granted<H: Harness>(h: &H) {
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
                Claimed::Held(occupied) => assert_eq!(occupied.fence, fences[0]),
                other => panic!("neither granted nor held: {other:?}"),
            }
        }
    }
}
