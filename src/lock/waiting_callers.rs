//! How many callers of this process wait for which locks, for `bellwether top`.

use std::{
    cmp::Reverse,
    sync::{Arc, Weak},
};

use serde_json::{Value, json};

use crate::{
    backend::{Leases, Owner, ProcessId, top_questions::Questions},
    key::{Family, Namespace},
    lease::Engine,
};

/// The most locks that an answer names.
const MOST_LOCKS: usize = 20;

/// Answers the questions of `bellwether top`, until the engine is gone.
pub(super) async fn answer_questions(
    engine: Weak<Engine>,
    backend: Arc<dyn Leases>,
    namespace: Namespace,
) {
    let id = Owner::fresh().to_string();
    let Some(mut questions) = Questions::subscribe(backend, &namespace, Family::Lock).await else {
        return;
    };
    loop {
        let is_asked = questions.is_asked().await;
        let Some(engine) = engine.upgrade() else { return };
        if is_asked {
            let answer = answer(&id, &engine);
            // The engine must not live for as long as the answer is on its way.
            drop(engine);
            questions.answer(&answer).await;
        }
    }
}

fn answer(id: &str, engine: &Engine) -> Value {
    let mut callers: Vec<_> = engine.waiting_callers().into_iter().collect();
    callers.sort_unstable_by_key(|(_, count)| Reverse(*count));
    let left_out = callers.len().saturating_sub(MOST_LOCKS);
    callers.truncate(MOST_LOCKS);
    let mut rows = Vec::with_capacity(callers.len());
    for ((name, kind), count) in callers {
        rows.push(json!([name.key(), kind.to_string(), count]));
    }
    json!({
        "locks": id,
        "process": ProcessId::of_this().to_string(),
        // The process as the leases name it.
        "holds_as": engine.backend.process().to_string(),
        "callers": rows,
        "left_out": left_out,
    })
}
