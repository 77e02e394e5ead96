//! Connections that end while commands are sent on them, and a runtime that is not driven.

use tokio::{runtime::Builder, sync::watch};

use crate::prelude::*;

const BACKENDS: usize = 16;
const TASKS_OF_EACH: usize = 16;
const LASTS: Duration = Duration::from_secs(3);

/// A command that is sent at the moment at which its connection ends lies in a queue that no task
/// reads. That happened once in some 2,000 ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 8)]
async fn no_command_waits_for_its_time_out_when_its_connection_ends() {
    let server = RedisServer::start().await;
    let name = name("k");
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for _ in 0..BACKENDS {
        let builder = RedisBackend::builder().server(server.url());
        let backend = builder.command_timeout(3 * LIMIT).build().unwrap();
        for _ in 0..TASKS_OF_EACH {
            let backend = backend.clone();
            let name = name.clone();
            let stopped = stopped.clone();
            tasks.spawn(async move {
                while !*stopped.borrow() {
                    let reply = timeout(LIMIT, backend.get(&name)).await;
                    let _ = reply.expect("a command waits for its time-out");
                    tokio::task::yield_now().await;
                }
            });
        }
    }
    let begun = Instant::now();
    let mut raw = server.raw().await;
    let mut ends = 0;
    while begun.elapsed() < LASTS {
        ends += raw.kill_clients("normal").await;
        sleep(Duration::from_millis(5)).await;
    }
    stop.send_replace(true);
    println!("{ends} connections ended");
    tasks.join_all().await;
}

/// A runtime of the current thread runs no task outside of `block_on`. The release of a guard that
/// is dropped there waits until the runtime is driven again.
#[test]
fn a_guard_dropped_outside_of_its_runtime_is_released_when_that_is_driven() {
    let staying = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = staying.block_on(RedisServer::start());
    let idle = Builder::new_current_thread().enable_all().build().unwrap();
    let [there, locks] = [(); 2].map(|()| Locks::new(testkit::open(server.url()), "bellwether"));
    let mutex = locks.mutex("k").lease(Duration::from_secs(600));
    let guard = idle.block_on(mutex.lock()).unwrap();
    drop(guard);
    let next = there.mutex("k").wait_limit(LIMIT);
    let next = staying.spawn(async move { next.lock().await });
    drop(idle.block_on(next).unwrap().unwrap());
}
