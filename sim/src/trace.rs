//! What happened in a schedule, in order: a hash of it, and its text if that is kept.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
};

use tokio::time::Instant;

/// The clones of a trace are one.
#[derive(Clone)]
pub struct Trace(Arc<Mutex<Lines>>);

struct Lines {
    begun: Instant,
    hash: DefaultHasher,
    count: u64,
    /// The texts, if they are kept.
    texts: Option<Vec<String>>,
}

impl Trace {
    pub fn new(keeps: bool) -> Self {
        let texts = keeps.then(Vec::new);
        let lines = Lines { begun: Instant::now(), hash: DefaultHasher::new(), count: 0, texts };
        Self(Arc::new(Mutex::new(lines)))
    }

    /// Adds what happened now. The text is made only if texts are kept.
    pub fn add(&self, what: impl Hash, text: impl FnOnce() -> String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = lines.begun.elapsed().as_micros();
        at.hash(&mut lines.hash);
        what.hash(&mut lines.hash);
        lines.count += 1;
        if let Some(texts) = &mut lines.texts {
            texts.push(format!("{at:>9} {}", text()));
        }
    }

    /// Returns the hash of all that was added, and the number of it.
    pub fn sum(&self) -> (u64, u64) {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (lines.hash.finish(), lines.count)
    }

    pub fn texts(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.texts.clone().unwrap_or_default()
    }
}
