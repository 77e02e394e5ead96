//! The queues of the modes: how their entries are kept, and what a release hands over.

use bellwether::backend::Kept;

use crate::harness::*;

fn lock(mode: Mode) -> Name {
    name_in("conformance", Family::Lock, &format!("{mode:?}"))
}

/// Keeps the entries of some claims for their usual time.
async fn keep<B: Leases>(backend: &B, claims: &[&Claim]) -> Kept {
    let claims: Vec<_> = claims.iter().map(|claim| (*claim).clone()).collect();
    backend.keep(&claims, queue_entry_life()).await.unwrap()
}

pub async fn one_request_keeps_all_entries_of_a_process<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for mode in ALONE {
        let name = lock(mode);
        let [holder, first, second, other] = claims(mode, &name);
        let other = elsewhere(other);
        granted(&backend, &holder).await;
        for claim in [&first, &other, &second] {
            held(&backend, claim).await;
        }
        for _ in 0..8 {
            h.pass(queue_entry_life() / 4).await;
            // Only one of the two claims is named.
            let kept = keep(&backend, &[&first]).await;
            assert!(!kept.has_lapsed && kept.stands == [true], "{kept:?}");
            assert!(kept.remaining <= LEASE && kept.remaining > LEASE - MOMENT, "{kept:?}");
        }
        let mut changes = listen(&backend, &name).await;
        assert!(backend.release(&holder).await.unwrap());
        handed_over(&mut changes, &first).await;
        assert!(backend.release(&first).await.unwrap());
        handed_over(&mut changes, &second).await;
    }
}

pub async fn a_process_learns_that_its_entries_are_gone<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for mode in ALONE {
        let name = lock(mode);
        let [holder, first, second, never] = claims(mode, &name);
        granted(&backend, &holder).await;
        held(&backend, &first).await;
        held(&backend, &second).await;
        assert!(!backend.release(&first).await.unwrap());
        let all = [first, second, never];
        let kept = keep(&backend, &all.each_ref()).await;
        assert!(!kept.has_lapsed && kept.stands == [false, true, false], "{kept:?}");
        h.pass(queue_entry_life()).await;
        let kept = keep(&backend, &all.each_ref()).await;
        assert!(kept.has_lapsed, "{kept:?}");
        backend.clear(&name, mode).await.unwrap();
    }
}

/// The holder died without a release, and no claim asks.
pub async fn keeping_entries_hands_a_free_lease_over<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for mode in ALONE {
        let name = lock(mode);
        let [mut dead, first, second] = claims(mode, &name);
        dead.lease = queue_entry_life();
        granted(&backend, &dead).await;
        held(&backend, &first).await;
        held(&backend, &second).await;
        let mut changes = listen(&backend, &name).await;
        let keep = async || {
            h.pass(queue_entry_life() / 4).await;
            keep(&backend, &[&second]).await
        };
        let mut kept = keep().await;
        for _ in 1..4 {
            // On a slow machine the holder dies before.
            kept = if kept.handed_over { kept } else { keep().await };
        }
        handed_over(&mut changes, &first).await;
        assert!(kept.remaining <= handover_life() && !kept.remaining.is_zero(), "{kept:?}");
        assert!(renewed(&backend, &first).await);
    }
}

/// The process in front died, and no client hears of the release. The claims behind it waited until
/// they next kept their entries: up to 0.64 s after the end of the entry in front.
///
/// A push that no client hears is no handover. It was counted as one, so that the process took the
/// holder for one that may not publish, and looked every 80 ms for a minute.
pub async fn a_dead_waiter_in_front_says_when_its_entry_ends<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let orders = [
        [Mode::Fair; 3],
        [Mode::Write; 3],
        [Mode::Write, Mode::Read, Mode::Write],
        [Mode::Write, Mode::Write, Mode::Read],
        [PERMIT; 3],
    ];
    for (number, modes) in orders.into_iter().enumerate() {
        let name = name(&format!("dead {number}"));
        let [holder, dead, alive] = modes.map(|mode| claim_in(mode, &name));
        let dead = elsewhere(dead);
        granted(&backend, &holder).await;
        held(&backend, &dead).await;
        h.pass(queue_entry_life() / 2).await;
        held(&backend, &alive).await;
        assert!(backend.release(&holder).await.unwrap());
        let kept = keep(&backend, &[&alive]).await;
        let left = kept.remaining;
        assert!(left <= queue_entry_life() / 2 && !left.is_zero(), "{modes:?}: {left:?}");
        assert!(!kept.handed_over, "{modes:?}: no client heard of it");
        let mut changes = listen(&backend, &name).await;
        h.pass(left).await;
        let kept = keep(&backend, &[&alive]).await;
        assert!(kept.handed_over, "{modes:?}: the next claim heard of it");
        handed_over(&mut changes, &alive).await;
        assert!(backend.release(&alive).await.unwrap());
    }
}

