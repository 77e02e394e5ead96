//! The questions of `bellwether top`. They come once a second on a channel of a namespace.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio::time::timeout;

use super::{Changes, Leases};
use crate::key::{Family, Name, Namespace};

/// The key whose channels have the questions and the answers.
const QUESTIONS: &str = "bellwether-top";
/// How long a wait for a question lasts at most. After it, the caller notices the end of its cache,
/// and a subscription that was refused is tried again.
const LONGEST_WAIT: Duration = Duration::from_secs(3);

/// The questions about one family of a namespace, and the channel for the answers.
pub(crate) struct Questions {
    backend: Arc<dyn Leases>,
    name: Name,
    changes: Changes,
}

impl Questions {
    /// Subscribes to the questions.
    pub(crate) async fn subscribe(
        backend: Arc<dyn Leases>,
        namespace: &Namespace,
        family: Family,
    ) -> Option<Self> {
        let name = Name::new(namespace, family, &QUESTIONS.into(), 512).ok()?;
        let changes = backend.changes(&name).await.unwrap_or_else(|_| Changes::none());
        Some(Self { backend, name, changes })
    }

    /// Waits for a question. Returns `false` if no question has come for a while.
    pub(crate) async fn is_asked(&mut self) -> bool {
        let is_asked = timeout(LONGEST_WAIT, self.changes.next()).await.is_ok();
        if !is_asked
            && !self.changes.subscribe()
            && let Ok(subscribed) = self.backend.changes(&self.name).await
        {
            // The server is back, or now permits the subscription that it had refused.
            self.changes = subscribed;
        }
        is_asked
    }

    /// Publishes an answer. If the answer is lost, the question comes again.
    pub(crate) async fn answer(&self, answer: &Value) {
        let _ = self.backend.answer(&self.name, &answer.to_string()).await;
    }
}
