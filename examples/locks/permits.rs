//! Permits that outlive the process that took them.

use std::time::Duration;

use bellwether::{BoxError, ErrorKind, lock::PermitId};
use tokio::time::{Instant, sleep};

use crate::stage::{Player, Stage, expect};

const LEASE: Duration = Duration::from_secs(2);

pub(crate) async fn show(stage: &Stage) -> Result<String, BoxError> {
    let permits = stage.locks.permits("exports", 1).lease(LEASE);
    let mut second = stage.actor("permits", "go on with").await?;
    let mut first = stage.actor("permits", "take").await?;
    let id = first.says().await?;
    first.kill().await?;
    let begun = Instant::now();
    while begun.elapsed() < LEASE * 2 {
        second.cue(&id).await?;
        second.hears("renewed").await?;
        let taken = permits.try_acquire().await?;
        expect(taken.is_none(), || "two have the one permit".to_owned())?;
        sleep(LEASE / 4).await;
    }
    let kept = begun.elapsed();
    second.kill().await?;
    let begun = Instant::now();
    permits.acquire().await?;
    let free = begun.elapsed();
    let renewed = permits.renew(id.parse::<PermitId>()?).await.map_err(|error| error.kind());
    expect(matches!(renewed, Err(ErrorKind::Lost)), || format!("renewed: {renewed:?}"))?;
    Ok(format!(
        "A process takes the only permit, tells its id ({}...) and is killed. Another one is told \
         the id and renews it: {kept:.1?} after that, twice the lease, no other process could have \
         it. That one is killed too, and {free:.1?} later the permit has ended by itself and \
         another holder has it; the old id is refused.",
        id.get(..8).unwrap_or(&id),
    ))
}

pub(crate) async fn play(mut me: Player, part: &str) -> Result<(), BoxError> {
    let permits = me.locks.permits("exports", 1).lease(LEASE);
    if part == "take" {
        me.tell(permits.acquire().await?);
        return me.cue().await.map(drop);
    }
    loop {
        let id: PermitId = me.cue().await?.parse()?;
        permits.renew(id).await?;
        me.tell("renewed");
    }
}
