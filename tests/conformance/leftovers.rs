//! Only entries and fences stay when the work is done, and each has an end.

use crate::harness::*;

/// Runs each operation once per name.
async fn work<H: FullHarness>(h: &H) {
    let here = h.backend();
    let there = h.backend();
    for at in 0..5 {
        let name = name(&format!("k{at}"));
        let changes = listen(&there, &name).await;
        let held = claim(&name);
        granted(&here, &held).await;
        there.acquire(&hasty(&name)).await.unwrap();
        here.renew(std::slice::from_ref(&held)).await.unwrap();
        here.release(&held).await.unwrap();
        stored(&here, &name, "loaded").await;
        stored(&here, &name.clone().with_schema(3), "loaded").await;
        put(&there, &name, "put").await;
        invalidated(&here, &name).await;
        let failed = claim(&name);
        let fence = begun(&there, &failed).await.fence();
        there.fail(&failed, &failure(fence, "no such product"), None).await.unwrap();
        let handed = claim(&name);
        let grant = begun(&there, &handed).await;
        there.commit(&handed, &grant, &value("v"), None).await.unwrap();
        drop(changes);
        locks(h, at).await;
    }
    stored(&here, &name("kept"), "v").await;
}

/// Holds, awaits, passes on and releases a lease in every mode.
async fn locks<H: FullHarness>(h: &H, at: usize) {
    let here = h.backend();
    let there = h.backend();
    let name = name_in("conformance", Family::Lock, &format!("k{at}"));
    let permit = Mode::Permit { limit: 3, count: 2 };
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write, permit] {
        let (first, waiting, gone) =
            (claim_in(mode, &name), claim_in(mode, &name), claim_in(mode, &name));
        granted(&here, &first).await;
        there.acquire(&waiting).await.unwrap();
        there.acquire(&gone).await.unwrap();
        here.renew(std::slice::from_ref(&first)).await.unwrap();
        for claim in [&gone, &first] {
            here.release(claim).await.unwrap();
        }
        granted(&there, &waiting).await;
        there.release(&waiting).await.unwrap();
    }
    let (reads, writes, again) =
        (claim_in(Mode::Read, &name), claim_in(Mode::Write, &name), claim_in(Mode::Read, &name));
    granted(&here, &reads).await;
    here.pass(&reads, &writes).await.unwrap().unwrap();
    here.pass(&writes, &again).await.unwrap().unwrap();
    here.release(&again).await.unwrap();
}

pub async fn nothing_but_fences_and_entries_stays<H: FullHarness>(h: &H) {
    work(h).await;
    for key in h.keys().await {
        let (_, suffix) = key.rsplit_once("}:").unwrap();
        assert!(suffix == "f" || suffix.starts_with('e'), "{key} is left");
    }
}

pub async fn every_key_ends<H: FullHarness>(h: &H) {
    work(h).await;
    h.pass(FENCE_LIFE).await;
    assert_eq!(h.keys().await, [""; 0]);
    let backend = h.backend();
    assert_eq!(backend.get(&name("kept")).await.unwrap(), None);
}
