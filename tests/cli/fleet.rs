//! Eight processes of the demo over one server: a key that expires, and a lock that is stuck.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bellwether::{Locks, lock::MutexGuard};
use serde_json::json;
use testkit::RedisServer;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::sleep,
};

use super::{NAMESPACE, PROGRAM};

const PROCESSES: u16 = 8;
/// How long a value is kept, and how long the origin takes for it.
const TTL: Duration = Duration::from_secs(3);
const LOAD: Duration = Duration::from_millis(700);

/// What the origin answers.
const PRODUCT: &str =
    r#"{"id":1,"name":"bell","read_at":{"secs_since_epoch":1,"nanos_since_epoch":0}}"#;

/// The lock that is stuck, and the label of its holder.
pub const STUCK: &str = "nightly-import";
pub const HOLDER: &str = "pod-7";

pub struct Fleet {
    pub server: RedisServer,
    processes: Vec<Child>,
    /// Whether the origin fails.
    pub origin_fails: Arc<AtomicBool>,
    /// The holder, which is stuck.
    _guard: MutexGuard,
    /// The clients, the origin and those that wait for the lock.
    tasks: JoinSet<()>,
}

impl Fleet {
    pub async fn start() -> Self {
        let server = RedisServer::start().await;
        let mut tasks = JoinSet::new();
        let origin = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let origin_fails = Arc::<AtomicBool>::default();
        let address = origin.local_addr().unwrap();
        tasks.spawn(serve(origin, origin_fails.clone()));
        let mut processes = Vec::new();
        for number in 0..PROCESSES {
            let (child, address) = replica(number, &address.to_string(), &server.url());
            processes.push(child);
            tasks.spawn(ask_for_ever(address));
        }
        let locks = |label: &str| Locks::new(testkit::open(server.url()), NAMESPACE).owner(label);
        let holder = locks(HOLDER);
        let guard = holder.mutex(STUCK).lock().await.unwrap();
        for waiter in 0..3 {
            let mutex = locks(&format!("pod-{waiter}")).mutex(STUCK).fair();
            tasks.spawn(async move {
                loop {
                    if let Ok(guard) = mutex.lock().await {
                        guard.lost().await;
                    }
                }
            });
        }
        Self { server, processes, origin_fails, _guard: guard, tasks }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.abort_all();
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Starts a process of the demo, and returns its address.
fn replica(number: u16, origin: &str, redis: &str) -> (Child, String) {
    let program = Path::new(PROGRAM).with_file_name("hotspot");
    let command = testkit::server_command(program.to_str().unwrap());
    let mut command = command.expect("the demo is built: `cargo build -p hotspot`");
    command.arg("replica").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = testkit::spawn_server(command).expect("the demo can be run");
    let time = |time: Duration| json!({ "secs": time.as_secs(), "nanos": time.subsec_nanos() });
    let settings = json!({
        "number": number,
        "way": "bellwether",
        "origin": origin,
        "redis": redis,
        "namespace": NAMESPACE,
        "ttl": time(TTL),
        "lease": time(5 * TTL),
        "stale": time(Duration::ZERO),
        "copies": time(Duration::ZERO),
    });
    // The process ends when its input does.
    writeln!(child.stdin.as_mut().unwrap(), "{settings}").unwrap();
    let mut address = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut address).unwrap();
    (child, address.trim().to_owned())
}

/// The origin: each answer takes its time.
async fn serve(listener: TcpListener, fails: Arc<AtomicBool>) {
    let mut answers = JoinSet::new();
    while let Ok((mut stream, _)) = listener.accept().await {
        let fails = fails.clone();
        answers.spawn(async move {
            let mut request = [0; 4096];
            while stream.read(&mut request).await.is_ok_and(|read| read > 0) {
                sleep(LOAD).await;
                let (status, body) = if fails.load(Ordering::Relaxed) {
                    ("503 Service Unavailable", "no")
                } else {
                    ("200 OK", PRODUCT)
                };
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                if stream.write_all(format!("{head}{body}").as_bytes()).await.is_err() {
                    return;
                }
            }
        });
    }
}

/// A client of one process, which asks for the hot key again and again.
async fn ask_for_ever(address: String) {
    loop {
        let asked = async {
            let mut stream = TcpStream::connect(&address).await?;
            let request = "GET /products/1 HTTP/1.1\r\nhost: shop\r\nconnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).await?;
            stream.read_to_end(&mut Vec::new()).await
        };
        let _ = asked.await;
        sleep(Duration::from_millis(10)).await;
    }
}
