//! Servers that are far away. The time that they have for an answer follows the round trip.

use std::{
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellwether::{
    ErrorKind, MemoryBackend, RedisBackend, Redlock,
    backend::RoundTrip,
    error::{BackendError, BackendErrorKind},
};
use futures_util::future::join_all;
use testkit::{
    LIMIT, RedisServer, comes_true,
    interceptor::{Answer, Hook, Interceptor, Operation},
    proxy::Proxy,
};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use super::{
    MS, kind,
    played::{ANSWER, servers},
    shares,
};

const HOUR: Duration = Duration::from_secs(3600);

/// The link to one server in memory.
#[derive(Clone, Copy)]
struct Far {
    /// It is `None` if the server hangs.
    round_trip: Option<Duration>,
    /// Requests wait for the connection until then.
    connected: Instant,
}

impl Far {
    fn hanging() -> Self {
        Self { round_trip: None, connected: Instant::now() }
    }

    fn by(round_trip: Duration) -> Self {
        Self { round_trip: Some(round_trip), connected: Instant::now() }
    }
}

impl Hook<MemoryBackend> for Far {
    async fn around(
        &self,
        inner: &MemoryBackend,
        operation: Operation,
    ) -> Result<Answer, BackendError> {
        sleep_until(self.connected).await;
        let Some(round_trip) = self.round_trip else { return pending().await };
        let inner = inner.clone();
        // It arrives even if its caller gives up.
        let on_its_way = tokio::spawn(async move {
            sleep(round_trip / 2).await;
            operation.perform(&inner).await
        });
        let lost = |error| BackendError::new(BackendErrorKind::Unknown, error);
        let answer = on_its_way.await.map_err(lost)?;
        sleep(round_trip / 2).await;
        answer
    }

    fn round_trip(&self) -> RoundTrip {
        match self.round_trip {
            Some(round_trip) if Instant::now() >= self.connected => RoundTrip::Measured(round_trip),
            _ => RoundTrip::Unmeasured,
        }
    }
}

/// Returns a client of these servers, each behind its link.
fn behind(servers: &[MemoryBackend], links: &[Far]) -> Redlock {
    let one =
        |(server, link): (&MemoryBackend, &Far)| Interceptor { inner: server.clone(), hook: *link };
    Redlock::new(servers.iter().zip(links).map(one)).unwrap()
}

/// Has some tasks of each client hold the lock a number of times.
async fn contend(clients: Vec<Redlock>, tasks: usize, times: usize) {
    let mut running = JoinSet::new();
    for client in clients.iter().flat_map(|client| std::iter::repeat_n(client, tasks)) {
        let mutex = client.mutex("m");
        running.spawn(async move {
            for _ in 0..times {
                mutex.lock().await.unwrap().unlock().await.unwrap();
            }
        });
    }
    running.join_all().await;
}

/// A lock whose servers were more than 50 ms away was never granted.
#[tokio::test(start_paused = true)]
async fn a_lock_of_servers_far_away_is_granted_in_one_try() {
    for round_trip in [100 * MS, 200 * MS, 300 * MS] {
        let servers: [_; 3] = servers();
        // Connecting takes several round trips, in which a try must not end.
        let connected = Instant::now() + 3 * round_trip;
        let link = Far { connected, ..Far::by(round_trip) };
        let client = behind(&servers, &[link; 3]);
        for connecting in [3 * round_trip, Duration::ZERO] {
            let begun = Instant::now();
            let guard = client.mutex("m").try_lock().await.unwrap().unwrap();
            let took = begun.elapsed();
            assert!(took <= connecting + round_trip + 15 * MS, "{round_trip:?}: {took:?}");
            // Renewals have the time as well.
            sleep(Duration::from_secs(30)).await;
            assert!(!guard.is_lost());
            let begun = Instant::now();
            guard.unlock().await.unwrap();
            assert!(begun.elapsed() <= round_trip + 5 * MS, "{:?}", begun.elapsed());
            assert_eq!(shares(&servers, "m").await, 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn contenders_for_a_lock_of_servers_far_away_all_get_it() {
    for round_trip in [100 * MS, 200 * MS] {
        let servers: [_; 3] = servers();
        let client = || behind(&servers, &[Far::by(round_trip); 3]);
        let begun = Instant::now();
        contend((0..4).map(|_| client()).collect(), 2, 5).await;
        let each = begun.elapsed() / 40;
        println!("{round_trip:?}: {each:?} for each hold");
        assert!(each <= 4 * round_trip, "{round_trip:?}: {each:?}");
        sleep(round_trip).await;
        assert_eq!(shares(&servers, "m").await, 0);
    }
}

/// A claim looks at all servers from time to time, in its turn or not. Over a long round trip it
/// did so before its turn could come: two of four processes had 4 and 8 holds, and the others 110.
#[tokio::test(start_paused = true)]
async fn processes_have_a_lock_of_servers_far_away_in_turn() {
    for round_trip in [100 * MS, 200 * MS] {
        let servers: [_; 3] = servers();
        let holds: [_; 4] = std::array::from_fn(|_| Arc::new(AtomicUsize::new(0)));
        let mut running = JoinSet::new();
        for holds in &holds {
            let client = behind(&servers, &[Far::by(round_trip); 3]);
            for _ in 0..4 {
                let (mutex, holds) = (client.mutex("m").wait_limit(HOUR), holds.clone());
                running.spawn(async move {
                    loop {
                        let guard = mutex.lock().await.unwrap();
                        holds.fetch_add(1, Ordering::Relaxed);
                        sleep(MS).await;
                        guard.unlock().await.unwrap();
                    }
                });
            }
        }
        sleep(Duration::from_secs(200)).await;
        let holds = holds.map(|holds| holds.load(Ordering::Relaxed));
        println!("{round_trip:?}: {holds:?} holds");
        let (fewest, most) = (holds.iter().min().unwrap(), holds.iter().max().unwrap());
        assert!(*fewest > 0 && fewest * 10 >= most * 3, "{round_trip:?}: {holds:?}");
    }
}

/// The others are a majority, so the time that all have does not follow the one far away.
#[tokio::test(start_paused = true)]
async fn one_server_far_away_does_not_slow_down_the_others() {
    let servers: [_; 3] = servers();
    for far in [Far::by(500 * MS), Far::hanging()] {
        for at in 0..3 {
            let mut links = [Far::by(4 * MS); 3];
            links[at] = far;
            let client = behind(&servers, &links);
            for _ in 0..3 {
                let begun = Instant::now();
                let guard = client.mutex("m").lock().await.unwrap();
                assert!(begun.elapsed() <= ANSWER + 5 * MS, "{:?}", begun.elapsed());
                let begun = Instant::now();
                guard.unlock().await.unwrap();
                assert!(begun.elapsed() <= ANSWER + 5 * MS, "{:?}", begun.elapsed());
            }
            // The undo and the releases reach the server far away as well.
            sleep(Duration::from_secs(2)).await;
            assert_eq!(shares(&servers, "m").await, 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_hanging_server_costs_a_few_round_trips_of_the_others() {
    for round_trip in [100 * MS, 200 * MS] {
        let servers: [_; 3] = servers();
        for at in 0..3 {
            let mut links = [Far::by(round_trip); 3];
            links[at] = Far::hanging();
            let client = behind(&servers, &links);
            let begun = Instant::now();
            let guard = client.mutex("m").lock().await.unwrap();
            assert!(begun.elapsed() <= 4 * round_trip + 5 * MS, "{:?}", begun.elapsed());
            sleep(Duration::from_secs(30)).await;
            assert!(!guard.is_lost());
            let begun = Instant::now();
            guard.unlock().await.unwrap();
            assert!(begun.elapsed() <= 4 * round_trip + 5 * MS, "{:?}", begun.elapsed());
        }
    }
}

/// A caller tried again and again until its wait limit, and was then told that a server had not
/// answered.
#[tokio::test(start_paused = true)]
async fn a_lease_too_short_for_the_round_trip_is_told() {
    let servers: [_; 3] = servers();
    let client = behind(&servers, &[Far::by(150 * MS); 3]);
    let begun = Instant::now();
    let mutex = client.mutex("m").lease(200 * MS).wait_limit(1000 * MS);
    let error = mutex.lock().await.unwrap_err();
    assert!(begun.elapsed() <= 1500 * MS, "{:?}", begun.elapsed());
    let told = format!("{error:#}");
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(told.contains("takes 150.0ms; set a lease longer than 600.0ms"), "{told}");
    assert_eq!(kind(mutex.try_lock().await), ErrorKind::Backend);
    // Late shares have arrived, and were undone.
    sleep(300 * MS).await;
    assert_eq!(shares(&servers, "m").await, 0);
    let guard = client.mutex("m").lease(650 * MS).lock().await.unwrap();
    sleep(Duration::from_secs(5)).await;
    assert!(!guard.is_lost());
    // A longer limit is set.
    let links =
        servers.iter().map(|server| Interceptor { inner: server.clone(), hook: Far::by(150 * MS) });
    let client = Redlock::with_answer_limit(links, 160 * MS).unwrap();
    client.mutex("n").lease(400 * MS).lock().await.unwrap().unlock().await.unwrap();
}

async fn real_servers(round_trip: Duration) -> (Vec<RedisServer>, Vec<Proxy>) {
    let servers = join_all((0..3).map(|_| RedisServer::start())).await;
    let proxies: Vec<_> = servers.iter().map(|server| Proxy::start(server.port())).collect();
    proxies.iter().for_each(|proxy| proxy.lengthen_round_trip(round_trip));
    (servers, proxies)
}

fn client_of(proxies: &[Proxy]) -> Redlock {
    Redlock::new(proxies.iter().map(|proxy| RedisBackend::open(&proxy.url()).unwrap())).unwrap()
}

/// A lone caller had no hold in 5 s at a round trip of 60 ms.
#[tokio::test]
async fn real_servers_far_away_grant_a_lock() {
    for round_trip in [100 * MS, 200 * MS] {
        let (servers, proxies) = real_servers(round_trip).await;
        let begun = Instant::now();
        contend(vec![client_of(&proxies)], 1, 3).await;
        println!("{round_trip:?}: 3 holds in {:?}", begun.elapsed());
        let clients = (0..3).map(|_| client_of(&proxies)).collect();
        timeout(2 * LIMIT, contend(clients, 2, 2)).await.unwrap();
        println!("{round_trip:?}: all in {:?}", begun.elapsed());
        let nothing_held = async || {
            let mut raws = join_all(servers.iter().map(RedisServer::raw)).await;
            join_all(raws.iter_mut().map(|raw| raw.keys("*:l"))).await.concat().is_empty()
        };
        assert!(comes_true(LIMIT, nothing_held).await);
    }
}

/// The connections stand while the link becomes slow, and quick again.
#[tokio::test]
async fn the_limit_follows_a_link_that_changes() {
    let (servers, proxies) = real_servers(2 * MS).await;
    let client = client_of(&proxies);
    let hold = async || timeout(LIMIT, contend(vec![client.clone()], 1, 2)).await.unwrap();
    hold().await;
    proxies.iter().for_each(|proxy| proxy.lengthen_round_trip(200 * MS));
    let begun = Instant::now();
    hold().await;
    println!("held in {:?} over the slow link", begun.elapsed());
    proxies.iter().for_each(|proxy| proxy.lengthen_round_trip(2 * MS));
    hold().await;
    servers[2].stop_signal();
    let begun = Instant::now();
    let guard = timeout(LIMIT, client.mutex("m").lock()).await.unwrap().unwrap();
    println!("held in {:?} beside a server that hangs", begun.elapsed());
    // It is four round trips of the slow link otherwise.
    assert!(begun.elapsed() < 600 * MS, "{:?}", begun.elapsed());
    drop(guard);
    servers[2].resume();
}
