//! A Redis server on a free port, with a temporary directory.

use std::{
    fs::File,
    io,
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

use bellwether::{BoxError, RedisBackend};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

const INSTALL: &str = "\
this example starts a Redis server, and there is no `redis-server` in the PATH.
Install the package of Redis 6 or later (apt-get install redis-server, dnf install redis,
pacman -S redis, brew install redis), and run it again. It starts and stops its own server.";

pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    _directory: TempDir,
}

impl Server {
    pub(crate) async fn start() -> Result<Self, BoxError> {
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

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Waits until the server answers. Returns `false` if it ended because its port was taken.
    async fn answers(&mut self) -> Result<bool, BoxError> {
        let backend = RedisBackend::open(&self.url())?;
        let end = Instant::now() + Duration::from_secs(10);
        while self.child.try_wait()?.is_none() {
            if backend.ping().await.is_ok() {
                return Ok(true);
            }
            if Instant::now() >= end {
                return Err("the Redis server does not answer".into());
            }
            sleep(Duration::from_millis(10)).await;
        }
        Ok(false)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // These fail only if the server has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
