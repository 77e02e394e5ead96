//! Random schedules of pushes that are late, of connections that break, and of tags that end.

use std::{collections::VecDeque, sync::Weak};

use bellwether::{backend::Tap, cache::LocalTier, error::BackendError};
use fastrand::Rng;
use testkit::interceptor::{Answer, Hook, Interceptor, Operation};
use tokio::{
    sync::Notify,
    task::{JoinSet, yield_now},
    time::timeout_at,
};

use crate::prelude::*;

const STALENESS: Duration = Duration::from_millis(200);
const KEYS: usize = 2;

/// What breaks the rules of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A push is lost, and its connection lives.
    LostPush,
    /// The proof that all was told overtakes the pushes.
    Pong,
    /// The tier is not told that its connection broke.
    UntoldBreak,
    /// The tag number of a value is read after its load.
    LateNumber,
    /// The tag number of a value is the time of its process, whose clock is wrong.
    Clock,
}

/// A process's connection for pushes.
#[derive(Clone)]
struct Connection(Arc<Mutex<Line>>, Arc<Notify>);

struct Line {
    rng: Rng,
    planted: Planted,
    tier: Option<Weak<dyn Tap>>,
    /// What is on its way, with when it arrives.
    queue: VecDeque<(Instant, Told)>,
    /// It is broken until then, and the server tells nothing.
    broken_until: Instant,
}

enum Told {
    Changed(String, u64),
    CompleteUntil(Instant),
}

/// The server's end.
struct Server(Connection);

impl Tap for Server {
    fn changed(&self, prefix: &str, fence: u64) {
        self.0.send(Told::Changed(prefix.to_owned(), fence));
    }

    fn lost(&self) {}

    fn complete_until(&self, _asked: Instant) {}
}

impl Connection {
    fn new(seed: u64, planted: Planted) -> Self {
        let rng = Rng::with_seed(seed);
        let broken_until = Instant::now();
        let line = Line { rng, planted, tier: None, queue: VecDeque::new(), broken_until };
        Self(Arc::new(Mutex::new(line)), Arc::default())
    }

    fn send(&self, told: Told) {
        let mut line = self.0.lock().unwrap();
        let now = Instant::now();
        let is_push = matches!(told, Told::Changed(..));
        let is_lost = is_push && line.planted == Planted::LostPush && line.rng.u8(..) < 40;
        if line.broken_until > now || is_lost {
            return;
        }
        // Most are fast, and some are late beyond the bound.
        let late =
            MS * if line.rng.u8(..) < 20 { line.rng.u32(0..600) } else { line.rng.u32(0..4) };
        let last = line.queue.back().map_or(now, |(at, _)| *at);
        match told {
            told if is_push || line.planted != Planted::Pong => {
                line.queue.push_back((last.max(now + late), told));
            }
            told => line.queue.push_front((now, told)),
        }
        self.1.notify_one();
    }

    /// Hands over what has arrived.
    fn receive(&self) {
        loop {
            let (tier, told) = {
                let mut line = self.0.lock().unwrap();
                match line.queue.front() {
                    Some((at, _)) if *at <= Instant::now() => {}
                    _ => return,
                }
                let Some((_, told)) = line.queue.pop_front() else { return };
                (line.tier.as_ref().and_then(Weak::upgrade), told)
            };
            // Without a tier, nothing listens.
            let Some(tier) = tier else { continue };
            match told {
                Told::Changed(prefix, fence) => tier.changed(&prefix, fence),
                Told::CompleteUntil(asked) => tier.complete_until(asked),
            }
        }
    }

    /// Breaks, with all that is on its way.
    fn cut(&self) {
        let mut line = self.0.lock().unwrap();
        line.queue.clear();
        line.broken_until = Instant::now() + MS * line.rng.u32(0..300);
        let tier = line.tier.clone();
        let planted = line.planted;
        drop(line);
        if let Some(tier) = tier.and_then(|tier| tier.upgrade())
            && planted != Planted::UntoldBreak
        {
            tier.lost();
        }
    }

