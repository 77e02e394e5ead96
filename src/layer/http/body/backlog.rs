//! The bytes that a layer keeps for slow readers, and which reader ends if that is too much.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::time::Instant;

use crate::sync::lock;

/// A body that is left to its readers, and so keeps bytes for slow readers.
pub(super) trait LeftBody: Send + Sync {
    /// Returns the reader that has taken nothing for longest, of the readers that are behind
    /// another reader.
    fn slowest(&self) -> Option<SlowReader>;

    /// Ends a reader, and frees what was kept for that reader.
    fn end_reader(&self, number: u64);
}

/// A reader of a body that is behind another reader.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SlowReader {
    /// Since when the reader has taken nothing, although there is something.
    pub(super) since: Instant,
    pub(super) number: u64,
}

/// The bytes that a layer keeps for slow readers, of bodies that are left to their readers.
pub(in super::super) struct Backlog {
    /// The most bytes that one body keeps.
    pub(in super::super) of_body: u64,
    /// The most bytes that all bodies keep.
    pub(in super::super) of_layer: u64,
    kept: AtomicU64,
    bodies: Mutex<LeftBodies>,
}

/// The bodies that are left to their readers, by the numbers in which they were left.
#[derive(Default)]
struct LeftBodies {
    last: u64,
    by_number: BTreeMap<u64, Weak<dyn LeftBody>>,
}

impl Backlog {
    pub(in super::super) fn new(of_body: u64, of_layer: u64) -> Self {
        Self { of_body, of_layer, kept: AtomicU64::new(0), bodies: Mutex::default() }
    }

    /// Adds a body that is left to its readers. Returns the number of the body.
    pub(super) fn add(&self, body: Weak<dyn LeftBody>) -> u64 {
        let mut bodies = lock(&self.bodies);
        bodies.last += 1;
        let number = bodies.last;
        bodies.by_number.insert(number, body);
        number
    }

    pub(super) fn remove(&self, number: u64) {
        lock(&self.bodies).by_number.remove(&number);
    }

    /// Counts what a body keeps now, in place of what the body kept before.
    pub(super) fn count(&self, kept: u64, before: u64) {
        if kept > before {
            self.kept.fetch_add(kept - before, Ordering::Relaxed);
        } else {
            self.kept.fetch_sub(before - kept, Ordering::Relaxed);
        }
    }

    /// Ends readers until the layer keeps no more bytes than it may.
    pub(super) fn make_room(&self) {
        while self.kept.load(Ordering::Relaxed) > self.of_layer {
            if !self.end_slowest() {
                return;
            }
        }
    }

    /// Ends the slowest reader of all bodies. Returns whether there is a slow reader.
    fn end_slowest(&self) -> bool {
        let mut slowest: Option<(SlowReader, Arc<dyn LeftBody>)> = None;
        for body in self.living() {
            let Some(reader) = body.slowest() else { continue };
            if slowest.as_ref().is_none_or(|(longest, _)| reader.since < longest.since) {
                slowest = Some((reader, body));
            }
        }
        let Some((reader, body)) = slowest else { return false };
        body.end_reader(reader.number);
        true
    }

    /// Returns the bodies, to be used without the lock: the last reference to a body may end there,
    /// and the end of a body takes the lock.
    fn living(&self) -> Vec<Arc<dyn LeftBody>> {
        let bodies = lock(&self.bodies);
        let mut living = Vec::new();
        for body in bodies.by_number.values() {
            living.extend(body.upgrade());
        }
        living
    }
}

impl fmt::Debug for Backlog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backlog")
            .field("of_body", &self.of_body)
            .field("of_layer", &self.of_layer)
            .finish_non_exhaustive()
    }
}
