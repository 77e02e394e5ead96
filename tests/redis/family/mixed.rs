//! Many callers run all operations at once.

use bellwether::{
    ErrorKind::{Backend, NotAcquired, NotDone, NotSet},
    lock::{PermitId, Upgrade},
};

use super::faults::nothing_is_left;
use crate::prelude::*;

const OPERATIONS: usize = 4_000;
const TASKS: usize = 24;

/// The life of a finished latch, for late waiters.
const LATCH: Duration = Duration::from_secs(120);

/// Runs one operation with its consequences. A refusal counts as an outcome as well.
async fn operate(locks: &Locks, random: &mut fastrand::Rng) -> Result<(), bellwether::Error> {
    let name = format!("n{}", random.u8(..5));
    let wait = Duration::from_millis(random.u64(1..60));
    // The lease is longer than a stall of a busy machine.
    let lease = Duration::from_secs(5);
    match random.u8(..15) {
        0 => locks.mutex(name).lease(lease).wait_limit(wait).lock().await?.unlock().await,
        1 => locks.mutex(name).fair().lease(lease).wait_limit(wait).lock().await?.unlock().await,
        2 => locks.rw_lock(name).lease(lease).wait_limit(wait).read().await?.unlock().await,
        3 => locks.rw_lock(name).lease(lease).wait_limit(wait).write().await?.unlock().await,
        4 => {
            let guard = locks.rw_lock(name).lease(lease).wait_limit(wait).write().await?;
            let guard = guard.downgrade().await?;
            match guard.try_upgrade().await? {
                Upgrade::Done(writer) => writer.unlock().await,
                Upgrade::Busy(reader) => reader.unlock().await,
            }
        }
        5 => {
            let count = random.u32(1..4);
            let semaphore = locks.semaphore(name, 4).lease(lease).wait_limit(wait);
            semaphore.acquire_many(count).await?.unlock().await
        }
        6 => {
            let permits = locks.permits(name, 4).lease(lease).wait_limit(wait);
            let id: PermitId = permits.acquire().await?.to_string().parse()?;
            permits.renew(id).await?;
            permits.release(id).await.map(drop)
        }
        7 => locks.mutex(name).lease(lease).try_lock().await.map(drop),
        8 => locks.rw_lock(name).lease(lease).try_write().await.map(drop),
        9 => locks.mutex(name).fair().lease(lease).try_lock().await.map(drop),
        10 => locks.semaphore(name, 4).available().await.map(drop),
        11 => {
            let names =
                (0..5).map(|n| format!("n{n}")).filter(|other| *other != name && random.bool());
            let several = locks.several(names.chain([name.clone()])).lease(lease).wait_limit(wait);
            several.lock().await?.unlock().await
        }
        12 => {
            let holder = locks.reentrant_mutex(name).lease(lease).wait_limit(wait);
            let (one, other) = tokio::join!(holder.lock(), holder.lock());
            let again = one?;
            other?.unlock().await?;
            again.unlock().await
        }
        13 => {
            let latch = locks.latch(name).ttl(LATCH);
            match random.u8(..8) {
                0 => latch.clear().await.map(drop),
                1..4 => latch.set(random.u32(1..6)).await.map(drop),
                4..7 => latch.count_down_by(random.u32(1..3)).await.map(drop),
                _ => latch.wait_limit(wait).wait().await,
            }
        }
        _ => {
            // A waiter may leave in the middle of the wait.
            let wait_limit = Duration::from_micros(random.u64(1..3000));
            let rw_lock = locks.rw_lock(name.as_str()).lease(lease);
            let mutex = locks.mutex(name).fair().lease(lease);
            let _ = timeout(wait_limit, mutex.lock()).await;
            let _ = timeout(wait_limit, rw_lock.read()).await;
            let _ = timeout(wait_limit, rw_lock.write()).await;
            let several = locks.several(["n2", "n1", "n0"]).lease(lease);
            let _ = timeout(wait_limit, several.lock()).await;
            let holder = locks.reentrant_mutex("n1").lease(lease);
            let _ = timeout(wait_limit, async { tokio::join!(holder.lock(), holder.lock()) }).await;
            let latch = locks.latch("n1").ttl(LATCH);
            let _ = timeout(wait_limit / 4, latch.set(3)).await;
            let _ = timeout(wait_limit / 4, latch.count_down()).await;
            let _ = timeout(wait_limit, latch.wait()).await;
            Ok(())
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_operations_leave_nothing_but_fences() {
    let server = RedisServer::start().await;
    // The test is not about time-outs, and with these limits a busy machine causes few.
    let fleet: Arc<[Locks]> =
        (0..3).map(|_| Locks::new(testkit::open(server.url()), "bellwether")).collect();
    let seed = std::env::var("BELLWETHER_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("BELLWETHER_SEED={seed}");
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let fleet = fleet.clone();
        tasks.spawn(async move {
            let mut random = fastrand::Rng::with_seed(seed.wrapping_add(task as u64));
            let mut done = 0_u32;
            let mut late = 0_u32;
            for _ in 0..OPERATIONS / TASKS {
                let locks = &fleet[random.usize(..fleet.len())];
                match operate(locks, &mut random).await {
                    Ok(()) => done += 1,
                    Err(error) if error.kind() == Backend => late += 1,
                    Err(error) => {
                        let refused = [NotAcquired, NotSet, NotDone].contains(&error.kind());
                        assert!(refused, "{error:?}");
                    }
                }
            }
            (done, late)
        });
    }
    let (done, late): (Vec<_>, Vec<_>) = tasks.join_all().await.into_iter().unzip();
    let done: u32 = done.iter().sum();
    let late: u32 = late.iter().sum();
    println!(
        "{done} of {OPERATIONS} operations succeeded in {:?}; {late} were not answered in time",
        begun.elapsed()
    );
    assert!(done as usize > OPERATIONS / 4, "{done}");
    assert!((late as usize) < OPERATIONS / 100, "{late}");
    only_latches_stand(&server).await;
    for name in 0..5 {
        fleet[0].latch(format!("n{name}")).clear().await.unwrap();
    }
    nothing_is_left(&server).await;
}

/// Checks that only fences and latches are left, and that each latch ends within its time.
async fn only_latches_stand(server: &RedisServer) {
    let mut raw = server.raw().await;
    // A dropped operation is undone in the background.
    let tidy = async || {
        let keys = raw.keys("*").await;
        keys.iter().all(|key| key.ends_with(":f") || key.ends_with(":n"))
    };
    let tidy = comes_true(LIMIT, tidy).await;
    let keys = raw.keys("*").await;
    assert!(tidy, "keys are left behind: {keys:?}");
    for latch in keys.iter().filter(|key| key.ends_with(":n")) {
        let left = raw.pttl(latch).await;
        let most = i64::try_from(LATCH.as_millis()).unwrap();
        assert!((1..=most).contains(&left), "{latch} lasts for {left} ms");
    }
}
