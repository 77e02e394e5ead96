//! The promises of a cache. Caches over one memory backend stand for processes.
//!
//! Time is paused, so every wait here is exact and takes no time.

mod counts;
mod failed_loads;
mod limits;
mod lost_answers;
mod nested;
mod sharing;
mod shutdown;
mod silence;

use std::collections::HashMap;

use futures_util::TryFutureExt;

use crate::{
    origin::{Origin, ShopError},
    prelude::*,
};

type Answer = Result<Loaded<String>, Error>;

fn build<const N: usize>(set: impl Fn(Builder<String>) -> Builder<String>) -> [Cache<String>; N] {
    let backend = MemoryBackend::new();
    [(); N].map(|()| set(Cache::builder(backend.clone(), "bellwether")).build().unwrap())
}

fn fleet<const N: usize>() -> [Cache<String>; N] {
    build(|builder| builder)
}

/// Returns a loader of an origin, which makes a value with the number of its answer.
fn loader(
    origin: &Origin,
    takes: Duration,
) -> impl FnOnce(Lead<String>) -> BoxFuture<'static, Result<String, ShopError>> + Send + use<> {
    let answer = origin.clone().answer(takes);
    |_| answer.map_ok(|number| format!("value {number}")).boxed()
}

fn ask(cache: &Cache<String>, origin: &Origin, takes: Duration) -> JoinHandle<Answer> {
    spawn(cache.request("k").load(loader(origin, takes)))
}

/// Lets every runnable task run.
async fn settle() {
    sleep(MS).await;
}

async fn sources(asked: impl IntoIterator<Item = JoinHandle<Answer>>) -> HashMap<Source, usize> {
    let mut sources = HashMap::new();
    for answer in all(asked).await {
        *sources.entry(answer.unwrap().source).or_default() += 1;
    }
    sources
}

fn two_over(faulty: &Faulty) -> [Cache<String>; 2] {
    [0, 1].map(|_| Cache::builder(faulty.clone(), "bellwether").build().unwrap())
}

/// Returns the source of an answer and the time that it took.
fn timed(asked: JoinHandle<Answer>) -> impl Future<Output = (Source, Duration)> {
    let begun = Instant::now();
    let answered = spawn(async move { (asked.await, begun.elapsed()) });
    async move {
        let (answer, took) = answered.await.unwrap();
        (answer.unwrap().unwrap().source, took)
    }
}
