//! A lease that several readers share, or that one writer holds alone.

use bellwether::{
    backend::{Change, Claim, Leases, Mode, Renewal},
    error::BackendErrorKind,
    key::Name,
};
use testkit::queue_entry_life;

use crate::harness::{
    FullHarness, LEASE, MOMENT, claim, claim_in, granted, handed_over, held, listen, name, next,
};

fn reader(name: &Name) -> Claim {
    claim_in(Mode::Read, name)
}

fn writer(name: &Name) -> Claim {
    claim_in(Mode::Write, name)
}

pub async fn readers_hold_together<H: FullHarness>(h: &H) {
    let (here, there) = (h.backend(), h.backend());
    let name = name("k");
    let (first, second, third) = (reader(&name), reader(&name), writer(&name));
    assert_eq!(granted(&here, &first).await.fence(), 0);
    granted(&there, &second).await;
    let occupied = held(&there, &third).await;
    assert_eq!((occupied.fence, occupied.holders), (0, 2));
    assert!(occupied.remaining > LEASE - MOMENT && occupied.remaining <= LEASE, "{occupied:?}");
    assert!(here.release(&first).await.unwrap());
    assert_eq!(held(&there, &third).await.holders, 1);
    assert!(there.release(&second).await.unwrap());
    granted(&there, &third).await;
}

pub async fn a_writer_holds_alone<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (first, second, third) = (writer(&name), reader(&name), writer(&name));
    let fence = granted(&backend, &first).await.fence();
    for other in [&second, &third] {
        let occupied = held(&backend, other).await;
        assert_eq!((occupied.fence, occupied.holders), (fence, 1));
    }
    assert_eq!(
        backend.renew(&[second.clone(), first.clone()]).await.unwrap(),
        [Renewal::NotHeld, Renewal::Held]
    );
    assert!(backend.release(&first).await.unwrap());
    granted(&backend, &second).await;
    assert!(backend.release(&second).await.unwrap());
    assert!(granted(&backend, &third).await.fence() > fence);
}

pub async fn a_reader_sent_twice_counts_once<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (first, other) = (reader(&name), writer(&name));
    granted(&backend, &first).await;
    granted(&backend, &first).await;
    assert_eq!(held(&backend, &other).await.holders, 1);
    // The same holds while a writer waits.
    granted(&backend, &first).await;
    assert!(backend.release(&first).await.unwrap());
    assert!(!backend.release(&first).await.unwrap());
    granted(&backend, &other).await;
}

pub async fn a_reader_waits_behind_a_writer<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (first, second, late) = (reader(&name), writer(&name), reader(&name));
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
    let backend = h.backend();
    let name = name("k");
    let now = writer(&name);
    let (first, second) = (reader(&name), reader(&name));
    let (next_writer, late) = (writer(&name), reader(&name));
    granted(&backend, &now).await;
    for claim in [&first, &second, &next_writer, &late] {
        held(&backend, claim).await;
    }
    let mut changes = listen(&backend, &name).await;
    backend.release(&now).await.unwrap();
    // Both readers hold the lock before they have asked again.
    handed_over(&mut changes, &first).await;
    handed_over(&mut changes, &second).await;
    assert_eq!(backend.holder(&name, Mode::Read).await.unwrap().unwrap().holders, 2);
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
    let backend = h.backend();
    let name = name("k");
    let (first, second, late) = (reader(&name), writer(&name), reader(&name));
    granted(&backend, &first).await;
    held(&backend, &second).await;
    held(&backend, &late).await;
    let mut changes = listen(&backend, &name).await;
    assert!(!backend.release(&second).await.unwrap());
    handed_over(&mut changes, &late).await;
    granted(&backend, &late).await;
}

pub async fn a_dead_reader_ends_with_its_lease<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (dead, alive, other) = (reader(&name), reader(&name), writer(&name));
    granted(&backend, &dead).await;
    h.pass(LEASE / 2).await;
    granted(&backend, &alive).await;
    assert_eq!(held(&backend, &other).await.holders, 2);
    h.pass(LEASE / 2).await;
    assert_eq!(
        backend.renew(&[dead.clone(), alive.clone()]).await.unwrap(),
        [Renewal::NotHeld, Renewal::Held]
    );
    assert_eq!(held(&backend, &other).await.holders, 1);
    assert!(!backend.release(&dead).await.unwrap());
    h.pass(LEASE).await;
    granted(&backend, &other).await;
}

