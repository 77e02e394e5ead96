//! A screen of what goes on, refreshed each second: the busiest keys, the loads and the locks.
//!
//! The server knows the locks. Only the processes know the requests and the loads. The screen asks
//! the processes on a channel of the namespace, and the processes that spawned `answer_top` answer.
//!
//! The screen says which facts are not known, because an empty screen would be read as a fleet
//! without locks.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    Exit, Failure, Server, address,
    doctor::{PATIENCE, master_of},
    fleet::{Fleet, Second},
    in_full,
    screen::{Screen, Size},
    show,
    signals::{Ends, Resizes},
};

const SECOND: Duration = Duration::from_secs(1);
/// How many keys, and how many locks, are shown if the output is no terminal.
const ROWS: usize = 10;
/// A list of locks that is older says so.
const RECENT: Duration = Duration::from_secs(3);
/// How many locks are read again each second. The rows of further locks are from the last search.
const REFRESHED: usize = 20;
/// The pause behind a search, in times of the search.
const PAUSES: u32 = 4;
/// The key whose channels have the questions and the answers.
const QUESTIONS: &str = "bellwether-top";
/// The column of a lock that tells its callers here, because the screen is narrow.
const FENCE: usize = 6;
const LEGEND: &str = "WAITING: at the server. CALLERS: in the processes that answer\n";

/// What is known of the locks.
#[derive(Clone, Default)]
struct Listing {
    /// The locks that the last whole search found, or those that the first one has found so far.
    locks: Vec<ListedLock>,
    /// When the last whole search began. `None` before its end.
    as_of: Option<Instant>,
    /// When the first rows were looked at again.
    refreshed: Option<Instant>,
    /// Why the last search failed.
    failure: Option<String>,
}

/// All that a screen shows.
struct View<'a> {
    server: &'a Server,
    /// Why the server did not take the last question.
    failure: Option<String>,
    second: Second,
    listing: Listing,
}

/// Shows the screen until a signal, or for some seconds. The screen also ends when its reader has
/// gone, because the fleet counts keys while a screen asks.
pub(crate) async fn watch(
    server: &Server,
    seconds: Option<u64>,
    json: bool,
) -> Result<Exit, Failure> {
    let backend = server.backend()?;
    let namespace = Namespace::new(&server.namespace)?;
    backend.ping().await?;
    let name = Name::new(&namespace, Family::Cache, &Key::from(QUESTIONS), 512)?;
    let of_locks = Name::new(&namespace, Family::Lock, &Key::from(QUESTIONS), 512)?;
    let channels = [&name, &of_locks].map(|name| name.suffixed("a"));
    let mut answers = Answers::hear(server.clone(), channels).await?;
    let mut listed = keep_listing(Locks::new(backend.clone(), &server.namespace));
    let mut ends = Ends::new()?;
    let mut resizes = Resizes::new()?;
    let screen = if json { None } else { Screen::open()? };
    let mut fleet = Fleet::default();
    let mut shown = 0;
    let mut view =
        View { server, failure: None, second: fleet.second(), listing: Listing::default() };
    let mut ticks = interval(SECOND);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = ends.next() => return Ok(Exit::Well),
            () = resizes.next() => view.show(screen.as_ref(), json)?,
            Some(answer) = answers.queue.recv() => fleet.hear(&answer),
            _ = ticks.tick() => {
                view.second = fleet.second();
                view.listing = listed.borrow_and_update().clone();
                view.show(screen.as_ref(), json)?;
                if seconds.is_some_and(|seconds| shown >= seconds) {
                    return Ok(Exit::Well);
                }
                shown += 1;
                // The question: whoever listens to this name is woken.
                let asked = backend.clear(&name, Mode::Exclusive).await;
                fleet.asked(asked.is_ok() && answers.are_heard.load(Ordering::Relaxed));
                view.failure = asked.err().map(|error| in_full(&error));
                // Without the right to ask, callers are not known.
                let _ = backend.clear(&of_locks, Mode::Exclusive).await;
            }
        }
    }
}

/// The answers of the fleet.
struct Answers {
    queue: mpsc::UnboundedReceiver<Vec<u8>>,
    /// Whether the subscription stands.
    are_heard: Arc<AtomicBool>,
}

