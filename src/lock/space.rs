//! The engine and the naming rules that all locks of one `Locks` or `Redlock` have in common.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::time::Instant;
use tracing::debug;

use crate::{
    backend::{ANSWER_LIMIT, DynLeases, in_time},
    error::{Chain, Error},
    key::{Family, Key, Name, Namespace},
    lease::Engine,
    sync::lock,
};

/// After how long a label is made known again. It is kept for a day.
const AGAIN: Duration = Duration::from_secs(3600);
/// After how long that is tried again.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Clone)]
pub(super) struct LockSpace {
    pub(super) engine: Arc<Engine>,
    family: Family,
    /// An invalid namespace is reported by the first use of a lock.
    pub(super) namespace: Result<Namespace, Error>,
    pub(super) max_name: usize,
    /// The label of this process.
    label: Option<Arc<Label>>,
}

impl LockSpace {
    pub(super) fn over(backend: Arc<dyn DynLeases>, family: Family) -> Self {
        let engine = Engine::new(backend);
        Self { engine, family, namespace: Ok(Namespace::standard()), max_name: 512, label: None }
    }

    pub(super) fn namespace(self, namespace: String) -> Self {
        // Labels of two namespaces are apart.
        let label = self.label.map(|label| Label::new(label.text.clone()));
        Self { namespace: Namespace::new(&namespace), label, ..self }
    }

    /// Sets the label of this process.
    pub(super) fn owner(self, label: String) -> Self {
        Self { label: Some(Label::new(label)), ..self }
    }

    pub(super) fn has_label(&self) -> bool {
        self.label.is_some()
    }

    /// Makes the label known in a task, if it was not of late.
    pub(super) fn introduce(&self, name: &Name) {
        let Some(label) = self.label.as_ref().filter(|label| label.is_due()) else { return };
        let (label, name, backend) = (label.clone(), name.clone(), self.engine.backend().clone());
        self.engine.janitor().spawn(async move {
            let introduced = backend.introduce(&name, &label.text);
            if let Err(error) = in_time(ANSWER_LIMIT, introduced).await {
                debug!(error = %Chain(&error), "the label of this process is not known");
                label.introduce_after(RETRY);
            }
        });
    }

    pub(super) fn name(&self, key: &Key) -> Result<Name, Error> {
        let namespace = self.namespace.as_ref().map_err(Error::clone)?;
        Name::new(namespace, self.family, key, self.max_name)
    }

    /// Returns `true` if waiters have entries in the server's queue.
    ///
    /// The queues of several servers would be in as many orders, and each server would notify
    /// another waiter.
    pub(super) fn has_queues(&self) -> bool {
        matches!(self.family, Family::Lock | Family::Redlock)
    }
}

/// The label of this process, for operators.
struct Label {
    text: String,
    /// When to make it known again.
    due: Mutex<Instant>,
}

impl Label {
    fn new(text: String) -> Arc<Self> {
        Arc::new(Self { text, due: Mutex::new(Instant::now()) })
    }

    /// Returns whether it is to be made known now. It then is not due for a while.
    fn is_due(&self) -> bool {
        let (now, mut due) = (Instant::now(), lock(&self.due));
        let is_due = *due <= now;
        if is_due {
            *due = now + AGAIN;
        }
        is_due
    }

    fn introduce_after(&self, pause: Duration) {
        *lock(&self.due) = Instant::now() + pause;
    }
}
