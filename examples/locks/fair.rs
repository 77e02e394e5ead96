//! First come, first served.

use bellwether::BoxError;
use tokio::task::JoinSet;

use crate::stage::{PROCESSES, Player, Stage, expect};

/// The key of the queue at the server.
const QUEUE: &str = "shop:l:{counter}:q";

pub(crate) async fn show(stage: &Stage) -> Result<String, BoxError> {
    let guard = stage.locks.mutex("counter").fair().lock().await?;
    let mut waiters = stage.actors("fair", "wait").await?;
    let mut asked = Vec::new();
    for turn in [2, 0, 1, 1, 0, 2, 0] {
        waiters[turn].cue(turn + 1).await?;
        asked.push((turn + 1).to_string());
        stage.queued(QUEUE, asked.len()).await?;
    }
    guard.unlock().await?;
    for turn in &asked {
        waiters[turn.parse::<usize>()? - 1].hears("served").await?;
    }
    let served = stage.journal().await?;
    let asked = asked.join(" ");
    let served = served.join(" ");
    expect(asked == served, || {
        format!("asked in the order {asked}, served in the order {served}")
    })?;
    Ok(format!(
        "While a holder has the lock, tasks of {PROCESSES} processes ask for it, one after the \
         other, in the order {asked}. It is given back, and they are served in the order {served}: \
         first come, first served, over all processes."
    ))
}

pub(crate) async fn play(mut me: Player, _: &str) -> Result<(), BoxError> {
    let mutex = me.locks.mutex("counter").fair();
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            turn = me.cue() => {
                let turn = turn?;
                let pen = me.pen();
                let mutex = mutex.clone();
                tasks.spawn(async move {
                    let guard = mutex.lock().await?;
                    pen.note(turn).await?;
                    guard.unlock().await?;
                    Ok::<_, BoxError>(())
                });
            }
            Some(ended) = tasks.join_next() => {
                ended??;
                me.tell("served");
            }
        }
    }
}
