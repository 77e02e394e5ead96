//! A sentinel whose answers the test decides.

use std::sync::Mutex;

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::Notify,
};

use crate::prelude::*;

/// How late a late answer comes.
const LATE: Duration = Duration::from_millis(200);

pub struct Fake {
    port: u16,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Shared {
    says: Mutex<Says>,
    /// The `user:password` that the sentinel requires.
    credentials: Option<&'static str>,
    asked: Mutex<usize>,
    listeners: Mutex<usize>,
    announced: Notify,
}

#[derive(Clone, Copy, Default)]
pub enum Says {
    /// The master is the server of this port.
    Master(u16),
    /// The same, a while later.
    MasterLate(u16),
    /// The sentinel knows no such master.
    #[default]
    Nothing,
    /// The sentinel takes connections and never answers.
    Silence,
}

impl Fake {
    pub async fn start(says: Says) -> Self {
        Self::start_with(says, None).await
    }

    pub async fn start_with(says: Says, credentials: Option<&'static str>) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared { says: Mutex::new(says), credentials, ..Shared::default() });
        let all = shared.clone();
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, all.clone()));
            }
        });
        Self { port, shared, task }
    }

    pub fn url(&self) -> String {
        self.url_of("")
    }

    pub fn url_of(&self, credentials: &str) -> String {
        let at = if credentials.is_empty() { "" } else { "@" };
        format!("redis://{credentials}{at}127.0.0.1:{}", self.port)
    }

    pub fn say(&self, says: Says) {
        *self.shared.says.lock().unwrap() = says;
    }

    /// Announces a switch of the master to those that listen.
    pub fn announce(&self) {
        self.shared.announced.notify_waiters();
    }

    pub fn listeners(&self) -> usize {
        *self.shared.listeners.lock().unwrap()
    }

    /// Returns the number of questions for the master, or of connections if the sentinel is silent.
    pub fn asked(&self) -> usize {
        *self.shared.asked.lock().unwrap()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let mut stream = BufReader::new(stream);
    let mut known = shared.credentials.is_none();
    while let Some(words) = command(&mut stream).await {
        let says = *shared.says.lock().unwrap();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let answer = match (words.as_slice(), says) {
            (_, Says::Silence) => {
                *shared.asked.lock().unwrap() += 1;
                continue;
            }
            (["AUTH", user, password], _) => {
                known = shared.credentials == Some(format!("{user}:{password}").as_str());
                if known { "+OK\r\n".to_owned() } else { "-WRONGPASS no\r\n".to_owned() }
            }
            (["CLIENT", ..], _) => "+OK\r\n".to_owned(),
            _ if !known => "-NOAUTH Authentication required.\r\n".to_owned(),
            (["SENTINEL", "get-master-addr-by-name", "flock"], says) => {
                *shared.asked.lock().unwrap() += 1;
                if let Says::MasterLate(_) = says {
                    sleep(LATE).await;
                }
                match says {
                    Says::Master(port) | Says::MasterLate(port) => {
                        let port = port.to_string();
                        format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
                    }
                    _ => "*-1\r\n".to_owned(),
                }
            }
            (["SUBSCRIBE", channels @ ..], _) => return announce(stream, channels, &shared).await,
            (other, _) => format!("-ERR unknown {other:?}\r\n"),
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Serves a connection that has subscribed to announcements.
async fn announce(mut stream: BufReader<TcpStream>, channels: &[&str], shared: &Shared) {
    for (at, channel) in channels.iter().enumerate() {
        let length = channel.len();
        let reply = format!("*3\r\n$9\r\nsubscribe\r\n${length}\r\n{channel}\r\n:{}\r\n", at + 1);
        stream.write_all(reply.as_bytes()).await.unwrap();
    }
    loop {
        let announced = shared.announced.notified();
        *shared.listeners.lock().unwrap() += 1;
        announced.await;
        let message = "*3\r\n$7\r\nmessage\r\n$14\r\n+switch-master\r\n$5\r\nflock\r\n";
        if stream.write_all(message.as_bytes()).await.is_err() {
            return;
        }
    }
}

/// Reads a command such as `*2\r\n$3\r\nGET\r\n$1\r\nk\r\n`.
async fn command(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut words = Vec::new();
    for _ in 0..number(stream, '*').await? {
        let length = number(stream, '$').await?;
        let mut word = vec![0; length + 2];
        stream.read_exact(&mut word).await.ok()?;
        word.truncate(length);
        words.push(String::from_utf8(word).ok()?);
    }
    Some(words)
}

async fn number(stream: &mut BufReader<TcpStream>, sign: char) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.trim_end().strip_prefix(sign)?.parse().ok()
}
