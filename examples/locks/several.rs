//! Several at once, all or none.

use std::time::Duration;

use bellwether::BoxError;
use tokio::{task::JoinSet, time::sleep};

use crate::stage::{PROCESSES, Player, Stage, TASKS, expect};

const ACCOUNTS: [&str; 3] = ["account:1", "account:2", "account:3"];
const TIMES: usize = 5;

pub(crate) async fn show(stage: &Stage) -> Result<String, BoxError> {
    for account in ACCOUNTS {
        stage.run::<()>("SET", &[account, "100"]).await?;
    }
    stage.together("several", "transfer").await?;
    let amounts: Vec<i64> = stage.run("MGET", &ACCOUNTS).await?;
    let sum: i64 = amounts.iter().sum();
    expect(sum == 300, || format!("{sum} in all accounts, of 300"))?;

    let guard = stage.locks.mutex(ACCOUNTS[0]).lock().await?;
    let mut waiter = stage.actor("several", "want the first two").await?;
    sleep(Duration::from_millis(50)).await;
    let other = stage.locks.mutex(ACCOUNTS[1]).try_lock().await?;
    let other = other.ok_or("a task that waits for one lock holds another")?;
    other.unlock().await?;
    guard.unlock().await?;
    waiter.hears("held").await?;
    Ok(format!(
        "{} tasks in {PROCESSES} processes transfer money between three accounts of 100, {TIMES} \
         times each and in all directions, each under the locks of both: {} are in them \
         afterwards, together {sum}, and no two tasks blocked each other. A task that \
         waits for two locks, of which one is held, holds nothing: the other one is free.",
        PROCESSES * TASKS,
        amounts.iter().map(i64::to_string).collect::<Vec<_>>().join(", "),
    ))
}

pub(crate) async fn play(mut me: Player, part: &str) -> Result<(), BoxError> {
    if part == "want the first two" {
        let guard = me.locks.several([ACCOUNTS[0], ACCOUNTS[1]]).lock().await?;
        me.tell("held");
        return Ok(guard.unlock().await?);
    }
    me.cue().await?;
    let mut tasks = JoinSet::new();
    for _ in 0..TASKS {
        let pen = me.pen();
        let locks = me.locks.clone();
        tasks.spawn(async move {
            for _ in 0..TIMES {
                let mut accounts = ACCOUNTS;
                fastrand::shuffle(&mut accounts);
                let [from, to, _] = accounts;
                let guard = locks.several([from, to]).lock().await?;
                pen.add(from, -10).await?;
                pen.add(to, 10).await?;
                guard.unlock().await?;
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
