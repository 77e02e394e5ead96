//! One holder at a time.

use std::time::Duration;

use bellwether::{BoxError, ErrorKind};
use redis::Script;
use rustix::process::Signal;
use tokio::{task::JoinSet, time::Instant};

use crate::stage::{PROCESSES, Player, Stage, TASKS, expect};

/// The longest wait for a holder that is suspended or killed.
const LEASE: Duration = Duration::from_millis(1500);
const TIMES: usize = 10;

pub(crate) async fn show(stage: &Stage) -> Result<String, BoxError> {
    stage.together("mutex", "add without it").await?;
    let without: usize = stage.run("GETDEL", &["number"]).await?;
    stage.together("mutex", "add").await?;
    let counted: usize = stage.run("GET", &["number"]).await?;
    let all = PROCESSES * TASKS * TIMES;
    expect(counted == all, || format!("{counted} of {all} under the lock"))?;
    let fences = stage.journal().await?.iter().map(|fence| fence.parse()).collect::<Result<_, _>>();
    let fences: Vec<u64> = fences?;
    expect(fences.is_sorted_by(|one, next| one < next), || format!("fences: {fences:?}"))?;

    let mut holder = stage.actor("mutex", "hold").await?;
    holder.hears("held").await?;
    let mut rival = stage.actor("mutex", "want").await?;
    rival.hears("not now").await?;
    holder.signal(Signal::STOP)?;
    rival.hears("held").await?;
    holder.signal(Signal::CONT)?;
    let awake = Instant::now();
    holder.hears("lost").await?;
    let told = awake.elapsed();
    holder.hears("refused").await?;
    rival.cue("unlock").await?;
    rival.hears("unlocked").await?;

    let mut holder = stage.actor("mutex", "hold").await?;
    holder.hears("held").await?;
    let mut rival = stage.actor("mutex", "want").await?;
    rival.hears("not now").await?;
    holder.kill().await?;
    let killed = Instant::now();
    rival.hears("held").await?;
    let late = killed.elapsed();
    Ok(format!(
        "{} tasks in {PROCESSES} processes add one to a number, {TIMES} times each, by a read and \
         a write. Without a lock it comes to {without} of {all}; with it to {counted}, and the \
         fence of each holder is greater than the one before. A holder is suspended until its \
         lease of {LEASE:?} is over and a rival has the lock: awake again, it is told of its loss \
         within {told:.1?}, and what it writes all the same, with its old fence, is refused. \
         Another one is killed: the rival has the lock {late:.1?} later, when the lease has ended.",
        PROCESSES * TASKS,
    ))
}

pub(crate) async fn play(mut me: Player, part: &str) -> Result<(), BoxError> {
    let mutex = me.locks.mutex("stock");
    // The script refuses an older fence. Nothing else stops a holder that has not noticed its loss.
    let write = Script::new(
        "if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[1]) or 0) then return 'refused' end
         redis.call('SET', KEYS[1], ARGV[1])
         return 'written'",
    );
    match part {
        "hold" => {
            let guard = mutex.lease(LEASE).lock().await?;
            me.tell("held");
            guard.lost().await;
            me.tell("lost");
            let outcome: String =
                write.key("fence").arg(guard.fence()).invoke_async(&mut me.redis).await?;
            me.tell(outcome);
            match guard.unlock().await.map_err(|error| error.kind()) {
                Err(ErrorKind::Lost) => Ok(()),
                other => Err(format!("unlock says {other:?} of a lock that is lost").into()),
            }
        }
        "want" => {
            if mutex.try_lock().await?.is_some() {
                return Err("two hold the lock".into());
            }
            me.tell("not now");
            let guard = mutex.lock().await?;
            write.key("fence").arg(guard.fence()).invoke_async::<()>(&mut me.redis).await?;
            me.tell("held");
            me.cue().await?;
            guard.unlock().await?;
            me.tell("unlocked");
            Ok(())
        }
        _ => {
            me.cue().await?;
            let mut tasks = JoinSet::new();
            for _ in 0..TASKS {
                let pen = me.pen();
                let mutex = (part == "add").then(|| mutex.clone());
                tasks.spawn(async move {
                    for _ in 0..TIMES {
                        let Some(mutex) = &mutex else {
                            pen.add("number", 1).await?;
                            continue;
                        };
                        let guard = mutex.lock().await?;
                        pen.note(guard.fence()).await?;
                        pen.add("number", 1).await?;
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
    }
}
