//! Names that back off after failed loads.

use crate::harness::*;

/// Longer than any command here, and a lease.
const WAIT: Duration = Duration::from_secs(40);

/// Fails a load of a name that backs off after it.
async fn failed(backend: &impl Store, name: &Name, failures: u32) -> Failure {
    let load = claim(name);
    let failure = failure(granted(backend, &load).await.0, "the database is away");
    let back_off = BackOff { wait: WAIT, failures };
    assert!(backend.fail(&load, &failure, Some(back_off)).await.unwrap());
    failure
}

/// Claims a load, which must be granted. Returns its fence and the failures before it.
async fn granted(backend: &impl Store, claim: &Claim) -> (u64, u32) {
    match backend.claim(claim, u64::MAX).await.unwrap() {
        Claimed::Granted(grant) => (grant.fence(), grant.failures()),
        other => panic!("{claim:?} was not granted: {other:?}"),
    }
}

/// Claims a load, which must be refused because the name backs off.
async fn backs_off(backend: &impl Store, name: &Name) -> (BackOff, Failure) {
    match backend.claim(&claim(name), u64::MAX).await.unwrap() {
        Claimed::BacksOff(back_off, failure) => (back_off, failure),
        other => panic!("{name:?} does not back off: {other:?}"),
    }
}

pub async fn a_name_backs_off_after_a_failed_load<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    let name = name("k");
    let failure = failed(&here, &name, 3).await;
    for backend in [&here, &there] {
        let (back_off, told) = backs_off(backend, &name).await;
        assert_eq!((back_off.failures, &told), (3, &failure));
        assert!(back_off.wait <= WAIT && back_off.wait > WAIT - MOMENT, "{back_off:?}");
    }
    h.pass(WAIT / 2).await;
    let (back_off, _) = backs_off(&there, &name).await;
    assert!(back_off.wait <= WAIT / 2 && back_off.wait > Duration::ZERO, "{back_off:?}");
    h.pass(WAIT / 2).await;
    // One of them loads, and is told how often its loads have failed; also if it asks twice.
    let load = claim(&name);
    let (fence, failures) = granted(&there, &load).await;
    assert_eq!(failures, 3);
    assert_eq!(granted(&there, &load).await, (fence, 3));
    assert!(matches!(here.claim(&claim(&name), 0).await, Ok(Claimed::Occupied(_))));
}

pub async fn failures_are_forgotten_after_a_time<H: FullHarness>(h: &H) {
    let backend = h.backend();
    failed(&backend, &name("k"), 2).await;
    h.pass(WAIT * 2 - MOMENT).await;
    let load = claim(&name("k"));
    assert_eq!(granted(&backend, &load).await.1, 2);
    backend.release(&load).await.unwrap();
    h.pass(MOMENT).await;
    assert_eq!(granted(&backend, &claim(&name("k"))).await.1, 0);
}

pub async fn a_failure_without_a_back_off_leaves_the_others<H: FullHarness>(h: &H) {
    let backend = h.backend();
    failed(&backend, &name("k"), 2).await;
    h.pass(WAIT).await;
    let load = claim(&name("k"));
    let fence = granted(&backend, &load).await.0;
    assert!(backend.fail(&load, &failure(fence, "bad input"), None).await.unwrap());
    assert_eq!(granted(&backend, &claim(&name("k"))).await.1, 2);
}

pub async fn a_back_off_of_one_name_is_not_that_of_others<H: FullHarness>(h: &H) {
    let backend = h.backend();
    failed(&backend, &name("k"), 1).await;
    begun(&backend, &claim(&name("other"))).await;
    backs_off(&backend, &name("k")).await;
}

/// The edits of an entry, each of which ends its back-off.
fn edits() -> [Edit; 4] {
    let touch = Edit::Touch { windows: Windows::fresh(TTL).error(TTL), seen: 0 };
    [Edit::Put(value("put"), TTL), touch, Edit::Expire, Edit::Invalidate]
}

