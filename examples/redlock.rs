//! A lock over three Redis servers: with all of them up, with one killed, and with two killed.
//!
//! ```text
//! cargo run --example redlock
//! ```

use std::{
    fs::File,
    io,
    net::TcpListener,
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellwether::{BoxError, ErrorKind, RedisBackend, Redlock};
use tempfile::TempDir;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

const INSTALL: &str = "\
this example starts three Redis servers, and there is no `redis-server` in the PATH.
Install the package of Redis 6 or later (apt-get install redis-server, dnf install redis,
pacman -S redis, brew install redis), and run it again. It starts and stops its own servers.";

/// The longest wait for a holder that died.
const LEASE: Duration = Duration::from_secs(2);
/// The limit for the answer of one server. With one of three killed, both others must answer, and a
/// busy machine may take longer than the default of 50 ms.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
const CLIENTS: usize = 3;
const TASKS: usize = 4;
const TIMES: usize = 10;

#[tokio::main]
async fn main() -> ExitCode {
    // The servers end with `run`, whatever its result is.
    let ended = tokio::select! {
        ended = run() => ended,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redlock: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), BoxError> {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Server::start().await?);
    }
    let ports: Vec<_> = servers.iter().map(|server| server.port.to_string()).collect();
    println!(
        "three Redis servers that know nothing of each other, on the ports {}\n",
        ports.join(", ")
    );
    // Each client has its own connections, as the processes of a fleet do.
    let clients = (0..CLIENTS).map(|_| client(&servers)).collect::<Result<Vec<_>, _>>()?;

    println!("all three are up");
    one_at_a_time(&clients).await?;

    println!("one is killed");
    servers[2].kill()?;
    one_at_a_time(&clients).await?;

    println!("a second one is killed, under a task that holds the lock");
    let mutex = clients[0].mutex("till").lease(LEASE);
    let guard = mutex.lock().await?;
    sleep(LEASE).await;
    println!(
        "  held for longer than its lease of {LEASE:?}, for it is renewed at the two that are left"
    );
    servers[1].kill()?;
    let killed = Instant::now();
    guard.lost().await;
    println!("  its holder is told that it is lost, {:.1?} after that", killed.elapsed());
    match guard.unlock().await.map_err(|error| error.kind()) {
        Err(ErrorKind::Lost) => println!("  and once more by unlock()"),
        other => return Err(format!("unlock() said {other:?}").into()),
    }
    let mutex = clients[1].mutex("till").wait_limit(Duration::from_secs(1));
    match mutex.lock().await {
        Err(error) if error.kind() == ErrorKind::Backend => {
            println!("  another client has waited for a second: {error:#}");
        }
        other => return Err(format!("one of three is no majority, but: {other:?}").into()),
    }
    println!(
        "\nboth may come back a lease later: before that, they might grant what is still held"
    );
    Ok(())
}

fn client(servers: &[Server]) -> Result<Redlock, bellwether::Error> {
    let mut backends = Vec::new();
    for server in servers {
        let url = format!("redis://127.0.0.1:{}/", server.port);
        let builder = RedisBackend::builder().server(url);
        backends.push(builder.command_timeout(ANSWER_LIMIT).build()?);
    }
    Redlock::with_answer_limit(backends, "redlock", ANSWER_LIMIT)
}

/// Counts a till up from tasks of several clients, each time by a read, a pause and a write.
async fn one_at_a_time(clients: &[Redlock]) -> Result<(), BoxError> {
    let till = Arc::new(AtomicUsize::new(0));
    let inside = Arc::new(AtomicUsize::new(0));
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for client in clients.iter().flat_map(|client| [client; TASKS]) {
        let mutex = client.mutex("till").lease(LEASE);
        let till = till.clone();
        let inside = inside.clone();
        tasks.spawn(async move {
            for _ in 0..TIMES {
                let guard = mutex.lock().await?;
                if inside.fetch_add(1, Ordering::SeqCst) > 0 {
                    return Err(BoxError::from("two tasks hold the lock"));
                }
                let read = till.load(Ordering::SeqCst);
                tokio::task::yield_now().await;
                till.store(read + 1, Ordering::SeqCst);
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.unlock().await?;
            }
            Ok(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let counted = till.load(Ordering::SeqCst);
    let all = clients.len() * TASKS * TIMES;
    if counted != all {
        return Err(format!("{counted} in the till, of {all}").into());
    }
    let tasks = clients.len() * TASKS;
    println!(
        "  {tasks} tasks of {CLIENTS} clients put in {TIMES} each, one at a time: {counted} in \
         the till after {:.1?}",
        begun.elapsed()
    );
    Ok(())
}

/// A Redis server on a free port, with a temporary directory.
struct Server {
    child: Child,
    port: u16,
    _directory: TempDir,
}

impl Server {
    async fn start() -> Result<Self, BoxError> {
        // Another process may bind the port before the server does.
        for _ in 0..10 {
            let directory = TempDir::new()?;
            let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
            let log = File::create(directory.path().join("log"))?;
            let child = Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
                .args(["--save", "", "--appendonly", "no", "--dir"])
                .arg(directory.path())
                .stdin(Stdio::null())
                .stdout(log)
                .spawn()
                .map_err(|error| match error.kind() {
                    io::ErrorKind::NotFound => BoxError::from(INSTALL),
                    _ => error.into(),
                })?;
            let mut server = Self { child, port, _directory: directory };
            if server.answers().await? {
                return Ok(server);
            }
        }
        Err("no Redis server could be started".into())
    }

    /// Waits until the server answers. Returns `false` if it ended because its port was taken.
    async fn answers(&mut self) -> Result<bool, BoxError> {
        let backend = RedisBackend::open(&format!("redis://127.0.0.1:{}/", self.port))?;
        let end = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait()?.is_none() {
            if backend.ping().await.is_ok() {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Err("a Redis server does not answer".into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(false)
    }

    /// Kills the server, as a power failure would.
    fn kill(&mut self) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait().map(drop)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // This fails only if the server has ended already.
        let _ = self.kill();
    }
}
