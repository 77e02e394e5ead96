use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::StreamExt;
use tokio::task::JoinHandle;

use super::{LIMIT, Raw, eventually, scripts::names_by_digest};

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
}

/// A command of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The address of the client.
    pub client: String,
    /// The first word, in capitals.
    pub command: String,
    /// The file name of the script, if the command calls a script by its digest.
    pub script: Option<&'static str>,
}

impl Monitor {
    pub(super) async fn start(url: &str, raw: Raw, own: Arc<Mutex<HashSet<String>>>) -> Self {
        let client = redis::Client::open(url).expect("a URL of the helper");
        let monitor = client.get_async_monitor().await.expect("the server takes a connection");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let for_reader = lines.clone();
        let reader = tokio::spawn(async move {
            let mut stream = monitor.into_on_message::<String>();
            while let Some(line) = stream.next().await {
                let mut lines = for_reader.lock().expect("no holder panics");
                lines.push(line);
            }
        });
        let mut monitor = Self { lines, own, raw, reader };
        // Earlier commands, such as those of connecting, are not counted.
        monitor.calls_from_clients().await;
        monitor
    }

    /// Returns the commands since the last call of this function, in the order of the server.
    pub async fn calls_from_clients(&mut self) -> Vec<Call> {
        // A server may have several monitors, and each of them sees the markers of all.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let marker = format!("\"marker-{}\"", NEXT.fetch_add(1, Ordering::SeqCst));
        self.raw.run::<()>(&["ECHO", marker.trim_matches('"')]).await;
        assert!(
            eventually(LIMIT, || async { self.has_line(&marker) }).await,
            "MONITOR has fallen silent"
        );
        let lines = std::mem::take(&mut *self.lines.lock().expect("no holder panics"));
        let own = self.own.lock().expect("no holder panics");
        let scripts = names_by_digest();
        let mut calls = Vec::new();
        for line in &lines {
            if let Some(call) = Call::read(line, &scripts)
                && call.client != "lua"
                && !own.contains(&call.client)
            {
                calls.push(call);
            }
        }
        calls
    }

    fn has_line(&self, end: &str) -> bool {
        let lines = self.lines.lock().expect("no holder panics");
        lines.iter().any(|line| line.ends_with(end))
    }

    /// Returns whether a release since the last call of a method was sent directly behind a `PING`
    /// of its client. Then the client is answered after the waiters.
    ///
    /// # Panics
    ///
    /// If no client has released anything.
    pub async fn was_release_answered_last(&mut self) -> bool {
        let calls = self.calls_from_clients().await;
        let mut last_commands = HashMap::new();
        let mut has_release = false;
        let mut is_behind_ping = false;
        for Call { client, command, script } in calls {
            if script == Some("release") {
                has_release = true;
                let last = last_commands.get(&client).map(String::as_str);
                is_behind_ping |= last == Some("PING");
            }
            last_commands.insert(client, command);
        }
        assert!(has_release, "nothing was released");
        is_behind_ping
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Call {
    /// Parses `1339518083.107412 [0 127.0.0.1:60866] "get" "key"`. Scripts have the address `lua`.
    fn read(line: &str, scripts: &HashMap<String, &'static str>) -> Option<Self> {
        let (_, rest) = line.split_once('[')?;
        let (from, words) = rest.split_once("] \"")?;
        let (_, client) = from.split_once(' ')?;
        let (command, rest) = words.split_once('"')?;
        let first = rest.trim_start_matches([' ', '"']).split('"').next();
        let script = first.and_then(|digest| scripts.get(digest)).copied();
        Some(Self { client: client.to_owned(), command: command.to_uppercase(), script })
    }
}
