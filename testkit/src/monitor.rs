use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
};

use futures_util::StreamExt;
use tokio::task::JoinHandle;

use super::{LIMIT, Raw, eventually};

/// Records every command that clients send to a server.
///
/// `total_commands_processed` and `commandstats` also count the commands of scripts. `MONITOR`
/// names the client of each command and marks those of scripts.
pub struct Monitor {
    lines: Arc<Mutex<Vec<String>>>,
    /// The connections whose commands are not counted.
    own: Arc<Mutex<HashSet<String>>>,
    raw: Raw,
    reader: JoinHandle<()>,
    markers: u32,
}

/// A command of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The address of the client.
    pub client: String,
    /// The first word, in capitals.
    pub command: String,
}

impl Monitor {
    pub(super) async fn start(url: &str, raw: Raw, own: Arc<Mutex<HashSet<String>>>) -> Self {
        let client = redis::Client::open(url).expect("a URL of the helper");
        let monitor = client.get_async_monitor().await.expect("the server takes a connection");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let read = lines.clone();
        let reader = tokio::spawn(async move {
            let mut stream = monitor.into_on_message::<String>();
            while let Some(line) = stream.next().await {
                read.lock().expect("no holder panics").push(line);
            }
        });
        let mut monitor = Self { lines, own, raw, reader, markers: 0 };
        // Earlier commands, such as those of connecting, are not counted.
        monitor.calls_from_clients().await;
        monitor
    }

    /// Returns the commands since the last call of this function, in the order of the server.
    pub async fn calls_from_clients(&mut self) -> Vec<Call> {
        self.markers += 1;
        let marker = format!("\"marker-{}\"", self.markers);
        self.raw.run::<()>(&["ECHO", marker.trim_matches('"')]).await;
        let passed = || async {
            self.lines.lock().expect("no holder panics").iter().any(|line| line.ends_with(&marker))
        };
        assert!(eventually(LIMIT, passed).await, "MONITOR has fallen silent");
        let lines = std::mem::take(&mut *self.lines.lock().expect("no holder panics"));
        let own = self.own.lock().expect("no holder panics");
        lines
            .iter()
            .filter_map(|line| Call::read(line))
            .filter(|call| call.client != "lua" && !own.contains(&call.client))
            .collect()
    }

    /// Returns whether a script since the last call was sent directly behind a `PING` of its
    /// client. Its client is answered after the waiters then.
    ///
    /// Scripts that renew a lease or keep a queue entry may come at any time, and have no `PING`.
    pub async fn was_answered_last(&mut self) -> bool {
        let calls = self.calls_from_clients().await;
        let mut scripts = (0..calls.len()).filter(|at| calls[*at].command == "EVALSHA").peekable();
        assert!(scripts.peek().is_some(), "no script was called");
        scripts.any(|at| {
            let mut before = calls[..at].iter().rev();
            let before = before.find(|call| call.client == calls[at].client);
            before.is_some_and(|call| call.command == "PING")
        })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Call {
    /// Parses `1339518083.107412 [0 127.0.0.1:60866] "get" "key"`. Scripts have the address `lua`.
    fn read(line: &str) -> Option<Self> {
        let (_, rest) = line.split_once('[')?;
        let (from, words) = rest.split_once("] \"")?;
        let (_, client) = from.split_once(' ')?;
        let (command, _) = words.split_once('"')?;
        Some(Self { client: client.to_owned(), command: command.to_uppercase() })
    }
}