    /// Sends the messages of the process to itself, and hands over what arrives.
    async fn run(self, every: Duration) {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                self.send(Told::CompleteUntil(Instant::now()));
                next = Instant::now() + every;
            }
            self.receive();
            let arrives = self.0.lock().unwrap().queue.front().map_or(next, |(at, _)| *at);
            let _ = timeout_at(next.min(arrives), self.1.notified()).await;
        }
    }
}

impl Connection {
    /// Gives the entry of a commit a number that breaks the rules, if that is planted.
    async fn replace_number(&self, inner: &impl Store, operation: &mut Operation) {
        let Operation::Commit { entry, .. } = operation else { return };
        let Some(tagged) = entry.tagged.as_mut().map(Arc::make_mut) else { return };
        let planted = self.0.lock().unwrap().planted;
        let last = async || inner.tag_number(&tags()).await.unwrap();
        match planted {
            Planted::LateNumber => tagged.number = last().await,
            Planted::Clock => tagged.number = last().await.max(tagged.number + 200_000),
            _ => {}
        }
    }
}

/// Returns the name under which the caches keep their tags.
fn tags() -> Name {
    Name::new(&Namespace::standard(), Family::Tags, &Key::from("tags"), 512).unwrap()
}

impl<B: Store + Clone> Hook<B> for Connection {
    async fn around(&self, inner: &B, mut operation: Operation) -> Result<Answer, BackendError> {
        let ways = {
            let rng = &mut self.0.lock().unwrap().rng;
            [(); 2].map(|()| MS * if rng.u8(..) < 20 { rng.u32(0..300) } else { rng.u32(0..2) })
        };
        self.replace_number(inner, &mut operation).await;
        sleep(ways[0]).await;
        let answer = operation.perform(inner).await;
        sleep(ways[1]).await;
        answer
    }

    fn tap(&self, backend: &B, tier: Weak<dyn Tap>, _every: Duration) -> bool {
        let server: Arc<dyn Tap> = Arc::new(Server(self.clone()));
        backend.tap(Arc::downgrade(&server), Duration::ZERO);
        // The server lives as long as the test.
        std::mem::forget(server);
        self.0.lock().unwrap().tier = Some(tier);
        true
    }

    fn hears(&self, _backend: &B, _name: &Name, _begins: bool) -> bool {
        self.0.lock().unwrap().broken_until <= Instant::now()
    }
}

/// When each version of a key came to be, at the server.
#[derive(Default)]
struct Written(Mutex<Vec<Instant>>);

