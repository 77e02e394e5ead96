//! How many callers of this process wait for which locks, for `bellwether top`.

use std::{cmp::Reverse, sync::Arc};

use serde_json::{Value, json};

use super::Locks;
use crate::{
    backend::{Owner, ProcessId, questions::Questions},
    key::Family,
    lease::Engine,
};

/// So many locks are named in an answer.
const ANSWERED: usize = 20;

impl Locks {
    /// Answers the questions of `bellwether top`: how many callers of this process wait, and for
    /// which locks. The server does not know the callers that wait in the process of the holder.
    ///
    /// Spawn the future that this returns. It ends with the last clone. It subscribes to one
    /// channel of the namespace. While a `top` runs somewhere, it answers once a second by one
    /// `PUBLISH`, and names the 20 locks with most callers. Otherwise nothing is counted. Of
    /// several futures of one `Locks` and its clones, one answers. When it is dropped, another one
    /// goes on.
    ///
    /// Each client that may subscribe in the namespace sees the names.
    ///
    /// ```
    /// # fn answer(locks: bellwether::Locks) {
    /// tokio::spawn(locks.answer_top());
    /// # }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, there are no more answers. Call this again to go on.
    pub fn answer_top(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        let engine = Arc::downgrade(&self.space.engine);
        let backend = self.space.engine.backend.clone();
        let namespace = self.space.namespace.clone();
        let id = Owner::fresh().to_string();
        let answering = self.servers.answering.clone();
        async move {
            let _answers = answering.lock_owned().await;
            let Ok(namespace) = namespace else { return };
            let hearing = Questions::hear(backend, &namespace, Family::Lock);
            let Some(mut questions) = hearing.await else { return };
            loop {
                let is_asked = questions.is_asked().await;
                let Some(engine) = engine.upgrade() else { return };
                if is_asked {
                    let answer = answer(&id, &engine);
                    drop(engine);
                    questions.answer(&answer).await;
                }
            }
        }
    }
}

fn answer(id: &str, engine: &Engine) -> Value {
    let mut callers: Vec<_> = engine.waiting_callers().into_iter().collect();
    callers.sort_unstable_by_key(|(_, count)| Reverse(*count));
    let left_out = callers.len().saturating_sub(ANSWERED);
    callers.truncate(ANSWERED);
    let callers: Vec<_> = callers
        .into_iter()
        .map(|((name, kind), count)| json!([name.key(), kind.to_string(), count]))
        .collect();
    json!({
        "locks": id,
        "process": ProcessId::of_this().to_string(),
        // As it stands in the leases.
        "holds_as": engine.backend.process().to_string(),
        "callers": callers,
        "left_out": left_out,
    })
}
