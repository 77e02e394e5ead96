//! Commands whose answer is lost, and commands that arrive late.

use super::{ask, settle, sources, two_over};
use crate::{origin::Origin, prelude::*};

/// Only the answer was lost: the claim holds the lease, or the commit is stored. A leader that went
/// on without its lease would load beside another process.
#[tokio::test(start_paused = true)]
async fn a_claim_or_commit_whose_answer_is_lost_is_recognised_when_it_is_sent_again() {
    for (op, fault) in [
        (Op::Claim, Fault::LoseReply),
        (Op::Commit, Fault::LoseReply),
        (Op::Commit, Fault::Double),
        (Op::Commit, Fault::Late(100 * MS)),
        (Op::Commit, Fault::Late(400 * MS)),
    ] {
        let caches = two_over(&once(op, fault));
        let origin = Origin::default();
        let sources = sources((0..20).map(|n| ask(&caches[n % 2], &origin, 500 * MS))).await;
        assert_eq!((origin.asked(), sources[&Source::Led]), (1, 1), "{op:?} {fault:?}");
        assert!(!sources.contains_key(&Source::Degraded), "{op:?} {fault:?}");
        assert_eq!(caches[0].get("k").await.unwrap().as_deref(), Some("value 1"));
        assert_eq!(caches.iter().map(|cache| cache.stats().stored).sum::<u64>(), 1);
    }
}

/// The claim was granted, its answer never came, and no caller tries again. A background task
/// releases the lease.
#[tokio::test(start_paused = true)]
async fn a_claim_of_unknown_outcome_leaves_no_orphan() {
    let faulty = Faulty::new(|op| (op == Op::Claim).then_some(Fault::LoseReply));
    let caches = two_over(&faulty);
    let origin = Origin::default();
    let answer = ask(&caches[0], &origin, MS).await.unwrap().unwrap();
    assert_eq!(answer.source, Source::Degraded);
    faulty.plan(|_| None);
    settle().await;
    let begun = Instant::now();
    assert_eq!(ask(&caches[1], &origin, MS).await.unwrap().unwrap().source, Source::Led);
    assert!(begun.elapsed() < 10 * MS, "an orphaned lease: {:?}", begun.elapsed());
}

/// A commit never arrives. The callers have their value all the same, and the next caller loads
/// anew.
#[tokio::test(start_paused = true)]
async fn a_commit_that_fails_costs_no_caller_the_value() {
    let faulty = Faulty::new(|op| (op == Op::Commit).then_some(Fault::Hang));
    let caches = two_over(&faulty);
    let origin = Origin::default();
    let answer = ask(&caches[0], &origin, MS).await.unwrap().unwrap();
    assert_eq!((answer.value.as_str(), answer.source), ("value 1", Source::Led));
    assert_eq!(caches[0].stats().unstored, 1);
    faulty.plan(|_| None);
    assert_eq!(ask(&caches[1], &origin, MS).await.unwrap().unwrap().value, "value 2");
}

/// An unanswered commit may have been refused because another process invalidated the key. A caller
/// that asked after the invalidation is not told that the value is good. The histories found this.
#[tokio::test(start_paused = true)]
async fn a_failed_commit_promises_nothing_to_a_late_joiner() {
    let faulty = Faulty::new(|op| (op == Op::Commit).then_some(Fault::Hang));
    let caches = two_over(&faulty);
    let origin = Origin::default();
    let early = ask(&caches[0], &origin, 100 * MS);
    settle().await;
    caches[1].invalidate("k").await.unwrap();
    let late = ask(&caches[0], &origin, 100 * MS);
    let sources = [early.await, late.await].map(|answer| answer.unwrap().unwrap().source);
    assert_eq!((origin.asked(), sources), (1, [Source::Led, Source::Degraded]));
}

/// The first claim is on its way for longer than its time-out. The second one is granted, and its
/// value is stored and ends. Then the first claim arrives and gets a lease that no caller knows of.
#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_after_the_commit_is_undone() {
    let lease = 10 * SECOND;
    let faulty = once(Op::Claim, Fault::Astray(700 * MS));
    let build = |faulty| {
        Cache::<String>::builder(faulty, "bellwether").lease(lease).ttl(20 * MS).build().unwrap()
    };
    let other = build(Faulty::over(faulty.inner.clone(), |_| None));
    let origin = Origin::default();
    let begun = Instant::now();
    let led = ask(&build(faulty.clone()), &origin, MS).await.unwrap().unwrap();
    assert_eq!(led.source, Source::Led);
    assert!(begun.elapsed() < 650 * MS, "the first claim is here: {:?}", begun.elapsed());
    sleep((701 * MS).saturating_sub(begun.elapsed())).await;
    let name = entry_name("bellwether", "k");
    assert!(testkit::holder(&faulty.inner, &name, Mode::Exclusive).await.unwrap().is_some());
    let led = ask(&other, &origin, MS).await.unwrap().unwrap();
    assert_eq!((led.source, origin.asked()), (Source::Led, 2));
    assert!(begun.elapsed() < lease / 8, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_failed_insert_or_invalidation_is_an_error() {
    let faulty = Faulty::new(|_| Some(Fault::Refuse));
    let [cache, _] = two_over(&faulty);
    for error in [
        cache.insert("k", &String::new()).await.unwrap_err(),
        cache.invalidate("k").await.unwrap_err(),
        cache.get("k").await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Backend);
        assert!(std::error::Error::source(&error).is_some());
    }
}
