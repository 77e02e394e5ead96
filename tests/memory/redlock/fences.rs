//! The fencing tokens grow from holder to holder, whatever majorities they had.

use bellwether::{ErrorKind, MemoryBackend, Redlock, backend::Leases};
use testkit::faulty::{Fault, Op};
use tokio::{
    task::yield_now,
    time::{advance, sleep},
};

use super::{
    MS, kind,
    played::{LEASE, dead, occupy, seen, servers},
    shares,
};

/// Each holder has another majority, and the clocks of the servers are far apart.
#[tokio::test(start_paused = true)]
async fn tokens_grow_over_majorities_and_clocks() {
    let mut servers: Vec<MemoryBackend> = Vec::new();
    // The clock of a server in memory is that of its creation and the paused time since.
    for _ in 0..5 {
        servers.push(MemoryBackend::new());
        advance(LEASE).await;
    }
    let ahead = occupy(&servers[2], "m", LEASE).await;
    servers[2].set_fence(&ahead, 1 << 52).await.unwrap();
    servers[2].release(&ahead).await.unwrap();
    let mut last = 0;
    for at in 0..20 {
        let away = [at % 5, (at + 1 + at / 5) % 5];
        let redlock = Redlock::over(dead(&servers, &away, Fault::Refuse), "bellwether").unwrap();
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
    let (here, there) = (
        Redlock::over(servers.clone(), "bellwether"),
        Redlock::over(servers.clone(), "bellwether"),
    );
    let (here, there) = (here.unwrap(), there.unwrap());
    let first = here.mutex("m").lock().await.unwrap();
    let next = tokio::spawn({
        let mutex = here.mutex("m");
        async move { mutex.lock().await.unwrap() }
    });
    yield_now().await;
    let before = first.fence();
    first.unlock().await.unwrap();
    let next = next.await.unwrap();
    assert_eq!(next.fence(), before + 1);
    let last = next.fence();
    next.unlock().await.unwrap();
    assert!(there.reentrant_mutex("m").holder().lock().await.unwrap().fence() > last);
}

/// The token is not written to a majority, so the lock is not held.
#[tokio::test(start_paused = true)]
async fn a_lock_without_a_token_at_a_majority_is_not_held() {
    for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply] {
        let servers: [_; 3] = servers();
        let ahead = occupy(&servers[2], "m", LEASE).await;
        servers[2].set_fence(&ahead, 1 << 52).await.unwrap();
        servers[2].release(&ahead).await.unwrap();
        let faults = [(0, Op::SetFence, fault), (1, Op::SetFence, fault)];
        let redlock = Redlock::over(seen(&servers, &faults), "bellwether").unwrap();
        assert_eq!(kind(redlock.mutex("m").try_lock().await), ErrorKind::Backend);
        sleep(MS).await;
        assert_eq!(shares(&servers, "m").await, 0, "{fault:?}");
    }
}

/// A server has granted its share and misses the token. It would grant a smaller one to a later
/// majority, so its share is released, and is no part of the hold.
#[tokio::test(start_paused = true)]
async fn a_share_without_the_token_is_released() {
    for fault in [Fault::Refuse, Fault::Hang, Fault::LoseReply] {
        let servers: [_; 3] = servers();
        let ahead = occupy(&servers[2], "m", LEASE).await;
        servers[2].set_fence(&ahead, 1 << 52).await.unwrap();
        servers[2].release(&ahead).await.unwrap();
        let faults = [(0, Op::SetFence, fault)];
        let redlock = Redlock::over(seen(&servers, &faults), "bellwether").unwrap();
        let guard = redlock.mutex("m").lock().await.unwrap();
        sleep(MS).await;
        assert_eq!(shares(&servers, "m").await, 2, "{fault:?}");
        assert_eq!(shares(&servers[..1], "m").await, 0, "{fault:?}");
        guard.unlock().await.unwrap();
    }
}