pub async fn a_renewed_reader_lasts<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (first, other) = (reader(&name), writer(&name));
    granted(&backend, &first).await;
    for _ in 0..4 {
        h.pass(LEASE / 2).await;
        assert_eq!(backend.renew(std::slice::from_ref(&first)).await.unwrap(), [Renewal::Held]);
    }
    let occupied = held(&backend, &other).await;
    assert!(occupied.remaining > LEASE - MOMENT, "{occupied:?}");
    h.pass(LEASE).await;
    assert_eq!(backend.renew(&[first]).await.unwrap(), [Renewal::NotHeld]);
}

pub async fn the_only_reader_becomes_the_writer<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let (mine, other, up) = (reader(&name), reader(&name), writer(&name));
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
    let backend = h.backend();
    let name = name("k");
    let (mine, down) = (writer(&name), reader(&name));
    let (waiting, last) = (reader(&name), writer(&name));
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
    let backend = h.backend();
    let name = name("k");
    let (first, second) = (reader(&name), writer(&name));
    granted(&backend, &first).await;
    h.pass(LEASE).await;
    assert_eq!(backend.pass(&first, &writer(&name)).await.unwrap(), None);
    granted(&backend, &second).await;
    assert_eq!(backend.pass(&first, &writer(&name)).await.unwrap(), None);
    h.pass(LEASE).await;
    assert_eq!(backend.pass(&second, &reader(&name)).await.unwrap(), None);
}

pub async fn only_some_modes_pass<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    let permit = claim_in(Mode::Permit { limit: 1, count: 1 }, &name);
    for (from, to) in [
        (claim(&name), writer(&name)),
        (reader(&name), reader(&name)),
        (writer(&name), claim(&name)),
        (permit.clone(), permit),
    ] {
        granted(&backend, &from).await;
        let error = backend.pass(&from, &to).await.unwrap_err();
        assert_eq!(error.kind(), BackendErrorKind::Refused);
        assert!(backend.release(&from).await.unwrap());
    }
}

pub async fn read_and_write_leases_can_be_looked_at_and_cleared<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = name("k");
    assert_eq!(backend.holder(&name, Mode::Read).await.unwrap(), None);
    assert_eq!(backend.holder(&name, Mode::Write).await.unwrap(), None);
    assert!(!backend.clear(&name, Mode::Read).await.unwrap());
    let (first, second, third) = (reader(&name), reader(&name), writer(&name));
    granted(&backend, &first).await;
    granted(&backend, &second).await;
    held(&backend, &third).await;
    let occupied = backend.holder(&name, Mode::Read).await.unwrap().unwrap();
    assert_eq!((occupied.fence, occupied.holders), (0, 2));
    assert!(occupied.remaining > LEASE - MOMENT && occupied.remaining <= LEASE, "{occupied:?}");
    assert_eq!(backend.holder(&name, Mode::Write).await.unwrap(), None);
    let mut changes = listen(&backend, &name).await;
    assert!(backend.clear(&name, Mode::Read).await.unwrap());
    assert_eq!(next(&mut changes).await, Change::Wake);
    assert_eq!(
        backend.renew(&[first, second]).await.unwrap(),
        [Renewal::NotHeld, Renewal::NotHeld]
    );
    assert_eq!(backend.holder(&name, Mode::Read).await.unwrap(), None);
    // The queue is empty as well: a reader need not wait behind the writer.
    let reads = reader(&name);
    granted(&backend, &reads).await;
    backend.release(&reads).await.unwrap();
    let fence = granted(&backend, &third).await.fence();
    assert_eq!(backend.holder(&name, Mode::Write).await.unwrap().unwrap().fence, fence);
    assert!(backend.clear(&name, Mode::Write).await.unwrap());
    assert!(!backend.release(&third).await.unwrap());
}