pub async fn an_act_ends_a_back_off<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    for (at, edit) in edits().iter().enumerate() {
        let name = name(&format!("k{at}"));
        stored(&here, &name, "v").await;
        failed(&here, &name, 1).await;
        assert!(there.edit(&name, edit, FENCE_LIFE).await.unwrap() > 0);
        assert_eq!(granted(&here, &claim(&name)).await.1, 0, "{edit:?}");
    }
}

pub async fn a_commit_ends_a_back_off<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for ttl in [Some(TTL), None] {
        let name = name(&format!("{ttl:?}"));
        failed(&backend, &name, 1).await;
        h.pass(WAIT).await;
        let load = claim(&name);
        let grant = begun(&backend, &load).await;
        let outcome = backend.commit(&load, &grant, &value("v"), ttl).await.unwrap();
        assert!(matches!(outcome, Committed::Stored | Committed::Pushed), "{outcome:?}");
        assert_eq!(granted(&backend, &claim(&name)).await.1, 0, "{ttl:?}");
    }
}

/// The failure of a load that began before an invalidation once blocked the load that followed it.
pub async fn a_late_failure_changes_nothing<H: FullHarness>(h: &H) {
    let [here, there] = [h.backend(), h.backend()];
    let back_off = Some(BackOff { wait: WAIT, failures: 1 });
    for (at, edit) in edits().iter().enumerate() {
        let name = name(&format!("k{at}"));
        stored(&here, &name, "v").await;
        let late = claim(&name);
        let failure = failure(granted(&here, &late).await.0, "late");
        assert!(there.edit(&name, edit, FENCE_LIFE).await.unwrap() > 0);
        assert!(!here.fail(&late, &failure, back_off).await.unwrap(), "{edit:?}");
        assert_eq!(granted(&there, &claim(&name)).await.1, 0, "{edit:?}");
    }
    // The lease has ended, and another process loads.
    let late = claim(&name("lost"));
    let failure = failure(begun(&here, &late).await.fence(), "late");
    h.pass(LEASE).await;
    let next = claim(&name("lost"));
    let grant = begun(&there, &next).await;
    assert!(!here.fail(&late, &failure, back_off).await.unwrap());
    assert_eq!(begun(&there, &next).await.fence(), grant.fence());
    there.release(&next).await.unwrap();
    begun(&there, &claim(&name("lost"))).await;
}

pub async fn a_failure_sent_twice_backs_off_once<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let load = claim(&name("k"));
    let failure = failure(begun(&backend, &load).await.fence(), "the database is away");
    let back_off = BackOff { wait: WAIT, failures: 1 };
    assert!(backend.fail(&load, &failure, Some(back_off)).await.unwrap());
    h.pass(WAIT / 2).await;
    assert!(!backend.fail(&load, &failure, Some(back_off)).await.unwrap());
    assert!(backs_off(&backend, &name("k")).await.0.wait <= WAIT / 2);
}

pub async fn a_claim_gets_a_newer_entry_though_the_name_backs_off<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let fence = stored(&backend, &name("k"), "v").await;
    failed(&backend, &name("k"), 1).await;
    let newer = backend.claim(&claim(&name("k")), 0).await.unwrap();
    assert_eq!(newer, Claimed::Newer(value("v").with_fence(fence)));
    backs_off(&backend, &name("k")).await;
}

/// An error of a loader may be any bytes.
pub async fn a_failure_is_told_as_it_was<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for (number, text) in ["", "7,8,9,f", "a\0b\r\n,ü", "%d+"].into_iter().enumerate() {
        let name = name(&format!("k{number}"));
        let load = claim(&name);
        let failure = failure(begun(&backend, &load).await.fence(), text);
        let back_off = BackOff { wait: WAIT, failures: 1 };
        assert!(backend.fail(&load, &failure, Some(back_off)).await.unwrap());
        assert_eq!(backs_off(&backend, &name).await.1, failure);
    }
}
