//! Servers in memory, and the faults of the operations of one client.

use std::time::Duration;

use bellwether::{
    MemoryBackend,
    backend::{Claim, Leases, Mode},
};
use testkit::faulty::{Fault, Faulty, Op};

use super::name;

pub const LEASE: Duration = Duration::from_secs(10);
/// The time that one server may take to answer.
pub const ANSWER: Duration = Duration::from_millis(50);

pub fn servers<const N: usize>() -> [MemoryBackend; N] {
    std::array::from_fn(|_| MemoryBackend::new())
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
