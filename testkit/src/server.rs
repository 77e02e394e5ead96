use std::{
    collections::HashSet,
    fs::File,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
};

use tempfile::TempDir;
use tokio::time::{Duration, Instant, sleep};

use super::{LIMIT, Monitor, Raw, nursery};

/// A Redis server of its own, on a free port of the loopback interface, with a directory of its own.
///
/// It ends when this is dropped, and also when the test process is killed.
pub struct RedisServer {
    child: Child,
    port: u16,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// The connections of this helper, which a [`Monitor`] does not count.
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

    /// As [`start_with`](Self::start_with), with variables of the environment.
    pub async fn start_in(arguments: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_from(None, arguments, environment).await
    }

    async fn start_from(
        configuration: Option<&str>,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let environment: Vec<_> = environment.iter().map(owned).collect();
        let arguments: Vec<_> = arguments.iter().map(|text| (*text).to_owned()).collect();
        // Between finding a port and binding it, somebody else may bind it.
        for _ in 0..50 {
            let directory = TempDir::new().expect("a temporary directory");
            let port = free_port();
            if let Some(configuration) = configuration {
                std::fs::write(configuration_file(directory.path()), configuration)
                    .expect("a file of the temporary directory");
            }
            let child = spawn(port, &arguments, &environment, directory.path());
            let (arguments, environment) = (arguments.clone(), environment.clone());
            let own = Arc::default();
            let mut server = Self { child, port, arguments, environment, own, directory };
            if server.answers().await {
                return server;
            }
        }
        panic!("no Redis server could be started");
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn url(&self) -> String {
        self.url_of("", 0)
    }

    /// A URL with `user:password` and a database.
    pub fn url_of(&self, credentials: &str, database: u8) -> String {
        let at = if credentials.is_empty() { "" } else { "@" };
        format!("redis://{credentials}{at}127.0.0.1:{}/{database}", self.port)
    }

    /// A connection to look at the server with.
    pub async fn raw(&self) -> Raw {
        // A sentinel that makes a replica of it cuts its connections, those that are just made among them.
        for _ in 0..9 {
            if let Ok(raw) = Raw::connect(&self.own_url(), &self.own).await {
                return raw;
            }
        }
        Raw::connect(&self.own_url(), &self.own).await.expect("the server takes a connection")
    }

    /// Listens to what clients send from now on.
    pub async fn monitor(&self) -> Monitor {
        Monitor::start(&self.own_url(), self.raw().await, self.own.clone()).await
    }

    /// Ends the server as a power failure would (SIGKILL).
    pub fn kill(&mut self) {
        // It fails only where the server has ended already.
        let _ = self.child.kill();
        self.child.wait().expect("a child can be waited for");
    }

    /// Makes the server hang, its sockets open (SIGSTOP).
    pub fn stop_signal(&self) {
        self.signal("STOP");
    }

    /// Ends [`stop_signal`](Self::stop_signal) (SIGCONT).
    pub fn resume(&self) {
        self.signal("CONT");
    }

    /// Ends the server and starts it again, on its port and with its directory.
    pub async fn restart(&mut self) {
        self.kill();
        self.start_again().await;
    }

    /// Starts it again after [`kill`](Self::kill).
    pub async fn start_again(&mut self) {
        let end = Instant::now() + LIMIT;
        loop {
            self.child =
                spawn(self.port, &self.arguments, &self.environment, self.directory.path());
            if self.answers().await {
                return;
            }
            // The port of a server that was killed may be in use for a moment.
            assert!(Instant::now() < end, "the server did not start again: {}", self.log());
        }
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill")
            .args([format!("-{signal}"), self.pid().to_string()])
            .status()
            .expect("the command kill");
        assert!(status.success(), "SIG{signal} could not be sent");
    }

    /// Waits until the server answers; `false` if it ended, which it does when it cannot have its port.
    async fn answers(&mut self) -> bool {
        let end = Instant::now() + LIMIT;
        loop {
            if self.child.try_wait().expect("a child can be asked").is_some() {
                return false;
            }
            // Who answers is compared too: the server of another test may have taken the port.
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
        let mut arguments = self.arguments.iter();
        let password = arguments.find(|text| *text == "--requirepass").and(arguments.next());
        self.url_of(&password.map_or(String::new(), |password| format!(":{password}")), 0)
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

pub(super) fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port of the loopback interface");
    listener.local_addr().expect("a bound socket has an address").port()
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
    let server = find("redis-server")
        .expect("these tests need `redis-server` in the PATH: install Redis, from version 6");
    // So that no server is left behind when the test process is killed. Without setpriv (it is part of
    // util-linux), the end of the test still ends it.
    let mut command = match find("setpriv") {
        Some(setpriv) => {
            let mut command = Command::new(setpriv);
            command.args(["--pdeathsig", "KILL", "--"]).arg(server);
            command
        }
        None => Command::new(server),
    };
    let configuration = configuration_file(directory);
    if configuration.exists() {
        command.arg(configuration);
    }
    let log = File::options().create(true).append(true).open(log_file(directory)).expect("a log");
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(directory)
        .args(arguments)
        .envs(environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(Stdio::null());
    nursery::spawn(command).expect("redis-server can be run")
}

fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}
