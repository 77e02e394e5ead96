//! A lease that several readers share, or that one writer holds alone.

use crate::harness::*;

fn reader(name: &Name) -> Claim {
    claim_in(Mode::Read, name)
}

fn writer(name: &Name) -> Claim {
    claim_in(Mode::Write, name)
}

pub async fn a_reader_waits_behind_a_writer<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let first = reader(&name);
    let second = writer(&name);
    let late = reader(&name);
    granted(&backend, &first).await;
    held(&backend, &second).await;
    let occupied = held(&backend, &late).await;
    assert!(occupied.remaining <= queue_entry_life(), "{occupied:?}");
    // A claim that does not wait cannot overtake the writer either. It gets no queue entry.
    let mut hasty = reader(&name);
    hasty.waits = false;
    held(&backend, &hasty).await;
    backend.release(&first).await.unwrap();
    held(&backend, &late).await;
    granted(&backend, &second).await;
}

pub async fn readers_and_writers_are_served_in_their_order<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let now = writer(&name);
    let first = reader(&name);
    let second = reader(&name);
    let next_writer = writer(&name);
    let late = reader(&name);
    granted(&backend, &now).await;
    for claim in [&first, &second, &next_writer, &late] {
        held(&backend, claim).await;
    }
    let mut changes = listen(&backend, &name).await;
    backend.release(&now).await.unwrap();
    // Both readers hold the lock before they have asked again.
    handed_over(&mut changes, &first).await;
    handed_over(&mut changes, &second).await;
    assert_eq!(testkit::holder(&backend, &name, Mode::Read).await.unwrap().unwrap().holders, 2);
    held(&backend, &late).await;
    held(&backend, &next_writer).await;
    granted(&backend, &second).await;
    granted(&backend, &first).await;
    held(&backend, &late).await;
    backend.release(&first).await.unwrap();
    backend.release(&second).await.unwrap();
    let fence = handed_over(&mut changes, &next_writer).await.fence;
    assert_eq!(held(&backend, &late).await.fence, fence);
    assert_eq!(granted(&backend, &next_writer).await.fence(), fence);
    backend.release(&next_writer).await.unwrap();
    handed_over(&mut changes, &late).await;
    granted(&backend, &late).await;
}

pub async fn a_writer_that_leaves_lets_readers_pass<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let first = reader(&name);
    let second = writer(&name);
    let late = reader(&name);
    granted(&backend, &first).await;
    held(&backend, &second).await;
    held(&backend, &late).await;
    let mut changes = listen(&backend, &name).await;
    assert!(!backend.release(&second).await.unwrap());
    handed_over(&mut changes, &late).await;
    granted(&backend, &late).await;
}

pub async fn the_only_reader_becomes_the_writer<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let mine = reader(&name);
    let other = reader(&name);
    let up = writer(&name);
    granted(&backend, &mine).await;
    granted(&backend, &other).await;
    assert_eq!(backend.pass(&mine, &up).await.unwrap(), None);
    backend.release(&other).await.unwrap();
    // A waiting writer does not keep the reader from the upgrade.
    let waiting = writer(&name);
    held(&backend, &waiting).await;
    let grant = backend.pass(&mine, &up).await.unwrap().unwrap();
    assert_eq!(backend.pass(&mine, &up).await.unwrap().unwrap(), grant);
    assert_eq!(held(&backend, &other).await.fence, grant.fence());
    assert_eq!(
        backend.renew(&[mine.clone(), up.clone()]).await.unwrap(),
        [Renewal::NotHeld, Renewal::Held]
    );
    assert!(!backend.release(&mine).await.unwrap());
    assert!(backend.release(&up).await.unwrap());
    assert!(granted(&backend, &waiting).await.fence() > grant.fence());
}

pub async fn a_writer_becomes_a_reader<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let mine = writer(&name);
    let down = reader(&name);
    let waiting = reader(&name);
    let last = writer(&name);
    granted(&backend, &mine).await;
    held(&backend, &waiting).await;
    held(&backend, &last).await;
    let mut changes = listen(&backend, &name).await;
    let grant = backend.pass(&mine, &down).await.unwrap().unwrap();
    assert_eq!(grant.fence(), 0);
    handed_over(&mut changes, &waiting).await;
    assert_eq!(backend.pass(&mine, &down).await.unwrap().unwrap(), grant);
    assert_eq!(
        backend.renew(&[mine.clone(), down.clone()]).await.unwrap(),
        [Renewal::NotHeld, Renewal::Held]
    );
    assert!(!backend.release(&mine).await.unwrap());
    granted(&backend, &waiting).await;
    assert_eq!(held(&backend, &last).await.holders, 2);
    backend.release(&waiting).await.unwrap();
    assert!(backend.release(&down).await.unwrap());
    granted(&backend, &last).await;
}

pub async fn an_ended_lease_does_not_pass<H: FullHarness>(h: &H) {
    let (backend, name) = h.one();
    let first = reader(&name);
    let second = writer(&name);
    granted(&backend, &first).await;
    h.pass(LEASE).await;
    assert_eq!(backend.pass(&first, &writer(&name)).await.unwrap(), None);
    granted(&backend, &second).await;
    assert_eq!(backend.pass(&first, &writer(&name)).await.unwrap(), None);
    h.pass(LEASE).await;
    assert_eq!(backend.pass(&second, &reader(&name)).await.unwrap(), None);
}

/// One holder has died, and another one that would have lasted longer has left.
pub async fn a_lock_whose_last_holder_died_is_seen_as_free<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for mode in [Mode::Read, Mode::Permit { limit: 2, count: 1 }] {
        let name = name(&format!("{mode:?}"));
        let [dead, mut left] = claims(mode, &name);
        left.lease = 3 * LEASE;
        granted(&backend, &dead).await;
        granted(&backend, &left).await;
        assert!(backend.release(&left).await.unwrap());
        h.pass(2 * LEASE).await;
        assert_eq!(testkit::holder(&backend, &name, mode).await.unwrap(), None);
    }
}

pub async fn one_dead_holder_of_several_ends_with_its_lease<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let [one, both] = [1, 2].map(|count| Mode::Permit { limit: 2, count });
    for (mode, rival) in [(Mode::Read, Mode::Write), (one, both)] {
        let name = name(&format!("{mode:?}"));
        let ([dead, alive, next], rival) = (claims(mode, &name), hasty_in(rival, &name));
        let holders =
            async || testkit::holder(&backend, &name, mode).await.unwrap().unwrap().holders;
        granted(&backend, &dead).await;
        h.pass(LEASE / 2).await;
        granted(&backend, &alive).await;
        assert_eq!((holders().await, held(&backend, &rival).await.holders), (2, 2));
        h.pass(LEASE / 2).await;
        let renewed = backend.renew(&[dead.clone(), alive.clone()]).await.unwrap();
        assert_eq!(renewed, [Renewal::NotHeld, Renewal::Held]);
        assert!(!backend.release(&dead).await.unwrap());
        assert_eq!((holders().await, held(&backend, &rival).await.holders), (1, 1));
        granted(&backend, &next).await;
        h.pass(LEASE).await;
        granted(&backend, &rival).await;
    }
}
