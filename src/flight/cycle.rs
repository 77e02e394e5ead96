//! Loads that wait for loads.
//!
//! A loader may ask for other keys, and so its flight waits for theirs. If the loader comes back to
//! a flight that waits for its own, directly or through others, neither would ever land. So each
//! nested wait is an edge in a graph, and an edge that would close a circle is refused.
//!
//! Only nested waits touch the graph.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex},
};

use crate::sync::lock;

type WaitGraph = HashMap<u64, Vec<u64>>;

static WAITS: LazyLock<Mutex<WaitGraph>> = LazyLock::new(Mutex::default);

tokio::task_local! {
    /// The flight whose loader this task runs.
    static CURRENT: u64;
}

pub(crate) fn current() -> Option<u64> {
    CURRENT.try_with(|flight| *flight).ok()
}

/// Runs a loader of a flight.
///
/// Not an async function, whose future would hold its arguments twice.
pub(crate) fn within<F: Future>(flight: u64, loader: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(flight, loader)
}

/// Adds the wait of a loader for a flight, until the edge is dropped. `None` if they would wait for
/// each other.
pub(crate) fn nested(from: u64, to: u64) -> Option<Edge> {
    let mut waits = lock(&WAITS);
    let mut reached = vec![to];
    let mut visited = Vec::new();
    while let Some(flight) = reached.pop() {
        if flight == from {
            return None;
        }
        if !visited.contains(&flight) {
            visited.push(flight);
            if let Some(waited) = waits.get(&flight) {
                reached.extend(waited);
            }
        }
    }
    waits.entry(from).or_default().push(to);
    Some(Edge(Box::new((from, to))))
}

/// The wait of one flight for another. In a box, because each caller has room for one, and few
/// callers are loaders.
pub(crate) struct Edge(Box<(u64, u64)>);

impl Drop for Edge {
    fn drop(&mut self) {
        let (from, to) = &*self.0;
        let mut waits = lock(&WAITS);
        if let Some(waited) = waits.get_mut(from) {
            if let Some(at) = waited.iter().position(|other| other == to) {
                waited.swap_remove(at);
            }
            if waited.is_empty() {
                waits.remove(from);
            }
        }
    }
}
