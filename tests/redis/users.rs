//! The scenarios of two users, whose processes share a server.

use std::{
    process::Stdio,
    time::{Duration, SystemTime},
};

use bellwether::{Cache, RedisBackend, http_cache, layer::CachedResponse, lease::Retry};
use futures_util::{StreamExt, stream};
use testkit::{LIMIT, RedisServer};
use tokio::{process::Command, time::sleep};

use crate::scenarios::{Order, Scenario, scenarios, shared_scenarios};

/// The environment variable that makes this process the one of a user. It holds a [`Visit`].
const VARIABLE: &str = "BELLWETHER_VISIT";

/// The time between two scenarios, in which the processes play each at the same time.
const PACE: Duration = Duration::from_millis(4);

/// Which requests a process sends: its user, and the kind of scenarios.
struct Visit {
    url: String,
    user: usize,
    part: Part,
    /// When it begins, in milliseconds since 1970.
    at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Part {
    /// Scenarios in which the users ask one after the other.
    After,
    /// Scenarios in which they ask at once.
    AtOnce,
    /// The values that all have stored.
    Again,
    /// Scenarios of equal users.
    Shared,
}

impl Visit {
    fn to_text(&self) -> String {
        format!("{} {} {:?} {}", self.url, self.user, self.part, self.at)
    }

    fn of_text(text: &str) -> Self {
        let [url, user, part, at] = text.split(' ').collect::<Vec<_>>().try_into().unwrap();
        let parts = [Part::After, Part::AtOnce, Part::Again, Part::Shared];
        let part = parts.into_iter().find(|known| format!("{known:?}") == part).unwrap();
        Self { url: url.to_owned(), user: user.parse().unwrap(), part, at: at.parse().unwrap() }
    }

    /// Returns the scenarios with their numbers.
    fn scenarios(&self) -> Vec<(usize, Scenario)> {
        let some = scenarios().into_iter().enumerate().filter(|(at, _)| at % 4 == 2);
        match self.part {
            Part::After => some.filter(|(_, own)| own.order == Order::After).collect(),
            Part::AtOnce => some.filter(|(_, own)| own.order != Order::After).collect(),
            Part::Again => some.collect(),
            Part::Shared => {
                let shared = shared_scenarios().into_iter().enumerate();
                shared.map(|(at, (scenario, _))| (at, scenario)).collect()
            }
        }
    }

    /// Plays the scenarios, and returns the number of calls of the origin.
    async fn play(&self) -> usize {
        let backend = testkit::open(&self.url);
        backend.ping().await.unwrap();
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
        sleep(Duration::from_millis(self.at).saturating_sub(now)).await;
        let begun = tokio::time::Instant::now();
        let visits = self.scenarios().into_iter().enumerate().map(|(turn, (at, scenario))| {
            let name = if self.part == Part::Shared { at + 100_000 } else { at };
            let cache = cache(&backend, name);
            async move {
                // The second user comes while the body of the first one arrives.
                let is_late = scenario.order == Order::Meanwhile && self.user == 1;
                let late = if is_late { 4 * PACE } else { Duration::ZERO };
                tokio::time::sleep_until(begun + PACE * turn as u32 + late).await;
                scenario.visit(cache, self.user, self.part == Part::Again).await
            }
        });
        let calls: Vec<_> = stream::iter(visits).buffer_unordered(AT_ONCE).collect().await;
        calls.into_iter().sum()
    }
}

/// The process of a user. Returns at once unless this process was started as one.
#[tokio::test]
async fn visitor() {
    let Ok(text) = std::env::var(VARIABLE) else { return };
    println!("\n{CALLS}{}", Visit::of_text(&text).play().await);
}

const CALLS: &str = "calls of the origin: ";

/// Lets users visit at the same time, each in a process of its own. Returns the number of calls of
/// the origin.
async fn visit(server: &RedisServer, users: &[usize], part: Part) -> usize {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let at = u64::try_from((now + Duration::from_millis(500)).as_millis()).unwrap();
    let started: Vec<_> = users
        .iter()
        .map(|user| {
            let visit = Visit { url: server.url(), user: *user, part, at };
            let mut command = Command::from(testkit::rerun("users::visitor"));
            command.env(VARIABLE, visit.to_text()).stdout(Stdio::piped()).kill_on_drop(true);
            command.spawn().unwrap()
        })
        .collect();
    let mut calls = 0;
    for process in started {
        let output = process.wait_with_output().await.unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{users:?} {part:?}: {text}");
        let told = text.lines().find_map(|line| line.strip_prefix(CALLS)).unwrap();
        calls += told.parse::<usize>().unwrap();
    }
    calls
}

#[tokio::test]
async fn two_users_in_two_processes_of_the_system_get_what_is_theirs() {
    let server = RedisServer::start().await;
    for (users, part) in [
        (&[0][..], Part::After),
        (&[1], Part::After),
        (&[0, 1], Part::AtOnce),
        (&[0, 1], Part::Again),
    ] {
        visit(&server, users, part).await;
    }
    // It would show nothing if no answer were shared.
    visit(&server, &[0], Part::Shared).await;
    let reloads = shared_scenarios().into_iter().filter(|(_, calls)| *calls > 1).count();
    assert_eq!(visit(&server, &[1], Part::Shared).await, reloads);
}

/// How many scenarios run at once.
const AT_ONCE: usize = 16;

fn cache(backend: &RedisBackend, scenario: usize) -> Cache<CachedResponse> {
    http_cache(backend.clone(), format!("shop-{scenario}"))
        .retry(Retry::on_demand().try_limit(LIMIT))
        .build()
        .unwrap()
}

/// Returns two processes that share a server.
fn processes(server: &RedisServer) -> [RedisBackend; 2] {
    [(), ()].map(|()| testkit::open(server.url()))
}

#[tokio::test]
async fn two_users_of_two_processes_get_what_is_theirs() {
    let server = RedisServer::start().await;
    let backends = processes(&server);
    // A part of them, in which each order, form and delivery occurs.
    let some = scenarios().into_iter().enumerate().filter(|(at, _)| at % 4 == 0);
    let count = stream::iter(some)
        .map(|(at, scenario)| {
            let caches = [0, 1].map(|process| cache(&backends[process], at));
            async move { scenario.run(caches).await }
        })
        .buffer_unordered(AT_ONCE)
        .count()
        .await;
    assert!(count >= 300, "{count} scenarios");
}

/// The scenarios would show nothing if no answer were shared.
#[tokio::test]
async fn equal_users_of_two_processes_share_in_the_same_scenarios() {
    let server = RedisServer::start().await;
    let backends = processes(&server);
    for (at, (scenario, calls)) in shared_scenarios().into_iter().enumerate() {
        let caches = [0, 1].map(|process| cache(&backends[process], at));
        assert_eq!(scenario.run(caches).await, calls, "{scenario:#?}");
    }
}
