//! Loads that wait for loads.
//!
//! A loader may ask for other keys, and so its flight waits for theirs. If it comes back to a flight that
//! waits for it, directly or through others, nobody would ever land. So each nested wait is an edge in a
//! graph, and one that would close a circle is refused.
//!
//! Only nested waits touch the graph; it is empty where no loader asks for another key.

use std::{
    collections::HashMap,
    sync::{LazyLock, Mutex, MutexGuard, PoisonError},
};

/// Which flights each flight waits for.
type Waits = HashMap<u64, Vec<u64>>;

static WAITS: LazyLock<Mutex<Waits>> = LazyLock::new(Mutex::default);

tokio::task_local! {
    /// The flight whose loader this task runs.
    static CURRENT: u64;
}

fn waits() -> MutexGuard<'static, Waits> {
    WAITS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The flight whose loader is running here, if any.
pub(crate) fn current() -> Option<u64> {
    CURRENT.try_with(|flight| *flight).ok()
}

/// Runs a loader of a flight.
pub(crate) async fn within<F: Future>(flight: u64, loader: F) -> F::Output {
    CURRENT.scope(flight, loader).await
}

/// Before a loader waits for a flight: an edge to keep while it does, or none if they would wait for each
/// other.
pub(crate) fn nested(from: u64, to: u64) -> Option<Edge> {
    let mut waits = waits();
    let mut reached = vec![to];
    let mut visited = Vec::new();
    while let Some(flight) = reached.pop() {
        if flight == from {
            return None;
        }
        if !visited.contains(&flight) {
            visited.push(flight);
            reached.extend(waits.get(&flight).into_iter().flatten());
        }
    }
    waits.entry(from).or_default().push(to);
    Some(Edge { from, to })
}

/// One flight's wait for another.
pub(crate) struct Edge {
    from: u64,
    to: u64,
}

impl Drop for Edge {
    fn drop(&mut self) {
        let mut waits = waits();
        if let Some(waited) = waits.get_mut(&self.from) {
            if let Some(at) = waited.iter().position(|to| *to == self.to) {
                waited.swap_remove(at);
            }
            if waited.is_empty() {
                waits.remove(&self.from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_closes_a_circle_is_refused() {
        // Numbers that no flight of another test has.
        let [a, b, c] = [u64::MAX, u64::MAX - 1, u64::MAX - 2];
        assert!(nested(a, a).is_none());
        let _ab = nested(a, b).unwrap();
        let bc = nested(b, c).unwrap();
        assert!(nested(c, a).is_none());
        drop(bc);
        assert!(nested(c, a).is_some());
    }
}
