//! `locks`: all locks of the namespace that are held or waited for.

use std::{
    io::{self, IsTerminal, Write},
    time::Duration,
};

use bellwether::lock::ListedLock;
use tokio::time::Instant;

use crate::{Exit, Failure, Server, keys, screen::Size, show};

/// After this time, the locks that were found so far are shown.
const FIRST_PAGE: Duration = Duration::from_secs(1);
const PROGRESS: Duration = Duration::from_millis(100);

pub(crate) async fn list(server: &Server, json: bool) -> Result<Exit, Failure> {
    let locks = search(server, json).await?;
    if json {
        show::print_json(&show::locks_json(&locks))?;
    } else if locks.is_empty() {
        show::print(&show::no_lock(&server.namespace))?;
        if keys::has_keys(server).await == Some(false) {
            show::print("the namespace has no key: is `--namespace` right?")?;
        }
    } else {
        show::print(&show::locks(&locks, usize::MAX))?;
    }
    Ok(Exit::Well)
}

/// Searches for the locks. On a terminal, the search shows its progress and a first page.
async fn search(server: &Server, json: bool) -> Result<Vec<ListedLock>, Failure> {
    let begun = Instant::now();
    let mut search = server.locks()?.search();
    let mut all = Vec::new();
    let mut progress = Progress::new();
    let mut has_page = json || !io::stdout().is_terminal();
    while let Some(found) = search.next().await? {
        all.extend(found);
        progress.show(all.len());
        if !has_page && begun.elapsed() >= FIRST_PAGE && !all.is_empty() {
            has_page = true;
            progress.clear();
            first_page(&mut all)?;
        }
    }
    progress.clear();
    ListedLock::sort(&mut all);
    Ok(all)
}

/// Shows as many of the locks that were found so far as fit on the terminal.
fn first_page(found: &mut [ListedLock]) -> Result<(), Failure> {
    ListedLock::sort(found);
    let size = Size::of_output().unwrap_or(Size { columns: 80, rows: 24 });
    // The line above the table, its head, the progress below it, and a line to spare.
    let others = 4 + show::WAITING.lines().count();
    let shown = &found[..found.len().min(size.rows.saturating_sub(others))];
    let words = "of the locks that were found so far; the search goes on";
    show::print(&format!("{} {words}:\n{}", shown.len(), show::locks(shown, size.columns)))?;
    Ok(())
}

/// A line of the terminal that says how many locks were found.
struct Progress {
    is_shown: bool,
    last: Instant,
}

impl Progress {
    fn new() -> Self {
        Self { is_shown: false, last: Instant::now() }
    }

    fn show(&mut self, found: usize) {
        if io::stderr().is_terminal() && self.last.elapsed() >= PROGRESS {
            self.last = Instant::now();
            self.is_shown = true;
            let _ = write!(io::stderr(), "\r\x1b[Ksearching; {found} locks found so far");
        }
    }

    fn clear(&mut self) {
        if self.is_shown {
            self.is_shown = false;
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.clear();
    }
}
