//! The second screen of a terminal, and its size.

use std::io::{self, IsTerminal, Write};

use crate::show::cut;

/// How much a terminal shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

impl Size {
    /// Of an output that is no terminal.
    pub(crate) const NO_LIMIT: Self = Self { columns: usize::MAX, rows: usize::MAX };

    /// Returns the size of the terminal that is the output now, if it is one.
    #[cfg(unix)]
    pub(crate) fn of_output() -> Option<Self> {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
        let size = Self { columns: size.ws_col.into(), rows: size.ws_row.into() };
        // A terminal of a script may not know its size.
        if size.columns == 0 || size.rows == 0 {
            return None;
        }
        Some(size)
    }

    /// Returns `None`: only Unix has the call that this program uses.
    #[cfg(not(unix))]
    pub(crate) fn of_output() -> Option<Self> {
        None
    }
}

/// The second screen of the terminal. When it closes, the terminal shows the first screen again.
pub(crate) struct Screen;

impl Screen {
    /// Opens the second screen, if the output is a terminal.
    pub(crate) fn open() -> io::Result<Option<Self>> {
        if !io::stdout().is_terminal() {
            return Ok(None);
        }
        let screen = Self;
        write("\x1b[?1049h\x1b[?25l")?;
        Ok(Some(screen))
    }

    /// Shows a text from the first line on. What does not fit is not shown.
    pub(crate) fn show(&self, text: &str, size: Size) -> io::Result<()> {
        let mut lines = Vec::new();
        for line in text.lines().take(size.rows) {
            // Each line erases the rest of its row.
            lines.push(cut(line, size.columns) + "\x1b[K");
        }
        // And the text erases the rows below the last line.
        write(&format!("\x1b[H{}\x1b[J", lines.join("\r\n")))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = write("\x1b[?25h\x1b[?1049l");
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}
