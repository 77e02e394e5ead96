//! The faults of a round and their times, as the seed of the round plans them.
//!
//! Two kinds of faults go on side by side, one for the workers and one for the server and its
//! connections. A proxy between them would be a third fault in [`inject_server_faults`]. The
//! workers get its address in [`Fleet::start`](super::fleet::Fleet::start).

use std::time::Duration;

use fastrand::Rng;
use testkit::{Raw, RedisServer};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, sleep_until},
};

use super::{
    fleet::Fleet,
    history::{Family, Time, now},
};

/// The kinds of faults, and the pauses between them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The longest pause between two faults of workers, in milliseconds. Zero means no such faults.
    pub workers_ms: u64,
    /// The longest pause between two faults of the server, in milliseconds. Zero means no such
    /// faults.
    pub server_ms: u64,
    /// Connections are cut as well.
    pub cuts: bool,
}

/// How many keys the caches and the locks have.
#[derive(Clone, Copy)]
pub struct Names {
    pub keys: usize,
    pub locks: usize,
}

/// The leases that were deleted from outside, each with the times before and after the deletion.
pub type Evicted = Vec<(Family, String, Time, Time)>;

fn some(rng: &mut Rng, from: u64, to: u64) -> Duration {
    Duration::from_millis(rng.u64(from..to))
}

/// Kills and suspends workers until the end, and returns the number of faults.
pub async fn inject_worker_faults(
    fleet: &Mutex<Fleet>,
    faults: Faults,
    mut rng: Rng,
    end: Instant,
) -> usize {
    for count in 0.. {
        if faults.workers_ms == 0 {
            return 0;
        }
        let pause = some(&mut rng, faults.workers_ms / 4, faults.workers_ms);
        if Instant::now() + pause > end {
            return count;
        }
        sleep(pause).await;
        let process = rng.usize(..);
        let suspends = match rng.u8(0..10) {
            0..4 => None,
            4..8 => Some(some(&mut rng, 5, 300)),
            // Longer than a lease.
            _ => Some(some(&mut rng, 700, 1_500)),
        };
        match suspends {
            Some(time) => {
                let from = now();
                let slot = fleet.lock().await.signal(process, "STOP");
                sleep(time).await;
                let mut fleet = fleet.lock().await;
                fleet.signal(process, "CONT");
                fleet.suspended(slot, from);
            }
            None => {
                let wait = some(&mut rng, 0, 300);
                fleet.lock().await.kill(process).await;
                sleep(wait).await;
                fleet.lock().await.start_again(process).await;
            }
        }
    }
    unreachable!("the loop has no end")
}

/// Stalls the server, cuts connections and evicts keys until the end. Returns the number of faults
/// and the evicted leases.
pub async fn inject_server_faults(
    server: &RedisServer,
    faults: Faults,
    names: Names,
    mut rng: Rng,
    end: Instant,
) -> (usize, Evicted) {
    let mut evicted = Evicted::new();
    if faults.server_ms == 0 {
        sleep_until(end).await;
        return (0, evicted);
    }
    let mut raw = server.raw().await;
    for count in 0.. {
        let pause = some(&mut rng, faults.server_ms / 4, faults.server_ms);
        if Instant::now() + pause > end {
            return (count, evicted);
        }
        sleep(pause).await;
        match rng.u8(0..23) {
            0..5 => evicted.extend(evict(&mut raw, "l", names, &mut rng).await),
            5..8 => drop(evict(&mut raw, "f", names, &mut rng).await),
            8..11 => drop(evict(&mut raw, "e", names, &mut rng).await),
            11..13 => stall(server, some(&mut rng, 10, 200)).await,
            13..15 => stall(server, some(&mut rng, 200, 1_000)).await,
            15..17 if faults.cuts => drop(raw.kill_clients("normal").await),
            17..19 if faults.cuts => drop(raw.kill_clients("pubsub").await),
            19 => {
                // The server is full for a while: it answers reads, and refuses writes that need
                // memory.
                raw.config_set("maxmemory", "1").await;
                sleep(some(&mut rng, 10, 500)).await;
                raw.config_set("maxmemory", "0").await;
            }
            // The server answers reads and refuses writes for a while, as a replica.
            20..22 => {
                raw.run::<()>(&["REPLICAOF", "127.0.0.1", "1"]).await;
                sleep(some(&mut rng, 10, 800)).await;
                raw.run::<()>(&["REPLICAOF", "NO", "ONE"]).await;
            }
            _ => raw.run::<()>(&["SCRIPT", "FLUSH"]).await,
        }
    }
    unreachable!("the loop has no end")
}

async fn stall(server: &RedisServer, time: Duration) {
    server.stop_signal();
    sleep(time).await;
    server.resume();
}

/// Deletes a key, as an eviction does. Returns the lease of the key if it was one.
async fn evict(
    raw: &mut Raw,
    suffix: &str,
    Names { keys, locks }: Names,
    rng: &mut Rng,
) -> Option<(Family, String, Time, Time)> {
    let at = rng.usize(0..keys + locks + 2);
    let (family, name) = if at < keys {
        (Family::Cache, format!("k{at}"))
    } else if at < keys + locks {
        (Family::Lock, format!("m{}", at - keys))
    } else if at == keys + locks {
        (Family::Lock, "w0".to_owned())
    } else {
        (Family::Lock, "s0".to_owned())
    };
    // The holds of writers, of readers and of permits are in keys of their own.
    let ending = match (suffix, name.as_str()) {
        ("l", "w0") => ["w", "r"][rng.usize(0..2)],
        ("l", "s0") => "p",
        _ => suffix,
    };
    let key = match family {
        Family::Cache => format!("histories:c:{{{name}}}:{ending}"),
        Family::Lock => format!("bellwether:l:{{{name}}}:{ending}"),
    };
    let before = now();
    raw.run::<()>(&["DEL", &key]).await;
    if suffix == "l" { Some((family, name, before, now())) } else { None }
}
