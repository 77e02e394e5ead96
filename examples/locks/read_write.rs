//! Readers together, a writer alone.

use std::time::Duration;

use bellwether::BoxError;
use tokio::{task::JoinSet, time::sleep};

use crate::stage::{PROCESSES, Player, Stage, TASKS, expect};

const TIMES: usize = 5;
const INSIDE: Duration = Duration::from_millis(5);
/// The key of the queue at the server.
const QUEUE: &str = "shop:l:{plan}:rq";

pub(crate) async fn show(stage: &Stage) -> Result<String, BoxError> {
    stage.together("read_write", "read and write").await?;
    let mut readers = 0;
    let mut most = 0;
    let mut writing = false;
    let mut writes = 0;
    for line in stage.journal().await? {
        match line.as_str() {
            "reads" => readers += 1,
            "has read" => readers -= 1,
            "writes" => (writing, writes) = (true, writes + 1),
            _ => writing = false,
        }
        most = most.max(readers);
        expect(!writing || readers == 0, || format!("{readers} readers beside a writer"))?;
    }

    let lock = stage.locks.rw_lock("plan");
    let guard = lock.write().await?;
    let mut reader = stage.actor("read_write", "read").await?;
    stage.queued(QUEUE, 1).await?;
    let mut writer = stage.actor("read_write", "write").await?;
    stage.queued(QUEUE, 2).await?;
    let guard = guard.downgrade().await?;
    reader.hears("reads").await?;
    let together = lock.holder().await?.map_or(0, |held| held.holders);
    expect(together == 2, || format!("{together} read after the downgrade"))?;
    reader.cue("on").await?;
    reader.hears("has read").await?;
    expect(lock.holder().await?.is_none_or(|held| held.fence == 0), || {
        "a writer beside a reader".to_owned()
    })?;
    guard.unlock().await?;
    writer.hears("writes").await?;
    Ok(format!(
        "{} tasks in {PROCESSES} processes, of which each fourth writes: up to {most} read \
         together, and each of the {writes} writers was alone. A writer is done, but wants to \
         read what it wrote, and becomes a reader with no gap: a reader that waited comes in \
         beside it, and the next writer when both have left.",
        PROCESSES * TASKS,
    ))
}

pub(crate) async fn play(mut me: Player, part: &str) -> Result<(), BoxError> {
    let lock = me.locks.rw_lock("plan");
    match part {
        "read" => {
            let guard = lock.read().await?;
            me.tell("reads");
            me.cue().await?;
            guard.unlock().await?;
            me.tell("has read");
        }
        "write" => {
            let guard = lock.write().await?;
            me.tell("writes");
            guard.unlock().await?;
        }
        _ => {
            me.cue().await?;
            let mut tasks = JoinSet::new();
            for task in 0..TASKS {
                let pen = me.pen();
                let lock = lock.clone();
                tasks.spawn(async move {
                    for _ in 0..TIMES {
                        if task == 0 {
                            let guard = lock.write().await?;
                            pen.note("writes").await?;
                            sleep(INSIDE).await;
                            pen.note("has written").await?;
                            guard.unlock().await?;
                        } else {
                            let guard = lock.read().await?;
                            pen.note("reads").await?;
                            sleep(INSIDE).await;
                            pen.note("has read").await?;
                            guard.unlock().await?;
                        }
                    }
                    Ok::<_, BoxError>(())
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended??;
            }
            me.tell("done");
        }
    }
    Ok(())
}
