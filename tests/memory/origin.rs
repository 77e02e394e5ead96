//! An origin behind caches, and the processes that ask it.

use serde::{Deserialize, Serialize};

use crate::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{self:?}")]
pub enum ShopError {
    Down,
    BadInput,
    Busy { seconds: u64 },
}

/// An origin that numbers its answers. Each takes a time, and may fail.
#[derive(Clone, Default)]
pub struct Origin(Arc<State>);

#[derive(Default)]
struct State {
    takes: Duration,
    /// When it was asked.
    at: Mutex<Vec<Instant>>,
    running: AtomicUsize,
    most: AtomicUsize,
    fails: AtomicBool,
    panics: AtomicBool,
}

impl Origin {
    pub fn new(takes: Duration) -> Self {
        Self(Arc::new(State { takes, ..State::default() }))
    }

    pub fn fails(&self, fails: bool) {
        self.0.fails.store(fails, Ordering::SeqCst);
    }

    pub fn panics(&self, panics: bool) {
        self.0.panics.store(panics, Ordering::SeqCst);
    }

    pub fn asked(&self) -> u64 {
        self.asked_at().len() as u64
    }

    pub fn asked_at(&self) -> Vec<Instant> {
        self.0.at.lock().unwrap().clone()
    }

    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// Returns the most answers that were made at the same time.
    pub fn most(&self) -> usize {
        self.0.most.load(Ordering::SeqCst)
    }

    pub async fn answer(self, takes: Duration) -> Result<u64, ShopError> {
        let number = {
            let mut at = self.0.at.lock().unwrap();
            at.push(Instant::now());
            at.len() as u64
        };
        let running = Running::new(&self.0);
        sleep(takes).await;
        drop(running);
        assert!(!self.0.panics.load(Ordering::SeqCst), "a broken loader");
        if self.0.fails.load(Ordering::SeqCst) { Err(ShopError::Down) } else { Ok(number) }
    }

    pub fn loader(
        &self,
    ) -> impl FnOnce(Lead<u64>) -> BoxFuture<'static, Result<u64, ShopError>> + Send + use<> {
        let origin = self.clone();
        move |_| {
            let takes = origin.0.takes;
            origin.answer(takes).boxed()
        }
    }

    pub async fn load(&self, cache: &Cache<u64>) -> Result<Loaded<u64>, Error> {
        cache.request("k").load(self.loader()).await
    }

    pub async fn ask(&self, cache: &Cache<u64>) -> (u64, Source) {
        served(&self.load(cache).await.unwrap())
    }

    /// Asks, and checks that the outcome comes at once and without a load.
    pub async fn load_at_once(&self, cache: &Cache<u64>) -> Result<Loaded<u64>, Error> {
        let begun = Instant::now();
        let asked = self.asked();
        let answer = self.load(cache).await;
        assert_eq!((begun.elapsed(), self.asked()), (Duration::ZERO, asked), "{answer:?}");
        answer
    }

    pub async fn ask_at_once(&self, cache: &Cache<u64>) -> (u64, Source) {
        served(&self.load_at_once(cache).await.unwrap())
    }
}

/// An answer that is being made, until it is dropped.
struct Running<'a>(&'a State);

impl<'a> Running<'a> {
    fn new(origin: &'a State) -> Self {
        let now = origin.running.fetch_add(1, Ordering::SeqCst) + 1;
        origin.most.fetch_max(now, Ordering::SeqCst);
        Self(origin)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

pub fn served(loaded: &Loaded<u64>) -> (u64, Source) {
    (loaded.value, loaded.source)
}

/// How long the values of [`fleet`] live.
pub const TTL: Duration = SECOND;

pub fn builder(backend: impl Store + Clone) -> Builder<u64> {
    Cache::builder(backend, "bellwether").ttl(TTL)
}

/// Returns caches over one backend.
pub fn fleet<const N: usize>(with: impl Fn(Builder<u64>) -> Builder<u64>) -> [Cache<u64>; N] {
    let backend = MemoryBackend::new();
    [(); N].map(|()| with(builder(backend.clone())).build().unwrap())
}
