//! The capabilities that a majority of servers lacks, and how it says so.
//!
//! A rule that needs one of them is no test of a majority. Each test here fails if the majority
//! gains the capability. The rules must then be moved to the majority.

use bellwether::{
    backend::{Acquired, Change, Latches, Leases, Mode, Store},
    error::BackendErrorKind,
    key::Family,
    lock::Majority,
};

use crate::harness::{Harness, claim, claim_in, granted, held, listen, name, name_in, next};

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

/// Each server counts for itself, so the servers have no growing number in common.
pub async fn fences<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    for _ in 0..2 {
        let claim = claim(&name);
        assert_eq!(granted(&backend, &claim).await.fence(), 0);
        assert!(backend.release(&claim).await.unwrap());
    }
}

/// One server has the queue, and its release gives its own lease to the next claim only. The claim
/// therefore asks all servers, and has its turn by then.
pub async fn handover<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name_in("conformance", Family::Lock, "k");
    let [holder, mut next_holder] = [(); 2].map(|()| claim(&name));
    next_holder.takes_handover = true;
    granted(&backend, &holder).await;
    held(&backend, &next_holder).await;
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Turn(next_holder.owner));
    assert_eq!(backend.holder(&name, Mode::Exclusive).await.unwrap(), None);
    granted(&backend, &next_holder).await;
}

/// A majority cannot count. Five servers with three permits each have room for five holders at
/// three servers each. The majority therefore refuses every mode but the exclusive one.
pub async fn modes<H: Harness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    for mode in [Mode::Fair, Mode::Read, Mode::Write, Mode::Permit { limit: 3, count: 1 }] {
        let claim = claim_in(mode, &name);
        let refusals = [
            backend.acquire(&claim).await.map(|answer| matches!(answer, Acquired::Granted(_))),
            backend.pass(&claim, &claim).await.map(|grant| grant.is_some()),
            backend.holder(&name, mode).await.map(|holder| holder.is_some()),
            backend.clear(&name, mode).await,
        ];
        for refusal in refusals {
            let error = refusal.expect_err("the mode was accepted");
            assert_eq!(error.kind(), BackendErrorKind::Refused, "{mode:?}");
        }
    }
}

/// An entry is valid by its fence. A majority has no fences, so it is no [`Store`].
pub async fn entries<H: Harness>(_: &H) {
    is_not!(Majority: Store);
}

/// A latch that is counted down at different majorities has a different count at each server. A
/// majority therefore has no [`Latches`].
pub async fn latches<H: Harness>(_: &H) {
    is_not!(Majority: Latches);
}