impl Answers {
    /// Subscribes to the answers, and does so again after each break.
    async fn hear(server: Server, channels: [String; 2]) -> Result<Self, Failure> {
        let mut subscribed = subscribe(&server, &channels).await?;
        let (hear, queue) = mpsc::unbounded_channel();
        let are_heard = Arc::new(AtomicBool::new(true));
        let answers = Self { queue, are_heard: are_heard.clone() };
        tokio::spawn(async move {
            loop {
                let mut messages = subscribed.into_on_message();
                while let Some(message) = messages.next().await {
                    if hear.send(message.get_payload_bytes().to_vec()).is_err() {
                        return;
                    }
                }
                are_heard.store(false, Ordering::Relaxed);
                subscribed = loop {
                    sleep(SECOND).await;
                    match subscribe(&server, &channels).await {
                        Ok(again) => break again,
                        Err(_) if hear.is_closed() => return,
                        Err(_) => {}
                    }
                };
                are_heard.store(true, Ordering::Relaxed);
            }
        });
        Ok(answers)
    }
}

/// Subscribes at the first of the servers that answers. With sentinels, that is the master.
async fn subscribe(server: &Server, channels: &[String; 2]) -> Result<PubSub, Failure> {
    let mut failure = None;
    for url in &server.urls()? {
        match timeout(PATIENCE, subscribe_at(server, url, channels)).await {
            Ok(Ok(answers)) => return Ok(answers),
            Ok(Err(error)) => failure = Some(error),
            Err(late) => failure = Some(late.into()),
        }
    }
    Err(failure.unwrap_or_else(|| "no URL is given".into()))
}

async fn subscribe_at(
    server: &Server,
    url: &str,
    [of_caches, of_locks]: &[String; 2],
) -> Result<PubSub, Failure> {
    let mut client = Client::open(url)?;
    if let Some(name) = &server.master {
        let mut sentinel = client.get_multiplexed_async_connection().await?;
        let master = master_of(name, &mut sentinel).await?;
        client = Client::open(master.ok_or("the sentinels watch no master of this name")?)?;
    }
    let mut answers = client.get_async_pubsub().await?;
    answers.subscribe(of_caches).await?;
    // Without the right to hear of locks, callers are not known.
    let _ = answers.subscribe(of_locks).await;
    Ok(answers)
}

/// Lists the locks again and again. A search of many keys takes longer than a second.
fn keep_listing(locks: Locks) -> watch::Receiver<Listing> {
    let (list, listed) = watch::channel(Listing::default());
    tokio::spawn(async move {
        while !list.is_closed() {
            let begun = Instant::now();
            let mut searching = pin!(search(&locks, &list));
            let searched = loop {
                tokio::select! {
                    searched = &mut searching => break searched,
                    () = sleep(SECOND) => refresh(&locks, &list).await,
                }
            };
            match searched {
                Ok(locks) => {
                    let as_of = Some(begun);
                    let listing = Listing { locks, as_of, ..Listing::default() };
                    list.send_replace(listing);
                }
                // While the server is away, the last list stays.
                Err(error) => list.send_modify(|listing| listing.failure = Some(in_full(&error))),
            }
            // Searches take a small part of the server's time.
            let next = Instant::now() + begun.elapsed().saturating_mul(PAUSES).max(SECOND);
            while Instant::now() < next && !list.is_closed() {
                sleep(SECOND.min(next.saturating_duration_since(Instant::now()))).await;
                refresh(&locks, &list).await;
            }
        }
    });
    listed
}

/// Looks again at the locks that a screen shows, so that their rows are of now.
async fn refresh(locks: &Locks, list: &watch::Sender<Listing>) {
    let listing = list.borrow().clone();
    if listing.as_of.is_none() {
        return;
    }
    let mut fresh = Vec::new();
    let shown = &listing.locks[..listing.locks.len().min(REFRESHED)];
    let names: BTreeSet<_> = shown.iter().map(|lock| lock.name.as_str()).collect();
    for name in &names {
        match locks.explain(*name).await {
            Ok(found) => fresh.extend(found),
            Err(_) => return,
        }
    }
    let others = listing.locks.iter().filter(|lock| !names.contains(lock.name.as_str()));
    fresh.extend(others.cloned());
    ListedLock::sort(&mut fresh);
    list.send_modify(|listing| {
        listing.locks = fresh;
        listing.refreshed = Some(Instant::now());
    });
}

