//! A steady load on some caches, with a record of each request.

use std::sync::Mutex;

use tokio::{
    sync::Notify,
    time::{MissedTickBehavior, interval},
};

use super::pings::Silence;
use super::*;

/// The duration of a load.
pub const TAKES: Duration = Duration::from_millis(30);
/// The life of the entries, which is short so that there is always something to load.
const TTL: Duration = Duration::from_millis(80);
const KEYS: u64 = 6;

/// The outcome of a request.
#[derive(Debug)]
pub struct Answer {
    pub cache: usize,
    pub at: Instant,
    pub took: Duration,
    pub source: Result<Source, String>,
}

/// A steady rate of requests to each cache.
pub struct Load {
    shared: Arc<Shared>,
    generators: Vec<JoinHandle<()>>,
    control: JoinHandle<Vec<(Instant, Duration)>>,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<Vec<Answer>>,
    /// The numbers of loaders that have begun, by cache.
    loads: Mutex<Vec<usize>>,
    events: Mutex<Vec<(Instant, &'static str)>>,
    answered: AtomicUsize,
    told: Notify,
    stop: AtomicBool,
}

/// The outcome of a whole load.
pub struct Outcome {
    pub answers: Vec<Answer>,
    pub loads: Vec<usize>,
    /// The delays of the machine itself, each with its time.
    control: Vec<(Instant, Duration)>,
    /// The faults that happened meanwhile.
    pub events: Vec<(Instant, &'static str)>,
}

impl Load {
    /// Starts the requests.
    pub fn start(caches: &[Cache<String>], rate: u32) -> Self {
        let shared =
            Arc::new(Shared { loads: Mutex::new(vec![0; caches.len()]), ..Shared::default() });
        let generators = caches.iter().enumerate().map(|(number, cache)| {
            tokio::spawn(generate(number, cache.clone(), rate, shared.clone()))
        });
        let generators = generators.collect();
        let control = tokio::spawn(control(shared.clone()));
        Self { shared, generators, control }
    }

    /// Waits until a number of further requests have been answered.
    pub async fn answers(&self, more: usize) {
        let until = self.shared.answered.load(Ordering::SeqCst) + more;
        let end = Instant::now() + LIMIT;
        loop {
            let told = self.shared.told.notified();
            if self.shared.answered.load(Ordering::SeqCst) >= until {
                return;
            }
            tokio::select! {
                () = told => {}
                () = tokio::time::sleep_until(end) => panic!("requests are no longer answered"),
            }
        }
    }

    /// Records an act on the server, for the message of a failure.
    pub fn event(&self, what: &'static str) {
        self.shared.events.lock().unwrap().push((Instant::now(), what));
    }

    /// Stops the requests, and waits for every answer.
    pub async fn stop(self) -> Outcome {
        self.shared.stop.store(true, Ordering::SeqCst);
        for generator in self.generators {
            generator.await.unwrap();
        }
        let control = self.control.await.unwrap();
        let answers = std::mem::take(&mut *self.shared.answers.lock().unwrap());
        let loads = self.shared.loads.lock().unwrap().clone();
        let events = std::mem::take(&mut *self.shared.events.lock().unwrap());
        Outcome { answers, loads, control, events }
    }
}

async fn generate(number: usize, cache: Cache<String>, rate: u32, shared: Arc<Shared>) {
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut requests = JoinSet::new();
    while !shared.stop.load(Ordering::SeqCst) {
        ticks.tick().await;
        while requests.try_join_next().is_some() {}
        let cache = cache.clone();
        let shared = shared.clone();
        requests.spawn(async move {
            let at = Instant::now();
            let key = format!("load-{}", fastrand::u64(..KEYS));
            let begun = shared.clone();
            let request = cache.request(&key).ttl(TTL).load(move |_| async move {
                begun.loads.lock().unwrap()[number] += 1;
                sleep(TAKES).await;
                Ok::<_, BoxError>(key)
            });
            let source = request.await;
            let source = source.map(|loaded| loaded.source).map_err(|error| format!("{error:?}"));
            let answer = Answer { cache: number, at, took: at.elapsed(), source };
            shared.answers.lock().unwrap().push(answer);
            shared.answered.fetch_add(1, Ordering::SeqCst);
            shared.told.notify_waiters();
        });
    }
    while requests.join_next().await.is_some() {}
}

/// Measures the delays of timers while the load runs.
async fn control(shared: Arc<Shared>) -> Vec<(Instant, Duration)> {
    let mut late = Vec::new();
    while !shared.stop.load(Ordering::SeqCst) {
        let at = Instant::now();
        tokio::spawn(sleep(10 * MS)).await.unwrap();
        late.push((at, at.elapsed().saturating_sub(10 * MS)));
    }
    late
}

impl Outcome {
    /// Asserts that no request failed.
    pub fn assert_no_error(&self) {
        let errors: Vec<_> = self.answers.iter().filter(|answer| answer.source.is_err()).collect();
        assert!(errors.is_empty(), "{} failed, as {:?}", errors.len(), errors[0]);
    }

    /// Asserts that no request took longer than a bound, without the delays of the machine while
    /// the request ran.
    pub fn assert_slowest(&self, bound: Duration) -> Duration {
        let worst = |answer: &Answer| answer.took.saturating_sub(self.late(answer));
        let slowest = self.answers.iter().max_by_key(|answer| worst(answer)).unwrap();
        let took = worst(slowest);
        let begun = self.answers.iter().map(|answer| answer.at).min().unwrap();
        assert!(
            took <= bound,
            "{slowest:?}, at {:?}, less {:?}, is over {bound:?}; {:?}",
            slowest.at - begun,
            self.late(slowest),
            self.events.iter().map(|(at, what)| (*at - begun, *what)).collect::<Vec<_>>(),
        );
        took
    }

    /// Returns the sum of the late wake-ups while the request ran. Each may have delayed a step of
    /// it.
    fn late(&self, answer: &Answer) -> Duration {
        let ran = |at: &Instant| *at + 50 * MS >= answer.at && *at <= answer.at + answer.took;
        let late = self.control.iter().filter(|(at, _)| ran(at)).map(|(_, late)| *late);
        late.filter(|late| *late > 5 * MS).sum()
    }

    pub fn count(&self, source: Source) -> usize {
        self.answers.iter().filter(|answer| answer.source == Ok(source)).count()
    }

    /// Returns the number of answers that were loaded alone while the server was there. A breaker
    /// may be open for a moment after a silence.
    pub fn degraded_beside(&self, silences: &[Silence]) -> usize {
        let is_apart = |answer: &&Answer| {
            let ended = answer.at + answer.took;
            !silences.iter().any(|(from, to)| answer.at <= *to + 500 * MS && *from <= ended)
        };
        let degraded = self.answers.iter().filter(|answer| answer.source == Ok(Source::Degraded));
        degraded.filter(is_apart).count()
    }

    pub fn summary(&self) -> String {
        let sources =
            [Source::Hit, Source::Led, Source::Followed, Source::Received, Source::Degraded];
        let counts: Vec<_> =
            sources.iter().map(|source| format!("{source:?} {}", self.count(*source))).collect();
        format!("{} answers: {}", self.answers.len(), counts.join(", "))
    }
}