/// Two permits, of which a claim asks for so many.
fn of_two(count: u32) -> Mode {
    Mode::Permit { limit: 2, count }
}

/// The first waiter needs the whole lock, and its process died. The next one fits beside the
/// holder, which stays.
pub async fn a_dead_waiter_in_front_lets_those_pass_that_fit<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let orders = [[of_two(1), of_two(2), of_two(1)], [Mode::Read, Mode::Write, Mode::Read]];
    for modes in orders {
        let name = lock(modes[0]);
        let [holder, dead, alive] = modes.map(|mode| claim_in(mode, &name));
        granted(&backend, &holder).await;
        held(&backend, &elsewhere(dead)).await;
        held(&backend, &alive).await;
        let mut changes = listen(&backend, &name).await;
        h.pass(queue_entry_life() * 3 / 4).await;
        keep(&backend, &[&alive]).await;
        h.pass(queue_entry_life() / 2).await;
        let kept = keep(&backend, &[&alive]).await;
        assert!(kept.handed_over && !kept.has_lapsed, "{modes:?}: {kept:?}");
        handed_over(&mut changes, &alive).await;
        for claim in [holder, alive] {
            assert!(backend.release(&claim).await.unwrap());
        }
    }
}

/// The process of the first waiter stood still. It comes back and asks, and is behind the next one.
pub async fn a_waiter_that_comes_back_lets_those_pass_that_fit<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock(PERMIT);
    let [holder, still, alive] =
        [of_two(1), of_two(2), of_two(1)].map(|mode| claim_in(mode, &name));
    let still = elsewhere(still);
    granted(&backend, &holder).await;
    held(&backend, &still).await;
    held(&backend, &alive).await;
    let mut changes = listen(&backend, &name).await;
    h.pass(queue_entry_life() * 3 / 4).await;
    keep(&backend, &[&alive]).await;
    h.pass(queue_entry_life() / 2).await;
    held(&backend, &still).await;
    assert!(keep(&backend, &[&alive]).await.handed_over);
    handed_over(&mut changes, &alive).await;
}

/// A permit is given back, and no client hears of it. Another permit stays out.
pub async fn a_permit_that_no_client_heard_of_is_handed_over_later<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock(PERMIT);
    let [stays, gone, waiting] = claims(of_two(1), &name);
    granted(&backend, &stays).await;
    granted(&backend, &gone).await;
    held(&backend, &waiting).await;
    assert!(backend.release(&gone).await.unwrap());
    for _ in 0..3 {
        let kept = keep(&backend, &[&waiting]).await;
        assert!(!kept.handed_over && kept.remaining <= queue_entry_life(), "{kept:?}");
    }
    let mut changes = listen(&backend, &name).await;
    assert!(keep(&backend, &[&waiting]).await.handed_over);
    handed_over(&mut changes, &waiting).await;
}

/// The holders died. One of those that may have the lock now asks before the queue is looked at.
/// What it holds does not hide that the others may have it, too.
pub async fn a_claim_that_asks_by_itself_hides_no_others<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for (died, waits) in [(of_two(2), of_two(1)), (Mode::Write, Mode::Read)] {
        let name = lock(waits);
        let [mut died, asks, waiting] = [died, waits, waits].map(|mode| claim_in(mode, &name));
        let asks = elsewhere(asks);
        died.lease = queue_entry_life() / 2;
        granted(&backend, &died).await;
        held(&backend, &asks).await;
        held(&backend, &waiting).await;
        let mut changes = listen(&backend, &name).await;
        h.pass(queue_entry_life() * 3 / 4).await;
        granted(&backend, &asks).await;
        assert!(keep(&backend, &[&waiting]).await.handed_over, "{waits:?}");
        handed_over(&mut changes, &waiting).await;
    }
}

/// A writer holds, and the process of another one died that is between two readers. Its entry is
/// known to be dead before the holder releases.
pub async fn a_dead_writer_between_readers_is_passed_over<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock(Mode::Write);
    let [holder, dead] = claims(Mode::Write, &name);
    let [first, second] = claims(Mode::Read, &name);
    granted(&backend, &holder).await;
    held(&backend, &first).await;
    held(&backend, &elsewhere(dead)).await;
    held(&backend, &second).await;
    let mut changes = listen(&backend, &name).await;
    for _ in 0..3 {
        h.pass(queue_entry_life() * 2 / 5).await;
        keep(&backend, &[&second]).await;
    }
    assert!(backend.release(&holder).await.unwrap());
    handed_over(&mut changes, &first).await;
    keep(&backend, &[&second]).await;
    handed_over(&mut changes, &second).await;
}

