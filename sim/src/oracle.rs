//! The callers of the histories, what they record, and the checker of the promises. They are the
//! files of `tests/histories`.

#[path = "../../tests/histories/checker.rs"]
pub mod checker;
#[path = "../../tests/histories/failures.rs"]
mod failures;
#[path = "../../tests/histories/history.rs"]
pub mod history;
#[path = "../../tests/histories/holds.rs"]
mod holds;
#[path = "../../tests/histories/index.rs"]
pub mod index;
#[path = "../../tests/histories/latches.rs"]
mod latches;
#[path = "../../tests/histories/recorder.rs"]
pub mod recorder;
#[path = "../../tests/histories/ticks.rs"]
mod ticks;
#[path = "../../tests/histories/worker.rs"]
pub mod worker;
