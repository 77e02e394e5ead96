//! Kills the replica that leads, and reports which one takes over.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{sleep, timeout},
};

use crate::{
    Failure,
    fleet::Fleet,
    options::Options,
    origin::{Load, Origin},
    replica::Way,
};

/// The events after a leader was killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Takeover {
    key: u16,
    /// The replica that was killed, and how far into its load.
    killed: u16,
    into_load_ms: f64,
    /// The time of the kill, since the way began.
    pub(crate) killed_at_s: f64,
    lease_ms: f64,
    /// The next load of the key, if there was one before the end.
    pub(crate) heir: Option<Heir>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Heir {
    replica: u16,
    /// From the kill until the second load began.
    pub(crate) after_ms: f64,
}

impl Takeover {
    pub(crate) fn sentence(&self) -> String {
        let Self { key, killed, into_load_ms, lease_ms, .. } = self;
        let death = format!(
            "Replica {killed} was killed {into_load_ms:.0} ms into its load of product {key}."
        );
        match &self.heir {
            Some(Heir { replica, after_ms }) => format!(
                "{death}\nReplica {replica} took over: its load began {after_ms:.0} ms after the \
                 kill,\n{:.0} ms after the first one. The lease was {lease_ms:.0} ms.",
                into_load_ms + after_ms,
            ),
            None => {
                format!("{death} No replica took over (the lease was {lease_ms:.0} ms).")
            }
        }
    }
}

/// Waits for a load in the middle of the run, kills its replica half-way through, and waits for the
/// next load of the same key. Returns `None` if there was no load.
pub(crate) async fn kill_leader(
    options: &Options,
    origin: &Origin,
    fleet: &Fleet,
) -> Result<Option<Takeover>, Failure> {
    let begun = Instant::now();
    let left = || options.length(Way::Bellwether).saturating_sub(begun.elapsed());
    sleep(options.length(Way::Bellwether).mul_f64(0.4)).await;
    let mut loads = origin.watch();
    let Ok(first) = timeout(left(), next(&mut loads, |_| true)).await else {
        return Ok(None);
    };
    let first = first?;
    sleep(options.load_time / 2).await;
    let killed = Instant::now();
    fleet.kill(first.replica)?;
    let again = |load: &Load| load.key == first.key && load.at >= killed;
    let second = match timeout(left(), next(&mut loads, again)).await {
        Ok(second) => Some(second?),
        Err(_) => None,
    };
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    Ok(Some(Takeover {
        key: first.key,
        killed: first.replica,
        into_load_ms: milliseconds(killed - first.at),
        killed_at_s: (killed - begun).as_secs_f64(),
        lease_ms: milliseconds(options.lease()),
        heir: second
            .map(|load| Heir { replica: load.replica, after_ms: milliseconds(load.at - killed) }),
    }))
}

/// Returns the next load that is wanted.
async fn next(loads: &mut Receiver<Load>, wanted: impl Fn(&Load) -> bool) -> Result<Load, Failure> {
    loop {
        match loads.recv().await {
            Ok(load) if wanted(&load) => return Ok(load),
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return Err("the origin ended".into()),
        }
    }
}