/// A process with several waiters stands still, and its connection is still there. One of the
/// waiters is handed the lease. When that has ended, no entry of the others is left.
pub async fn a_process_that_stands_still_costs_one_handover<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for mode in ALONE {
        let name = lock(mode);
        let [holder, alive] = claims(mode, &name);
        let still = claims::<3>(mode, &name);
        let alive = elsewhere(alive);
        granted(&backend, &holder).await;
        for claim in still.iter().chain([&alive]) {
            held(&backend, claim).await;
        }
        let mut changes = listen(&backend, &name).await;
        assert!(backend.release(&holder).await.unwrap());
        handed_over(&mut changes, &still[0]).await;
        held(&backend, &alive).await;
        for _ in 0..4 {
            h.pass(handover_life() / 4).await;
            keep(&backend, &[&alive]).await;
        }
        granted(&backend, &alive).await;
        assert!(!renewed(&backend, &still[0]).await);
        assert!(!backend.release(&still[0]).await.unwrap());
    }
}

pub async fn a_release_grants_all_readers_at_the_head<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock(Mode::Read);
    let [holder, last] = claims(Mode::Write, &name);
    let [behind] = claims(Mode::Read, &name);
    let readers = claims::<5>(Mode::Read, &name);
    granted(&backend, &holder).await;
    for claim in readers.iter().chain([&last, &behind]) {
        held(&backend, claim).await;
    }
    let mut changes = listen(&backend, &name).await;
    assert!(backend.release(&holder).await.unwrap());
    for reader in &readers {
        let handover = handed_over(&mut changes, reader).await;
        assert!(handover.ends >= handover_life() / 2, "{handover:?}");
    }
    assert_eq!(testkit::holder(&backend, &name, Mode::Read).await.unwrap().unwrap().holders, 5);
    assert_eq!(backend.renew(&readers).await.unwrap(), [Renewal::Held; 5]);
    for reader in &readers {
        assert_eq!(testkit::holder(&backend, &name, Mode::Write).await.unwrap(), None);
        assert!(backend.release(reader).await.unwrap());
    }
    handed_over(&mut changes, &last).await;
    assert!(backend.release(&last).await.unwrap());
    handed_over(&mut changes, &behind).await;
}

pub async fn permits_are_served_in_order<H: FullHarness>(h: &H) {
    let backend = h.backend();
    let name = lock(PERMIT);
    let of = |count| claim_in(Mode::Permit { limit: 3, count }, &name);
    let [one, two, many, few, late] = [1, 2, 3, 1, 1].map(of);
    granted(&backend, &one).await;
    granted(&backend, &two).await;
    held(&backend, &many).await;
    held(&backend, &few).await;
    held(&backend, &late).await;
    let mut changes = listen(&backend, &name).await;
    // Two permits are free, and the first waiter wants three.
    assert!(backend.release(&two).await.unwrap());
    let occupied = held(&backend, &few).await;
    assert_eq!(occupied.holders, 1);
    assert!(occupied.remaining <= queue_entry_life(), "{occupied:?}");
    assert!(backend.release(&one).await.unwrap());
    handed_over(&mut changes, &many).await;
    // The rest is handed over together.
    assert!(backend.release(&many).await.unwrap());
    handed_over(&mut changes, &few).await;
    handed_over(&mut changes, &late).await;
    assert_eq!(backend.renew(&[few, late]).await.unwrap(), [Renewal::Held; 2]);
}

pub async fn a_release_without_waiters_tells_nothing<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for mode in [Mode::Exclusive, Mode::Fair, Mode::Read, Mode::Write, PERMIT] {
        let name = lock(mode);
        let [holder] = claims(mode, &name);
        let mut changes = listen(&backend, &name).await;
        granted(&backend, &holder).await;
        assert!(backend.release(&holder).await.unwrap());
        let fence = invalidated(&backend, &name).await;
        assert_eq!(next(&mut changes).await, Change::Invalidated(fence));
    }
}

/// More entries of dead processes than one script removes.
pub async fn many_dead_waiters_are_passed_over<H: FullHarness>(h: &H) {
    let backend = h.backend();
    for mode in ALONE {
        let name = lock(mode);
        let [holder, alive] = claims(mode, &name);
        granted(&backend, &holder).await;
        let dead = claims::<450>(mode, &name).map(elsewhere);
        join_all(dead.iter().map(|dead| held(&backend, dead))).await;
        h.pass(queue_entry_life()).await;
        held(&backend, &alive).await;
        let mut changes = listen(&backend, &name).await;
        assert!(backend.release(&holder).await.unwrap());
        handed_over(&mut changes, &alive).await;
        assert!(backend.release(&alive).await.unwrap());
        if mode == Mode::Exclusive {
            granted(&backend, &hasty(&name)).await;
        }
    }
}
