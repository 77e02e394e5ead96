use std::sync::{Arc, Mutex, PoisonError};

/// One caller's request, until it is run; then its answer, if that is this caller's alone.
///
/// The caller and the work of the flight that he may lead hold it together. Whoever takes the request
/// runs it, so it runs once at most; and what the work leaves here reaches the caller however the flight
/// ends.
pub(super) struct Own<Req, Res>(Arc<Mutex<State<Req, Res>>>);

pub(super) enum State<Req, Res> {
    /// Nobody has run the request.
    Asked(Req),
    /// It was taken, and its answer is not here: it is shared, or there is none.
    Taken,
    /// What the service answered to this caller alone.
    Answered(Res),
}

impl<Req, Res> Own<Req, Res> {
    pub(super) fn new(request: Req) -> Self {
        Self(Arc::new(Mutex::new(State::Asked(request))))
    }

    pub(super) fn take(&self) -> State<Req, Res> {
        self.set(State::Taken)
    }

    pub(super) fn answer(&self, answer: Res) {
        self.set(State::Answered(answer));
    }

    fn set(&self, state: State<Req, Res>) -> State<Req, Res> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut held, state)
    }
}

impl<Req, Res> Clone for Own<Req, Res> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
