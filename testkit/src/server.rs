use std::{
    collections::HashSet,
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::{Arc, Mutex},
};

use tempfile::TempDir;
use tokio::time::{Duration, Instant, sleep};

use super::{
    LIMIT, Monitor, Port, Raw,
    nursery::{server_command, spawn_server},
    signal::signal,
};

/// A Redis server on a free port of the loopback interface, with its own directory.
///
/// The server ends when this is dropped, and also when the test process is killed.
pub struct RedisServer {
    child: Child,
    port: Port,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// The connections of this type, which a [`Monitor`] does not count.
    own: Arc<Mutex<HashSet<String>>>,
    directory: TempDir,
}

impl RedisServer {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts a server with further arguments, as `["--requirepass", "secret"]`.
    pub async fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(arguments, &[]).await
    }

    /// Starts a sentinel, which keeps what it learns in its configuration.
    pub async fn start_sentinel(configuration: &str) -> Self {
        Self::start_from(Some(configuration), &["--sentinel"], &[]).await
    }

    /// Does the same as [`start_with`](Self::start_with), with environment variables.
    pub async fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_from(None, arguments, environment).await
    }

    async fn start_from(
        configuration: Option<&str>,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let mut owned_environment = Vec::new();
        for (name, value) in environment {
            owned_environment.push(((*name).to_owned(), (*value).to_owned()));
        }
        let mut owned_arguments = Vec::new();
        for argument in arguments {
            owned_arguments.push((*argument).to_owned());
        }
        // Where a port cannot be held, another process may bind it before the server does.
        for _ in 0..50 {
            let directory = TempDir::new().expect("a temporary directory");
            let port = Port::free();
            if let Some(configuration) = configuration {
                std::fs::write(configuration_file(directory.path()), configuration)
                    .expect("a file of the temporary directory");
            }
            let child =
                spawn(port.number(), &owned_arguments, &owned_environment, directory.path());
            let mut server = Self {
                child,
                port,
                arguments: owned_arguments.clone(),
                environment: owned_environment.clone(),
                own: Arc::default(),
                directory,
            };
            if server.answers().await {
                return server;
            }
        }
        panic!("no Redis server could be started");
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> String {
        self.url_of("", 0)
    }

    /// Returns a URL with `user:password` and a database.
    pub fn url_of(&self, credentials: &str, database: u8) -> String {
        let at = if credentials.is_empty() { "" } else { "@" };
        format!("redis://{credentials}{at}127.0.0.1:{}/{database}", self.port())
    }

    /// Returns a connection that inspects the server.
    pub async fn raw(&self) -> Raw {
        // A sentinel that demotes the server cuts its connections, new ones included.
        for _ in 0..9 {
            if let Ok(raw) = Raw::connect(&self.own_url(), &self.own).await {
                return raw;
            }
        }
        Raw::connect(&self.own_url(), &self.own).await.expect("the server takes a connection")
    }

    /// Records the commands of clients from now on.
    pub async fn monitor(&self) -> Monitor {
        Monitor::start(&self.own_url(), self.raw().await, self.own.clone()).await
    }

    /// Kills the server with SIGKILL, as a power failure would.
    pub fn kill(&mut self) {
        // This fails only if the server has ended already.
        let _ = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }

    /// Suspends the server with SIGSTOP. Its sockets stay open.
    pub fn stop_signal(&self) {
        signal(self.pid(), "STOP");
    }

    /// Resumes the server with SIGCONT.
    pub fn resume(&self) {
        signal(self.pid(), "CONT");
    }

    /// Kills the server and starts it again on the same port and directory.
    pub async fn restart(&mut self) {
        self.kill();
        self.start_again().await;
    }

    /// Starts the server again after [`kill`](Self::kill).
    pub async fn start_again(&mut self) {
        let end = Instant::now() + LIMIT;
        loop {
            self.child =
                spawn(self.port(), &self.arguments, &self.environment, self.directory.path());
            if self.answers().await {
                return;
            }
            // The port of a killed server may stay in use for a moment.
            assert!(Instant::now() < end, "the server did not start again: {}", self.log());
        }
    }

    /// Waits until the server answers. Returns `false` if it ended because its port was taken.
    async fn answers(&mut self) -> bool {
        let end = Instant::now() + LIMIT;
        loop {
            let status = self.child.try_wait().expect("a child can be asked");
            if status.is_some() {
                return false;
            }
            // The process id is compared, because another server may have taken the port.
            if let Ok(mut raw) = Raw::connect(&self.own_url(), &self.own).await
                && raw.process().await == Some(self.pid())
                && !raw.is_loading().await
            {
                return true;
            }
            assert!(Instant::now() < end, "the server does not answer: {}", self.log());
            sleep(Duration::from_millis(2)).await;
        }
    }

    fn own_url(&self) -> String {
        let mut credentials = String::new();
        if let Some(at) = self.arguments.iter().position(|argument| argument == "--requirepass") {
            credentials = format!(":{}", self.arguments[at + 1]);
        }
        self.url_of(&credentials, 0)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(log_file(self.directory.path())).unwrap_or_default()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration_file(directory: &Path) -> PathBuf {
    directory.join("configuration")
}

fn log_file(directory: &Path) -> PathBuf {
    directory.join("log")
}

fn spawn(
    port: u16,
    arguments: &[String],
    environment: &[(String, String)],
    directory: &Path,
) -> Child {
    let mut command = server_command("redis-server")
        .expect("these tests need `redis-server` in the PATH: install Redis, from version 6");
    let configuration = configuration_file(directory);
    if configuration.exists() {
        command.arg(configuration);
    }
    let mut options = File::options();
    let log = options.create(true).append(true).open(log_file(directory));
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(directory)
        .args(arguments)
        .envs(environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(log.expect("a log"))
        .stderr(Stdio::null());
    spawn_server(command).expect("redis-server can be run")
}
