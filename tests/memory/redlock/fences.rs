//! The fencing tokens grow from holder to holder, whatever majorities they had.

use tokio::{task::yield_now, time::advance};

use super::{
    played::{LEASE, advance_fence, dead, locking, majority, seen, servers},
    shares,
};
use crate::prelude::*;

/// Each holder has another majority, and the clocks of the servers are far apart.
#[tokio::test(start_paused = true)]
async fn tokens_grow_over_majorities_and_clocks() {
    let mut servers: Vec<MemoryBackend> = Vec::new();
    // The clock of a server in memory is that of its creation and the paused time since.
    for _ in 0..5 {
        servers.push(MemoryBackend::new());
        advance(LEASE).await;
    }
    advance_fence(&servers[2]).await;
    let mut last = 0;
    for at in 0..20 {
        let away = [at % 5, (at + 1 + at / 5) % 5];
        let redlock = majority(&dead(&servers, &away, Fault::Refuse));
        let guard = redlock.mutex("m").lock().await.unwrap();
        assert!(guard.fence() > last, "{} after {last}, without {away:?}", guard.fence());
        last = guard.fence();
        let holder = redlock.mutex("m").holder().await.unwrap().unwrap();
        assert_eq!(holder.fence, last);
        guard.unlock().await.unwrap();
    }
    assert!(last > 1 << 52, "the server that was ahead had no part");
}

/// The next caller of the process has a greater token, and so has the next process.
#[tokio::test(start_paused = true)]
async fn tokens_grow_over_passes() {
    let servers: [_; 3] = servers();
    let here = majority(&servers);
    let there = majority(&servers);
    let first = here.mutex("m").lock().await.unwrap();
    let next = locking(&here);
    yield_now().await;
    let before = first.fence();
    first.unlock().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(next.fence(), before + 1);
    let last = next.fence();
    next.unlock().await.unwrap();
    assert!(there.reentrant_mutex("m").lock().await.unwrap().fence() > last);
}

/// A share without the token is no part of the hold: its server would grant a smaller token to a
/// later majority, so the share is released. Without the token at a majority, the lock is not held.
#[tokio::test(start_paused = true)]
async fn a_share_without_the_token_is_released() {
    for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply] {
        for failing in 1..=2 {
            let servers: [_; 3] = servers();
            advance_fence(&servers[2]).await;
            let faults = [(0, Op::SetFence, fault), (1, Op::SetFence, fault)];
            let redlock = majority(&seen(&servers, &faults[..failing]));
            let locked = redlock.mutex("m").try_lock().await;
            sleep(MS).await;
            let held = if failing == 1 { 2 } else { 0 };
            assert_eq!(shares(&servers, "m").await, held, "{fault:?}");
            assert_eq!(shares(&servers[..1], "m").await, 0, "{fault:?}");
            match failing {
                1 => locked.unwrap().unwrap().unlock().await.unwrap(),
                _ => assert_eq!(kind(locked), ErrorKind::Backend),
            }
        }
    }
}
