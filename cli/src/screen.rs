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
    pub(crate) fn of_output() -> Option<Self> {
        let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
        let (columns, rows) = (usize::from(size.ws_col), usize::from(size.ws_row));
        // A terminal of a script may not know its size.
        (columns > 0 && rows > 0).then_some(Self { columns, rows })
    }
}

/// The second screen, which leaves the first one as it was.
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
        let lines = text.lines().take(size.rows).map(|line| cut(line, size.columns));
        // Each line ends what stood there before, and so does the last one of the rest.
        let lines: Vec<_> = lines.map(|line| format!("{line}\x1b[K")).collect();
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
