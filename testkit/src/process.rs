//! Processes of tests, which are a test program once more.

use std::process::Stdio;

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc::UnboundedSender,
    time::timeout,
};

use super::{LIMIT, rerun, signal};

/// A process that runs one test of the current program. The process is killed on drop, and can end
/// itself when its input ends.
///
/// The test harness may have begun a line, so a process writes the end of a line before each of its
/// own.
pub struct Process {
    child: Child,
    input: ChildStdin,
    /// `None` once the lines are forwarded.
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Process {
    /// Starts a process with some environment variables.
    pub fn start<'a>(test: &str, variables: impl IntoIterator<Item = (&'a str, String)>) -> Self {
        let mut command = Command::from(rerun(test));
        command.envs(variables).kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the test program runs once more");
        let input = child.stdin.take().expect("the input is piped");
        let output = child.stdout.take().expect("the output is piped");
        Self { child, input, lines: Some(BufReader::new(output).lines()) }
    }

    /// Waits for a line with this beginning, and returns the rest of the line.
    pub async fn says(&mut self, begin: &str) -> String {
        let lines = self.lines.as_mut().expect("the lines are forwarded");
        let said = async {
            loop {
                let line = lines.next_line().await.expect("the output is text");
                let line = line.unwrap_or_else(|| panic!("the process ends before `{begin}`"));
                if let Some(rest) = line.strip_prefix(begin) {
                    return rest.trim().to_owned();
                }
            }
        };
        let said = timeout(LIMIT, said).await;
        said.unwrap_or_else(|_| panic!("the process does not say `{begin}` in time"))
    }

    /// Sends the result of `read` for each further line. `read` returns `None` for a line of the
    /// test harness.
    pub fn forward<T: Send + 'static>(
        &mut self,
        to: UnboundedSender<T>,
        read: impl Fn(&str) -> Option<T> + Send + 'static,
    ) -> tokio::task::JoinHandle<()> {
        let mut lines = self.lines.take().expect("the lines are forwarded already");
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if read(&line).is_some_and(|one| to.send(one).is_err()) {
                    return;
                }
            }
        })
    }

    /// Writes a line to the input. The process may have ended.
    pub async fn tell(&mut self, line: &str) {
        let _ = self.input.write_all(format!("{line}\n").as_bytes()).await;
    }

    /// Sends a signal such as `STOP`.
    pub fn signal(&self, name: &str) {
        signal(self.child.id().expect("the process runs"), name);
    }

    /// Kills the process with SIGKILL, and waits for its end.
    pub async fn kill(&mut self) {
        self.child.kill().await.expect("a child can be killed");
    }
}
