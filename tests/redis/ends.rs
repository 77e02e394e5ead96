//! Connections that end while commands are sent on them.

use tokio::sync::watch;

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
            let (backend, name, stopped) = (backend.clone(), name.clone(), stopped.clone());
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
