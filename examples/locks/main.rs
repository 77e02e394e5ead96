//! Shows each lock with processes that contend for it.
//!
//! ```text
//! cargo run --example locks
//! ```
//!
//! A `stage` starts a Redis `server` and processes: this program again, with the name of a scene
//! and of a part in it. Each scene is a file. Its `show` prints a paragraph; its `play` is the code
//! of each part, and worth copying. A guarantee that does not hold is an error.

mod fair;
mod latch;
mod mutex;
mod permits;
mod read_write;
mod reentrant;
mod semaphore;
mod server;
mod several;
mod stage;

use std::{
    env,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use bellwether::BoxError;
use tokio::{
    signal::unix::{SignalKind, signal},
    time::{Instant, timeout},
};

use crate::stage::{PROCESSES, Player, Stage};

/// The time limit of all scenes. An idle machine needs a tenth of it.
const LIMIT: Duration = Duration::from_secs(120);

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<_> = env::args().skip(1).collect();
    let ended = match words.as_slice() {
        [scene, part, url] => play(scene, part, url).await,
        [] => run().await,
        _ => Err("it has no options".into()),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("locks: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The server and the processes end with the scene, whatever its result is.
async fn run() -> Result<(), BoxError> {
    let mut terminated = signal(SignalKind::terminate())?;
    tokio::select! {
        shown = timeout(LIMIT, show()) => shown.map_err(|_| "it takes too long")?,
        _ = tokio::signal::ctrl_c() => Err("interrupted".into()),
        _ = terminated.recv() => Err("terminated".into()),
    }
}

async fn show() -> Result<(), BoxError> {
    let begun = Instant::now();
    let stage = Stage::set().await?;
    let port = stage.port();
    print(&format!(
        "A Redis server on port {port}, and up to {} processes at a time.",
        2 * PROCESSES
    ))?;
    tell("mutex", &mutex::show(&stage).await?)?;
    tell("fair mutex", &fair::show(&stage).await?)?;
    tell("reentrant mutex", &reentrant::show(&stage).await?)?;
    tell("read-write lock", &read_write::show(&stage).await?)?;
    tell("semaphore", &semaphore::show(&stage).await?)?;
    tell("permits with an id", &permits::show(&stage).await?)?;
    tell("count-down latch", &latch::show(&stage).await?)?;
    tell("several at once", &several::show(&stage).await?)?;
    print(&format!("\nAll of it held, in {:.1?}.", begun.elapsed()))
}

/// Plays one part of a scene.
async fn play(scene: &str, part: &str, url: &str) -> Result<(), BoxError> {
    let me = Player::enter(url).await?;
    match scene {
        "mutex" => mutex::play(me, part).await,
        "fair" => fair::play(me, part).await,
        "reentrant" => reentrant::play(me, part).await,
        "read_write" => read_write::play(me, part).await,
        "semaphore" => semaphore::play(me, part).await,
        "permits" => permits::play(me, part).await,
        "latch" => latch::play(me, part).await,
        "several" => several::play(me, part).await,
        _ => Err("there is no such scene".into()),
    }
}

/// Prints a paragraph in lines of a readable length.
fn tell(title: &str, text: &str) -> Result<(), BoxError> {
    let mut lines = vec![format!("\n{title}"), " ".to_owned()];
    for word in text.split_whitespace() {
        if lines.last().is_some_and(|line| line.len() + word.len() > 95) {
            lines.push(" ".to_owned());
        }
        if let Some(line) = lines.last_mut() {
            line.push(' ');
            line.push_str(word);
        }
    }
    print(&lines.join("\n"))
}

/// Prints a text. A closed pipe is not a failure, because the reader may have read enough.
fn print(text: &str) -> Result<(), BoxError> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}
