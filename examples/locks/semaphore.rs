//! A limited number of holders at a time.

use std::time::Duration;

use bellwether::BoxError;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep},
};

use crate::stage::{PROCESSES, Player, Stage, TASKS, expect};

const PERMITS: u32 = 5;
/// The longest wait for the permits of a holder that is killed.
const LEASE: Duration = Duration::from_millis(1500);
const TIMES: usize = 5;

pub(crate) async fn show(stage: &Stage) -> Result<String, BoxError> {
    stage.together("semaphore", "work").await?;
    let mut inside = 0;
    let mut most = 0;
    for line in stage.journal().await? {
        inside = if line == "in" { inside + 1 } else { inside - 1 };
        most = most.max(inside);
    }
    expect(most <= PERMITS, || format!("{most} had one of {PERMITS} permits"))?;

    let semaphore = stage.locks.semaphore("database", PERMITS);
    let mut doomed = stage.actor("semaphore", "hold").await?;
    doomed.hears("held").await?;
    let left = semaphore.available().await?;
    doomed.kill().await?;
    let killed = Instant::now();
    let permit = semaphore.acquire_many(PERMITS).await?;
    let late = killed.elapsed();
    permit.unlock().await?;
    Ok(format!(
        "{} tasks in {PROCESSES} processes want one of {PERMITS} permits, {TIMES} times each: no \
         more than {most} had one at any time. A process that has {} of them is killed, and \
         {left} are left; {late:.1?} later, when its lease has ended, one caller has all \
         {PERMITS}.",
        PROCESSES * TASKS,
        PERMITS - left,
    ))
}

pub(crate) async fn play(mut me: Player, part: &str) -> Result<(), BoxError> {
    let semaphore = me.locks.semaphore("database", PERMITS);
    if part == "hold" {
        let permits = semaphore.lease(LEASE).acquire_many(3).await?;
        me.tell("held");
        permits.lost().await;
        return Ok(());
    }
    me.cue().await?;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let pen = me.pen();
        let semaphore = semaphore.clone();
        tasks.spawn(async move {
            for _ in 0..TIMES {
                let permit = semaphore.acquire().await?;
                pen.note("in").await?;
                sleep(Duration::from_millis(3)).await;
                pen.note("out").await?;
                permit.unlock().await?;
            }
            Ok::<_, BoxError>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    me.tell("done");
    Ok(())
}
