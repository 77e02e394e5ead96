//! One holder at a time, any number of times.

use bellwether::{BoxError, lock::ReentrantMutex};

use crate::stage::{Player, Stage};

pub(crate) async fn show(stage: &Stage) -> Result<String, BoxError> {
    let mut holder = stage.actor("reentrant", "hold").await?;
    let mut rival = stage.actor("reentrant", "want").await?;
    holder.hears("in charge()").await?;
    rival.cue("try").await?;
    rival.hears("not now").await?;
    holder.cue("on").await?;
    holder.hears("in transfer()").await?;
    rival.cue("try").await?;
    rival.hears("not now").await?;
    holder.cue("on").await?;
    holder.hears("out").await?;
    rival.cue("try").await?;
    rival.hears("held").await?;
    Ok("A holder has the lock in transfer(), which calls charge(), which takes it once more: at \
    once, with the same fence. Another process tries while both have it: no. After charge() has \
    given its own back: no. After transfer() too: yes. The holder is a value that is handed on, \
    for a task has no thread of its own; a second holder in the same process is told no as well."
        .to_owned())
}

pub(crate) async fn play(mut me: Player, part: &str) -> Result<(), BoxError> {
    let account = me.locks.reentrant_mutex("account:7");
    if part == "hold" {
        transfer(&mut me, &account).await?;
        me.tell("out");
        return Ok(());
    }
    loop {
        me.cue().await?;
        match account.try_lock().await? {
            None => me.tell("not now"),
            Some(guard) => {
                me.tell("held");
                guard.unlock().await?;
            }
        }
    }
}

async fn transfer(me: &mut Player, account: &ReentrantMutex) -> Result<(), BoxError> {
    let guard = account.lock().await?;
    let fence = charge(me, account).await?;
    if guard.fence() != fence {
        return Err("a holder has two fences".into());
    }
    let other = me.locks.reentrant_mutex("account:7");
    if other.try_lock().await?.is_some() {
        return Err("two holders have the lock".into());
    }
    me.tell("in transfer()");
    me.cue().await?;
    Ok(guard.unlock().await?)
}

async fn charge(me: &mut Player, account: &ReentrantMutex) -> Result<u64, BoxError> {
    let guard = account.lock().await?;
    let fence = guard.fence();
    me.tell("in charge()");
    me.cue().await?;
    guard.unlock().await?;
    Ok(fence)
}