/// Writes and reads for a while, with a tier or without. Returns how often a read was too old, and
/// how many were local.
async fn play(seed: u64, planted: Planted, has_tier: bool) -> (usize, u64) {
    let backend = MemoryBackend::new();
    let mut rng = Rng::with_seed(seed);
    let written: Arc<[Written; KEYS]> = Arc::default();
    let mut running = JoinSet::new();
    let mut caches = Vec::new();
    for process in 0..2 {
        let line = Connection::new(seed * 2 + process, planted);
        let tier = LocalTier::default().max_staleness(STALENESS);
        let builder = Cache::<u64>::builder(
            Interceptor { inner: backend.clone(), hook: line.clone() },
            "bellwether",
        );
        let builder = if has_tier { builder.local(tier) } else { builder };
        let cache = builder.ttl(Duration::from_secs(60)).tags().build().unwrap();
        running.spawn(line.clone().run(STALENESS / 4));
        let mut chance = rng.fork();
        running.spawn(async move {
            loop {
                sleep(MS * chance.u32(100..3_000)).await;
                line.cut();
            }
        });
        caches.push(cache);
    }
    let writer = backend.clone();
    let history = written.clone();
    let mut chance = rng.fork();
    running.spawn(async move {
        let writer: Cache<u64> = Cache::builder(writer, "bellwether")
            .ttl(Duration::from_secs(60))
            .tags()
            .build()
            .unwrap();
        loop {
            let act = chance.u8(0..6);
            let key = chance.usize(0..KEYS);
            let write = |key: usize| {
                let mut written = history[key].0.lock().unwrap();
                written.push(Instant::now());
                written.len() as u64
            };
            // What has come to be is told within the same moment.
            match act {
                0 => {
                    write(key);
                    writer.invalidate(format!("{key}")).await.unwrap();
                }
                1 => {
                    write(key);
                    writer.invalidate_tag(format!("of {key}")).await.unwrap();
                }
                2 => {
                    for key in 0..KEYS {
                        write(key);
                    }
                    writer.expire_tag("of all").await.unwrap();
                }
                3 => {
                    for key in 0..KEYS {
                        write(key);
                    }
                    writer.clear().await.unwrap();
                }
                _ => {
                    let request = writer.request(format!("{key}")).tag(format!("of {key}"));
                    request.tag("of all").insert(&write(key)).await.unwrap();
                }
            }
            sleep(MS * chance.u32(1..400)).await;
        }
    });
    let mut too_old = 0;
    for _ in 0..400 {
        let cache = &caches[rng.usize(0..2)];
        let key = rng.usize(0..KEYS);
        if rng.u8(..) < 8 {
            // The reply tells this process of a greater number than it was told of by pushes. It
            // may also be late.
            let _ = caches[rng.usize(0..2)].invalidate_tag("of nothing").await;
        }
        let asked = Instant::now();
        let of_load = written.clone();
        let takes = MS * rng.u32(0..20);
        let loaded = cache.request(format!("{key}")).tag("of all").load(move |lead| async move {
            let version = of_load[key].0.lock().unwrap().len() as u64;
            sleep(takes).await;
            lead.tag(format!("of {key}"));
            Ok::<_, BoxError>(version)
        });
        let version = loaded.await.unwrap().value;
        // The next version came to be before the call, by more than the tier may be behind.
        let next = written[key].0.lock().unwrap().get(version as usize).copied();
        let bound = if has_tier { STALENESS } else { Duration::ZERO };
        too_old += usize::from(next.is_some_and(|next| next + bound < asked));
        sleep(MS * rng.u32(0..12)).await;
        yield_now().await;
    }
    running.shutdown().await;
    (too_old, caches.iter().map(|cache| cache.stats().local).sum())
}

#[tokio::test(start_paused = true)]
async fn no_value_is_older_than_the_bound() {
    let wanted = std::env::var("BELLWETHER_LOCAL_SCHEDULES").ok();
    let schedules = wanted.map_or(10, |text| text.parse().unwrap());
    let mut local = 0;
    let all = 400 * schedules;
    for seed in 0..schedules {
        let (too_old, served) = play(seed, Planted::Nothing, true).await;
        assert_eq!(too_old, 0, "seed {seed}");
        local += served;
        if seed % 3 == 0 {
            let (too_old, _) = play(seed, Planted::Nothing, false).await;
            assert_eq!(too_old, 0, "seed {seed} without a tier");
        }
    }
    println!("{local} of {all} reads were of a copy");
    assert!(local > all / 3, "{local}");
}

/// What the test above finds, if it is there.
#[tokio::test(start_paused = true)]
async fn a_server_that_breaks_its_rules_is_found() {
    for (planted, has_tier) in [
        (Planted::LostPush, true),
        (Planted::Pong, true),
        (Planted::UntoldBreak, true),
        (Planted::LateNumber, true),
        (Planted::LateNumber, false),
        (Planted::Clock, false),
    ] {
        let mut too_old = 0;
        for seed in 0..20 {
            too_old += play(seed, planted, has_tier).await.0;
            if too_old > 0 {
                break;
            }
        }
        println!("{planted:?}: {too_old} reads were too old");
        assert!(too_old > 0, "{planted:?}");
    }
}
