//! What happened in a schedule, in order: its text if that is wanted, and a hash of it.

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
    kept: Option<Vec<String>>,
}

impl Trace {
    pub fn new(keeps: bool) -> Self {
        let kept = keeps.then(Vec::new);
        let lines = Lines { begun: Instant::now(), hash: DefaultHasher::new(), count: 0, kept };
        Self(Arc::new(Mutex::new(lines)))
    }

    /// Adds what happened now.
    pub fn add(&self, text: impl FnOnce() -> String) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{:>9} {}", lines.begun.elapsed().as_micros(), text());
        line.hash(&mut lines.hash);
        lines.count += 1;
        if let Some(kept) = &mut lines.kept {
            kept.push(line);
        }
    }

    /// Returns the hash of all that was added, and the number of it.
    pub fn sum(&self) -> (u64, u64) {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (lines.hash.finish(), lines.count)
    }

    pub fn texts(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.kept.clone().unwrap_or_default()
    }
}
