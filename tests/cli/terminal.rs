//! A terminal, and pictures of it.

use std::{
    env,
    fmt::Write,
    fs,
    path::Path,
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use testkit::{LIMIT, comes_true};

use super::{NAMESPACE, PROGRAM};

/// The width of a terminal. The height fits the screens.
const COLUMNS: usize = 104;
const ROWS: usize = 30;

/// A window of tmux with a shell, in which the program is `bellwether`. It ends when this is
/// dropped.
pub struct Terminal(String, AtomicU32);

impl Terminal {
    pub fn open(url: &str) -> Self {
        Self::open_sized(url, COLUMNS, ROWS)
    }

    pub fn open_sized(url: &str, columns: usize, rows: usize) -> Self {
        let terminal =
            Self(format!("bellwether-test-{:016x}", fastrand::u64(..)), AtomicU32::new(0));
        let folder = Path::new(PROGRAM).parent().unwrap().display();
        let path = env::var("PATH").unwrap();
        // A shell without the settings of a user.
        let shell = format!(
            "env PATH={folder}:{path} BELLWETHER_URL={url} BELLWETHER_NAMESPACE={NAMESPACE} \
             PS1='$ ' TERM=screen sh"
        );
        let columns = columns.to_string();
        let rows = rows.to_string();
        terminal.tmux(&[
            "-f",
            "/dev/null",
            "new-session",
            "-d",
            "-x",
            &columns,
            "-y",
            &rows,
            &shell,
        ]);
        terminal
    }

    fn tmux(&self, arguments: &[&str]) -> Output {
        let output = Command::new("tmux").args(["-L", &self.0]).args(arguments).output();
        output.expect("these tests need `tmux` in the PATH")
    }

    /// Types a text and the Enter key.
    pub fn enter(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
        self.press("Enter");
    }

    pub fn press(&self, key: &str) {
        self.tmux(&["send-keys", key]);
    }

    /// Gives the window another size.
    pub fn resize(&self, columns: usize, rows: usize) {
        let columns = columns.to_string();
        let rows = rows.to_string();
        self.tmux(&["resize-window", "-x", &columns, "-y", &rows]);
    }

    /// Returns whether the cursor is shown.
    pub fn has_cursor(&self) -> bool {
        let flag = self.tmux(&["display-message", "-p", "#{cursor_flag}"]).stdout;
        flag.starts_with(b"1")
    }

    pub fn screen(&self) -> String {
        String::from_utf8(self.tmux(&["capture-pane", "-p"]).stdout).unwrap()
    }

    /// Waits until the screen has a text. Returns the screen.
    pub async fn shows(&self, text: &str) -> String {
        self.comes_to(text, |screen| screen.contains(text)).await
    }

    /// Waits until the screen fulfils a condition. Returns the screen.
    pub async fn comes_to(&self, what: &str, condition: impl Fn(&str) -> bool) -> String {
        let mut screen = String::new();
        let holds = comes_true(LIMIT, async || {
            screen = self.screen();
            condition(&screen)
        });
        assert!(holds.await, "{what} is not on the screen:\n{screen}");
        screen
    }

    /// Runs a command to its end. Returns what it printed, and its exit code.
    pub async fn run(&self, command: &str) -> (String, i32) {
        // A number tells the end from the one of the last command.
        let number = self.1.fetch_add(1, Ordering::Relaxed);
        self.enter(&format!("clear; {command}; echo \"[{number} ended with $?]\""));
        let end = format!("[{number} ended with ");
        let has_ended = |screen: &str| screen.lines().any(|line| line.starts_with(&end));
        let screen = self.comes_to(command, has_ended).await;
        let (text, code) = screen.rsplit_once(&end).unwrap();
        let code = code.split(']').next().unwrap().parse().unwrap();
        (text.to_owned(), code)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// Draws a screen into the folder that `BELLWETHER_SCREENS` names, if it is set.
pub fn draw(name: &str, command: &str, screen: &str) {
    let Ok(folder) = env::var("BELLWETHER_SCREENS") else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(folder);
    let mut lines = vec![format!("$ {command}")];
    lines.extend(screen.trim_end().lines().map(|line| line.trim_end().to_owned()));
    let columns = lines.iter().map(|line| line.chars().count()).max().unwrap_or(0);
    let width = columns * 8 + 32;
    let height = lines.len() * 18 + 28;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"monospace\" font-size=\"13\" fill=\"#e6e9ef\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"6\" fill=\"#1d2330\"/>\n"
    );
    for (at, line) in lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
        let text = line.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        let color = match line.split_whitespace().next() {
            Some("good") => "#8fd19e",
            Some("fair") => "#f0c674",
            Some("BAD") => "#f28b82",
            Some("$") => "#8ab4f8",
            _ => "#e6e9ef",
        };
        let length = line.chars().count() * 8;
        // Each line has the length of its characters, whatever font the reader has.
        writeln!(
            svg,
            "<text x=\"16\" y=\"{}\" textLength=\"{length}\" fill=\"{color}\" \
             xml:space=\"preserve\">{text}</text>",
            at * 18 + 28
        )
        .unwrap();
    }
    svg.push_str("</svg>\n");
    fs::write(folder.join(format!("{name}.svg")), svg).expect("the picture can be written");
}
