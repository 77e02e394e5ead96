//! A screen of what goes on, refreshed each second: the busiest keys, the loads and the locks.
//!
//! The server knows the locks. What is asked for and loaded, only the processes know. They are
//! asked on a channel of the namespace, and those that spawned `answer_top` answer.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, IsTerminal, Write},
    time::Duration,
};

use bellwether::{
    Key, Locks,
    backend::{Leases, Mode},
    key::{Family, Name, Namespace},
    lock::ListedLock,
};
use futures_util::StreamExt;
use redis::{Client, aio::PubSub};
use serde_json::{Value, json};
use tokio::{
    signal::ctrl_c,
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    Exit, Failure, Server,
    doctor::{PATIENCE, master_of},
    in_full, show,
};

const SECOND: Duration = Duration::from_secs(1);
/// A cache without an answer for so long has ended.
const GONE: Duration = Duration::from_secs(3);
/// How many keys, and how many locks, fit on a screen.
const ROWS: usize = 10;
/// The key whose channels have the questions and the answers.
const QUESTIONS: &str = "bellwether-top";

/// What the caches of the fleet have answered.
#[derive(Default)]
struct Fleet {
    caches: HashMap<String, Answered>,
}

/// The last two answers of a cache, and when the last one came.
struct Answered {
    at: Instant,
    last: Value,
    before: Option<(Value, Instant)>,
}

/// What the fleet did in a second.
#[derive(Default)]
struct Second {
    /// Why the server did not take the last question.
    failure: Option<String>,
    processes: usize,
    flights: u64,
    hits: f64,
    loads: f64,
    failures: f64,
    waited: f64,
    degraded: f64,
    keys: Vec<(String, f64)>,
}

impl Fleet {
    /// Takes in an answer. One that cannot be read is that of a later version.
    fn hear(&mut self, payload: &[u8]) {
        let Ok(last) = serde_json::from_slice::<Value>(payload) else { return };
        let (Some(cache), at) = (last["cache"].as_str().map(str::to_owned), Instant::now()) else {
            return;
        };
        let before = self.caches.remove(&cache).map(|answered| (answered.last, answered.at));
        self.caches.insert(cache, Answered { at, last, before });
    }

    fn second(&mut self) -> Second {
        self.caches.retain(|_, answered| answered.at.elapsed() < GONE);
        let mut processes: Vec<_> = self.caches.values().map(|it| &it.last["process"]).collect();
        processes.sort_by_key(|process| process.to_string());
        processes.dedup();
        let mut second = Second { processes: processes.len(), ..Second::default() };
        let mut keys = BTreeMap::<String, f64>::new();
        for Answered { at, last, before } in self.caches.values() {
            second.flights += last["stats"]["flights"].as_u64().unwrap_or(0);
            let Some((before, since)) = before else { continue };
            let seconds = at.duration_since(*since).as_secs_f64().max(0.1);
            let rate = |fields: &[&str]| {
                let number = |answer: &Value| {
                    fields.iter().filter_map(|field| answer["stats"][field].as_u64()).sum::<u64>()
                };
                number(last).saturating_sub(number(before)) as f64 / seconds
            };
            second.hits += rate(&["hits", "local", "stale"]);
            second.loads += rate(&["loads"]);
            second.failures += rate(&["failures"]);
            second.waited += rate(&["followed", "received"]);
            second.degraded += rate(&["degraded"]);
            for pair in last["keys"].as_array().into_iter().flatten() {
                let (Some(key), Some(count)) = (pair[0].as_str(), pair[1].as_f64()) else {
                    continue;
                };
                *keys.entry(key.to_owned()).or_default() += count / seconds;
            }
        }
        second.keys = keys.into_iter().collect();
        second.keys.sort_by(|one, other| other.1.total_cmp(&one.1));
        second.keys.truncate(ROWS);
        second
    }
}

