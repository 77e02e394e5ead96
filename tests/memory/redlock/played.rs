//! Servers in memory, and the faults of the operations of one client.

use bellwether::{Redlock, lock::MutexGuard};

use super::name;
use crate::prelude::*;

pub const LEASE: Duration = Duration::from_secs(10);
/// The time that one server may take to answer.
pub const ANSWER: Duration = Duration::from_millis(50);

pub fn servers<const N: usize>() -> [MemoryBackend; N] {
    std::array::from_fn(|_| MemoryBackend::new())
}

pub fn majority<B: Store + Clone>(servers: &[B]) -> Redlock {
    Redlock::over(servers.iter().cloned(), "bellwether").unwrap()
}

/// Acquires the lock in a task.
pub fn locking(redlock: &Redlock) -> JoinHandle<MutexGuard> {
    let mutex = redlock.mutex("m").lease(LEASE);
    spawn(async move { mutex.lock().await.unwrap() })
}

/// Returns the same servers as one client sees them, some of them with a fault.
pub fn seen(servers: &[MemoryBackend], faults: &[(usize, Op, Fault)]) -> Vec<Faulty> {
    let one = |(at, server): (usize, &MemoryBackend)| {
        let faults: Vec<_> = faults.iter().filter(|fault| fault.0 == at).copied().collect();
        let affect = move |op| faults.iter().find(|fault| fault.1 == op).map(|fault| fault.2);
        Faulty::over(server.clone(), affect)
    };
    servers.iter().enumerate().map(one).collect()
}

/// Returns servers of which some answer nothing.
pub fn dead(servers: &[MemoryBackend], which: &[usize], fault: Fault) -> Vec<Faulty> {
    let one = |(at, server): (usize, &MemoryBackend)| {
        let fault = which.contains(&at).then_some(fault);
        Faulty::over(server.clone(), move |_| fault)
    };
    servers.iter().enumerate().map(one).collect()
}

/// Acquires the lock for another owner at one server.
pub async fn occupy(server: &MemoryBackend, key: &str, lease: Duration) -> Claim {
    let claim = Claim::new(name(key), Mode::Exclusive, lease, lease);
    server.acquire(&claim).await.unwrap();
    claim
}

/// Has a server's fence be far ahead of the others.
pub async fn advance_fence(server: &MemoryBackend) {
    let ahead = occupy(server, "m", LEASE).await;
    server.set_fence(&ahead, 1 << 52).await.unwrap();
    server.release(&ahead).await.unwrap();
}
