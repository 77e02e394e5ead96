//! Signals to the processes that a test has started.

use std::{fs, process::Command, thread, time::Duration};

use super::LIMIT;

/// Sends a signal such as `CONT` to a process. Returns after `STOP` once all threads stand still,
/// which they do one after the other.
pub fn signal(pid: u32, signal: &str) {
    let args = [format!("-{signal}"), pid.to_string()];
    let status = Command::new("kill").args(args).status().expect("the command kill");
    assert!(status.success(), "SIG{signal} could not be sent");
    if signal == "STOP" {
        let end = std::time::Instant::now() + LIMIT;
        while !stands_still(pid) {
            assert!(std::time::Instant::now() < end, "process {pid} does not stand still");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Returns whether all threads of a process are stopped. Elsewhere than on Linux it is not known.
fn stands_still(pid: u32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return true };
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state stands behind the name of the program, which is in brackets.
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
    })
}