/// Shows the screen until Ctrl-C, or for some seconds.
pub(crate) async fn watch(
    server: &Server,
    seconds: Option<u64>,
    json: bool,
) -> Result<Exit, Failure> {
    let backend = server.backend()?;
    backend.ping().await?;
    let namespace = Namespace::new(&server.namespace)?;
    let name = Name::new(&namespace, Family::Cache, &Key::from(QUESTIONS), 512)?;
    let mut answers = keep_hearing(server.clone(), name.suffixed("a")).await?;
    let mut locks = keep_listing(Locks::new(backend.clone(), &server.namespace));
    let is_screen = !json && io::stdout().is_terminal();
    let _screen = is_screen.then(Screen::open);
    let (mut fleet, mut shown, mut failure) = (Fleet::default(), 0, None);
    let mut ticks = interval(SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ended = std::pin::pin!(ctrl_c());
    loop {
        tokio::select! {
            _ = &mut ended => return Ok(Exit::Well),
            Some(answer) = answers.recv() => fleet.hear(&answer),
            _ = ticks.tick() => {
                let second = Second { failure: failure.take(), ..fleet.second() };
                let locks = locks.borrow_and_update().clone();
                let text = if json { text_json(&second, &locks) } else { text(server, &second, &locks) };
                if is_screen { Screen::show(&text) } else { show::print(&text) }
                if seconds.is_some_and(|seconds| shown >= seconds) {
                    return Ok(Exit::Well);
                }
                shown += 1;
                // The question: whoever listens to this name is woken.
                let asked = backend.clear(&name, Mode::Exclusive).await;
                failure = asked.err().map(|error| in_full(&error));
            }
        }
    }
}

/// Subscribes to the answers, and does so again after each break.
async fn keep_hearing(
    server: Server,
    channel: String,
) -> Result<mpsc::UnboundedReceiver<Vec<u8>>, Failure> {
    let mut subscribed = subscribe(&server, &channel).await?;
    let (hear, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        loop {
            let mut answers = subscribed.into_on_message();
            while let Some(answer) = answers.next().await {
                if hear.send(answer.get_payload_bytes().to_vec()).is_err() {
                    return;
                }
            }
            subscribed = loop {
                sleep(SECOND).await;
                match subscribe(&server, &channel).await {
                    Ok(again) => break again,
                    Err(_) if hear.is_closed() => return,
                    Err(_) => {}
                }
            };
        }
    });
    Ok(heard)
}

/// Subscribes at the first of the servers that answers. With sentinels, that is the master.
async fn subscribe(server: &Server, channel: &str) -> Result<PubSub, Failure> {
    let mut failure = None;
    for url in &server.url {
        match timeout(PATIENCE, subscribe_at(server, url, channel)).await {
            Ok(Ok(answers)) => return Ok(answers),
            Ok(Err(error)) => failure = Some(error),
            Err(late) => failure = Some(late.into()),
        }
    }
    Err(failure.unwrap_or_else(|| "no URL is given".into()))
}

async fn subscribe_at(server: &Server, url: &str, channel: &str) -> Result<PubSub, Failure> {
    let mut client = Client::open(url)?;
    if let Some(name) = &server.master {
        let mut sentinel = client.get_multiplexed_async_connection().await?;
        let master = master_of(name, &mut sentinel).await?;
        client = Client::open(master.ok_or("the sentinels watch no master of this name")?)?;
    }
    let mut answers = client.get_async_pubsub().await?;
    answers.subscribe(channel).await?;
    Ok(answers)
}

/// Lists the locks again and again. A search of many keys takes longer than a second.
fn keep_listing(locks: Locks) -> watch::Receiver<Vec<ListedLock>> {
    let (list, listed) = watch::channel(Vec::new());
    tokio::spawn(async move {
        while !list.is_closed() {
            // While the server is away, the last list stays.
            if let Ok(locks) = locks.list().await {
                list.send_replace(locks);
            }
            sleep(SECOND).await;
        }
    });
    listed
}

fn text(server: &Server, second: &Second, locks: &[ListedLock]) -> String {
    let address = show::without_password(&server.url[0]);
    let mut text = format!("bellwether top: {} at {address}\n\n", server.namespace);
    if let Some(failure) = &second.failure {
        text += &format!("the server does not answer: {failure}\n");
    }
    let Second { processes, flights, hits, loads, failures, waited, degraded, .. } = second;
    text += &match processes {
        0 if second.failure.is_some() => String::new(),
        0 => "no process of this namespace answers; spawn `Cache::answer_top` in each\n".to_owned(),
        _ => format!(
            "{processes} processes   {hits:.0} hits/s   {loads:.1} loads/s   {failures:.1} failed/s   \
             {waited:.0} waited/s   {degraded:.0} degraded/s   {flights} flights\n"
        ),
    };
    let mut rows = vec![["BUSIEST KEYS".to_owned(), "REQUESTS/S".to_owned()]];
    rows.extend(second.keys.iter().map(|(key, rate)| [key.clone(), format!("{rate:.0}")]));
    let locks = show::locks(&server.namespace, &locks[..locks.len().min(ROWS)]);
    format!("{text}\n{}\n{locks}", show::table(&rows))
}

fn text_json(second: &Second, locks: &[ListedLock]) -> String {
    let keys: Vec<_> = second.keys.iter().map(|(key, rate)| json!([key, rate])).collect();
    json!({
        "error": second.failure,
        "processes": second.processes,
        "flights": second.flights,
        "hits": second.hits,
        "loads": second.loads,
        "failures": second.failures,
        "waited": second.waited,
        "degraded": second.degraded,
        "keys": keys,
        "locks": locks.iter().map(show::lock_json).collect::<Vec<_>>(),
    })
    .to_string()
}

/// The second screen of a terminal, which leaves the first one as it was.
struct Screen;

impl Screen {
    fn open() -> Self {
        print!("\x1b[?1049h\x1b[?25l");
        Self
    }

    /// Shows a text from the first line on.
    fn show(text: &str) {
        // Each line ends what stood there before, and so does the last one of the rest.
        print!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n"));
        let _ = io::stdout().flush();
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        print!("\x1b[?25h\x1b[?1049l");
        let _ = io::stdout().flush();
    }
}
