//! Set once, counted down by many, waited for by many.

use bellwether::BoxError;
use tokio::time::Instant;

use crate::stage::{PROCESSES, Player, Stage, expect};

pub(crate) async fn show(stage: &Stage) -> Result<String, BoxError> {
    let latch = stage.locks.latch("import");
    latch.set(u32::try_from(PROCESSES)?).await?;
    let mut waiters = stage.actors("latch", "wait").await?;
    let mut parts = stage.actors("latch", "do a part").await?;
    let mut left = Vec::new();
    let mut last = Instant::now();
    for part in &mut parts {
        expect(latch.left().await? > 0, || "nothing is left before the last part".to_owned())?;
        last = Instant::now();
        part.cue("do").await?;
        left.push(part.says().await?);
    }
    for waiter in &mut waiters {
        waiter.hears("goes on").await?;
    }
    let after = last.elapsed();
    latch.wait().await?;
    Ok(format!(
        "{PROCESSES} processes do a part each and count down from {PROCESSES}: {} are left. \
         {PROCESSES} others wait for all of it, and go on {after:.1?} after the last part was \
         begun. A process that comes later does not wait at all. A step is counted once, even if \
         its answer is lost and it is sent twice.",
        left.join(", "),
    ))
}

pub(crate) async fn play(mut me: Player, part: &str) -> Result<(), BoxError> {
    let latch = me.locks.latch("import");
    if part == "wait" {
        latch.wait().await?;
        me.tell("goes on");
        return Ok(());
    }
    me.cue().await?;
    me.tell(latch.count_down().await?);
    Ok(())
}
