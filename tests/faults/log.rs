//! Counts the lines that a service would find in its log.

use std::sync::Once;

use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

use super::*;

static LINES: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of lines at level info and above that this process has written.
pub fn lines() -> usize {
    static COUNTING: Once = Once::new();
    COUNTING.call_once(|| {
        tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Count)).unwrap()
    });
    LINES.load(Ordering::SeqCst)
}

struct Count;

impl<S: Subscriber> Layer<S> for Count {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= Level::INFO && metadata.target().starts_with("bellwether")
    }

    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        LINES.fetch_add(1, Ordering::SeqCst);
    }
}