/// Searches for all locks. The locks of the first search are shown as they are found.
async fn search(
    locks: &Locks,
    list: &watch::Sender<Listing>,
) -> Result<Vec<ListedLock>, bellwether::Error> {
    let mut search = locks.search();
    let mut all = Vec::new();
    let mut told = Instant::now();
    while let Some(found) = search.next().await? {
        all.extend(found);
        let is_first = list.borrow().as_of.is_none();
        if is_first && told.elapsed() >= SECOND / 2 {
            told = Instant::now();
            ListedLock::sort(&mut all);
            let locks = all.clone();
            list.send_modify(|listing| *listing = Listing { locks, ..Listing::default() });
        }
    }
    ListedLock::sort(&mut all);
    Ok(all)
}

impl View<'_> {
    fn show(&self, screen: Option<&Screen>, json: bool) -> Result<(), Failure> {
        match screen {
            Some(screen) => {
                let size = Size::of_output().unwrap_or(Size { columns: 80, rows: 24 });
                screen.show(&self.text(size), size)?;
            }
            None if json => show::print_json(&self.json())?,
            None => show::print(&self.text(Size::NO_LIMIT))?,
        }
        Ok(())
    }

    /// Returns what fits on a screen of this size.
    fn text(&self, size: Size) -> String {
        let address =
            self.server.urls().map_or_else(|_| String::new(), |urls| address::shown(&urls[0]));
        let mut head = vec![format!("bellwether top: {} at {address}", self.server.namespace)];
        head.push(String::new());
        head.extend(self.of_fleet());
        let of_locks = self.of_locks();
        let head_rows = head.len() + usize::from(of_locks.is_some()) + 4 + LEGEND.lines().count();
        let (keys, locks) = self.shares(size.rows.saturating_sub(head_rows));
        let mut rows = vec![["BUSIEST KEYS".to_owned(), "REQUESTS/S".to_owned()]];
        rows.extend(
            self.second
                .keys
                .iter()
                .take(keys)
                .map(|(key, rate)| [key.clone(), format!("{rate:.0}")]),
        );
        let mut text =
            format!("{}\n\n{}", head.join("\n"), show::table_within(&rows, size.columns));
        text += &and_more(self.second.keys.len(), keys);
        text.push('\n');
        if let Some(words) = of_locks {
            text += &format!("{words}\n");
        }
        if !self.listing.locks.is_empty() {
            let shown = &self.listing.locks[..self.listing.locks.len().min(locks)];
            text += &self.lock_rows(shown, size.columns);
            text += &and_more(self.listing.locks.len(), locks);
        }
        text
    }

    /// Returns how many keys and how many locks are shown in so many rows. Rows that the keys do
    /// not need are for the locks, and the other way round. If not all fit, a row says so.
    fn shares(&self, rows: usize) -> (usize, usize) {
        let all_keys = self.second.keys.len();
        let all_locks = self.listing.locks.len();
        if rows > all_keys.saturating_add(all_locks) && rows < usize::MAX / 2 {
            return (all_keys, all_locks);
        }
        if rows >= usize::MAX / 2 {
            return (ROWS, ROWS);
        }
        // Locks come first: a stuck lock is looked for.
        let for_locks = all_locks.min(rows.div_ceil(2).max(rows.saturating_sub(all_keys)));
        let for_keys = rows - for_locks;
        (shown_in(for_keys, all_keys), shown_in(for_locks, all_locks))
    }

    /// Says what the processes do, or why that is not known.
    fn of_fleet(&self) -> Vec<String> {
        if let Some(failure) = &self.failure {
            return vec![format!("the server does not answer: {}", show::in_line(failure))];
        }
        let second = &self.second;
        let processes = match second.processes {
            None => return vec!["asking the processes of this namespace".to_owned()],
            Some(0) => {
                let advice = "spawn `answer_top` of a cache or of `Locks` in each";
                return vec![format!("no process of this namespace answers; {advice}")];
            }
            Some(processes) => processes,
        };
        let rates = match &second.rates {
            None if !second.has_caches => "no cache answers".to_owned(),
            None => "rates are not known yet".to_owned(),
            Some(rates) => format!(
                "{:.0} hits/s   {:.1} loads/s   {:.1} failed/s   {:.0} waited/s   {:.0} degraded/s",
                rates.hits, rates.loads, rates.failures, rates.waited, rates.degraded
            ),
        };
        // Two lines, so that they fit 80 columns.
        vec![format!("{processes} processes   {} flights", second.flights), rates]
    }

    /// Returns a table of locks, with the number of callers that the processes answered.
    fn lock_rows(&self, locks: &[ListedLock], columns: usize) -> String {
        let mut head = show::LOCKS;
        head[FENCE] = "CALLERS";
        let mut rows = vec![head.map(str::to_owned)];
        for lock in locks {
            let mut row = show::lock_row(lock);
            row[FENCE] = match self.second.callers(lock) {
                None => "not known".to_owned(),
                Some(callers) if callers.is_least => format!("{} or more", callers.count),
                Some(callers) => callers.count.to_string(),
            };
            rows.push(row);
        }
        show::table_within(&rows, columns) + LEGEND
    }

    /// Returns the locks and their callers. `locks` has no callers, because it asks no process.
    fn locks_json(&self) -> Value {
        let locks = self.listing.locks.iter().map(|lock| {
            let callers = self.second.callers(lock);
            let mut fields = show::lock_json(lock);
            fields["callers"] = callers.as_ref().map(|callers| callers.count).into();
            fields["more_callers"] = callers.map(|callers| callers.is_least).into();
            fields
        });
        Value::Array(locks.collect())
    }

    /// Says what the list of locks lacks, unless the list is complete and new.
    fn of_locks(&self) -> Option<String> {
        let Listing { locks, as_of, refreshed, failure } = &self.listing;
        let failure = failure.as_deref().map(show::in_line);
        match (as_of, failure) {
            (None, Some(failure)) => Some(format!("LOCKS are not known: {failure}")),
            (None, None) => Some(format!("searching for locks; {} found so far", locks.len())),
            (Some(as_of), Some(failure)) => {
                let age = show::time(as_of.elapsed());
                Some(format!("LOCKS of {age} ago; the search after that failed: {failure}"))
            }
            (Some(as_of), None) if locks.is_empty() => {
                let no_lock = show::no_lock(&self.server.namespace);
                let age = as_of.elapsed();
                // A lock that came since is not known yet.
                let as_of = format!(", as of a search {} ago", show::time(age));
                Some(if age > RECENT { no_lock + &as_of } else { no_lock })
            }
            (Some(as_of), None) if as_of.elapsed() > RECENT => {
                let age = show::time(as_of.elapsed());
                let is_fresh = refreshed.is_some_and(|at| at.elapsed() <= RECENT);
                let of_now = if is_fresh { ", and the rows below of now" } else { "" };
                Some(format!("LOCKS of a search {age} ago{of_now}"))
            }
            (Some(_), None) => None,
        }
    }

    fn json(&self) -> Value {
        let second = &self.second;
        let listing = &self.listing;
        let mut keys = Vec::new();
        for (key, rate) in second.keys.iter().take(ROWS) {
            keys.push(json!([key, rate]));
        }
        let rates = second.rates.as_ref();
        // What is not known is `null`.
        let locks = listing.as_of.map(|_| self.locks_json());
        json!({
            "error": self.failure.as_ref().or(listing.failure.as_ref()),
            "processes": second.processes,
            "flights": second.processes.map(|_| second.flights),
            "hits": rates.map(|rates| rates.hits),
            "loads": rates.map(|rates| rates.loads),
            "failures": rates.map(|rates| rates.failures),
            "waited": rates.map(|rates| rates.waited),
            "degraded": rates.map(|rates| rates.degraded),
            "keys": keys,
            "searching": listing.as_of.is_none() && listing.failure.is_none(),
            "locks": locks,
            "locks_age_ms": listing.as_of.map(|as_of| show::millis(as_of.elapsed())),
        })
    }
}

/// Returns how many of all are shown in so many rows. If not all fit, a row says how many more
/// there are.
fn shown_in(rows: usize, all: usize) -> usize {
    if all > rows { rows.saturating_sub(1) } else { all }
}

/// Says how many are not shown.
fn and_more(all: usize, shown: usize) -> String {
    match all.saturating_sub(shown) {
        0 => String::new(),
        more => format!("and {more} more\n"),
    }
}
