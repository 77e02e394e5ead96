//! Signals to the processes that a test has started.

use std::{fs, process::Command, thread, time::Duration};

use super::LIMIT;

/// Sends a signal such as `CONT` to a process. Returns after `STOP` once all threads stand still,
/// which they do one after the other.
pub fn signal(pid: u32, signal: &str) {
    let mut kill = Command::new("kill");
    kill.arg(format!("-{signal}")).arg(pid.to_string());
    let status = kill.status().expect("the command kill");
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
    for thread in threads.flatten() {
        let stat = thread.path().join("stat");
        let stat = fs::read_to_string(stat).unwrap_or_default();
        // The state stands behind the name of the program, which is in brackets.
        if let Some((_, rest)) = stat.rsplit_once(") ")
            && !rest.starts_with('T')
        {
            return false;
        }
    }
    true
}
