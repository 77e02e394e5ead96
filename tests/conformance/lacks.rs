//! The capabilities that a majority of servers lacks, and how it says so.
//!
//! A rule that needs one of them is no test of a majority. Each test here fails if the majority
//! gains the capability. The rules must then be moved to the majority.

use bellwether::{
    backend::{Tick, TickStep},
    lock::Majority,
};

use crate::harness::*;

/// Fails to compile if a type implements a trait: the call is ambiguous then.
macro_rules! is_not {
    ($type:ty: $capability:path) => {{
        trait Lacks<A> {
            fn check() {}
        }
        impl<T> Lacks<()> for T {}
        struct Has;
        impl<T: $capability> Lacks<Has> for T {}
        <$type as Lacks<_>>::check();
    }};
}

/// The queues of several servers would have several orders. So no release tells a claim of its
/// turn: it wakes all that listen.
pub async fn queues<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name_in("conformance", Family::Redlock, "k");
    let [holder, waiting] = [(); 2].map(|()| claim(&name));
    granted(&backend, &holder).await;
    held(&backend, &waiting).await;
    let kept = backend.keep(std::slice::from_ref(&waiting), LEASE).await.unwrap();
    assert!(kept.has_lapsed, "the claim has a queue entry");
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake);
    granted(&backend, &waiting).await;
}

/// A majority cannot count. Five servers with three permits each have room for five holders at
/// three servers each. The majority therefore refuses every mode but the exclusive one.
pub async fn modes<H: Harness>(h: &H) {
    let (backend, name) = h.one();
    for mode in [Mode::Fair, Mode::Read, Mode::Write, Mode::Permit { limit: 3, count: 1 }] {
        let claim = claim_in(mode, &name);
        let refusals = [
            backend.acquire(&claim).await.map(|answer| matches!(answer, Claimed::Granted(_))),
            backend.pass(&claim, &claim).await.map(|grant| grant.is_some()),
            backend.clear(&name, mode).await,
        ];
        for refusal in refusals {
            let error = refusal.expect_err("the mode was accepted");
            assert_eq!(error.kind(), BackendErrorKind::Refused, "{mode:?}");
        }
    }
}

/// A majority does not read back what another one has set, so it refuses to keep marks.
pub async fn marks<H: Harness>(h: &H) {
    let backend = h.backend();
    let claim = claim(&name("k"));
    granted(&backend, &claim).await;
    let tick = Tick { at: 1, step: TickStep::Begin, kept: LEASE };
    let error = backend.mark(&claim, tick).await.expect_err("the mark was set");
    assert_eq!(error.kind(), BackendErrorKind::Refused);
    assert!(backend.release(&claim).await.unwrap());
}

/// An entry is valid by its fence. A majority does not read back what the last one of
/// its servers wrote, so it is no [`Store`].
pub async fn entries<H: Harness>(_: &H) {
    is_not!(Majority: Store);
}

/// A latch that is counted down at different majorities has a different count at each server. So
/// it is part of [`Store`] as well.
pub async fn latches<H: Harness>(h: &H) {
    entries(h).await;
}
