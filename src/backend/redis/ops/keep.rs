//! Calls of the scripts that keep queue entries, and hand over what is free.

use futures_util::future::join_all;

use super::{
    super::RedisBackend,
    millis,
    replies::{self, QueueReply},
};
use crate::{
    backend::{
        Claim, HANDOVER_LIFE, Kept, Mode, QUEUES_KEPT_AT_ONCE, QueueKind, TURN_LIFE,
        keep_each_alone,
        redis::scripts::{Call, SCRIPTS},
    },
    error::BackendError,
};

/// The state of a queue that a script was to keep; `None` if it needs a script of its own.
type QueueAnswer = Option<Result<Kept, BackendError>>;

/// A queue that a script is to keep, and where its answer goes.
type QueueRequest<'a> = (&'a [Claim], &'a mut QueueAnswer);

impl RedisBackend {
    /// Keeps the queue entries of one queue.
    pub(super) async fn keep_entries(&self, claims: &[Claim]) -> Result<Kept, BackendError> {
        let answer = self.keep_some(&[claims]).await.pop().flatten();
        answer.unwrap_or_else(|| Err(replies::unreadable("no answer for a queue")))
    }

    /// Keeps the queue entries of many queues. Queues of one kind share scripts.
    ///
    /// In a cluster, each queue has a script of its own. Two queues rarely share a slot, and a slot
    /// that is being moved would block the others.
    pub(super) async fn keep_queues(
        &self,
        queues: &[Vec<Claim>],
    ) -> Vec<Result<Kept, BackendError>> {
        let first = queues.first().and_then(|claims| kind(claims));
        let is_alike = first.is_some() && queues.iter().all(|claims| kind(claims) == first);
        let names = queues.iter().flatten().map(|claim| &claim.name);
        if !is_alike || !self.0.servers.serve_together(names) {
            return keep_each_alone(self, queues).await;
        }
        let queues: Vec<_> = queues.iter().map(Vec::as_slice).collect();
        join_all(queues.chunks(QUEUES_KEPT_AT_ONCE).map(|some| self.keep_together(some)))
            .await
            .concat()
    }

    async fn keep_together(&self, queues: &[&[Claim]]) -> Vec<Result<Kept, BackendError>> {
        let answers = self.keep_some(queues).await;
        join_all(answers.into_iter().zip(queues).map(async |(answer, claims)| match answer {
            Some(answer) => answer,
            None => self.keep_entries(claims).await,
        }))
        .await
    }

    /// Keeps queues of one kind.
    ///
    /// A script that has more to do than it may says of which queues, and is called again for them.
    async fn keep_some(&self, queues: &[&[Claim]]) -> Vec<QueueAnswer> {
        let mut answers: Vec<QueueAnswer> = queues.iter().map(|_| None).collect();
        let mut open: Vec<QueueRequest<'_>> = queues.iter().copied().zip(&mut answers).collect();
        while !open.is_empty() {
            match self.keep_once(open.iter().map(|(claims, _)| *claims).collect()).await {
                Ok(told) => open = open.into_iter().zip(told).filter_map(note).collect(),
                Err(error) => {
                    open.into_iter().for_each(|(_, answer)| *answer = Some(Err(error.clone())));
                    break;
                }
            }
        }
        answers
    }

    async fn keep_once(&self, queues: Vec<&[Claim]>) -> Result<Vec<QueueReply>, BackendError> {
        let Some(call) = self.keep_call(&queues) else { return Ok(Vec::new()) };
        let sizes = queues.iter().map(|claims| claims.len());
        let reply = replies::kept(self.0.servers.call(&call).await?, sizes);
        let answers = self.checked(reply)?;
        answers.iter().for_each(|one| self.record_publish_refused(one.publish_refused()));
        Ok(answers)
    }

    fn keep_call(&self, queues: &[&[Claim]]) -> Option<Call<'static>> {
        let first = queues.first()?.first()?;
        let script = match first.mode {
            Mode::Exclusive | Mode::Fair => &SCRIPTS.keep_queued,
            Mode::Read | Mode::Write => &SCRIPTS.keep_rw,
            Mode::Permit { .. } => &SCRIPTS.keep_permits,
        };
        let keys = self.keys_of_queue(first.mode);
        let mut call = Call::new(script, keys.len() * queues.len());
        for claim in queues.iter().filter_map(|claims| claims.first()) {
            call = call.keys(&claim.name, &keys);
        }
        call = call.arg(u8::from(self.hands_over())).arg(millis(HANDOVER_LIFE));
        if QueueKind::from(first.mode) == QueueKind::Mutex {
            call = call.arg(millis(TURN_LIFE));
        }
        call = call.arg(millis(first.queue_entry_life()));
        for claims in queues {
            call = with_claims(call, claims);
        }
        Some(call)
    }
}

/// Notes what a script says of a queue. Returns the queue if the script is to be called again.
fn note<'a>(((claims, answer), told): (QueueRequest<'a>, QueueReply)) -> Option<QueueRequest<'a>> {
    match told {
        QueueReply::Kept(mut kept, told) => {
            // No push tells them that the lease is free, so they ask.
            kept.has_lapsed |= told.publish_refused == Some(true);
            *answer = Some(Ok(kept));
        }
        QueueReply::Again(_) => return Some((claims, answer)),
        QueueReply::Alone => {}
    }
    None
}

fn kind(claims: &[Claim]) -> Option<QueueKind> {
    claims.first().map(|claim| claim.mode.into())
}

fn with_claims<'a>(call: Call<'a>, claims: &[Claim]) -> Call<'a> {
    let fence_life = claims.first().map(|claim| claim.fence_life).unwrap_or_default();
    let mut call = call.arg(millis(fence_life)).arg(claims.len());
    for claim in claims {
        call = match claim.mode {
            Mode::Permit { limit, count } => call.arg(format!("{}:{count}:{limit}", claim.owner)),
            _ => call.owner(claim.owner),
        };
    }
    call
}
