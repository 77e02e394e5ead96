use std::sync::{Arc, Mutex, PoisonError};

/// Holds one caller's request until it runs, then the response if it is for this caller alone.
///
/// The caller and the flight that it may lead share it. The request can be taken only once, so it
/// runs at most once. A response that the flight leaves here reaches the caller however the flight
/// ends.
pub(super) struct Exchange<Req, Res>(Arc<Mutex<ExchangeState<Req, Res>>>);

pub(super) enum ExchangeState<Req, Res> {
    /// The request has not run.
    Pending(Req),
    /// The request was taken. Its response is shared, or there is none.
    Taken,
    /// The inner service's response to this caller alone.
    Answered(Res),
}

impl<Req, Res> Exchange<Req, Res> {
    pub(super) fn new(request: Req) -> Self {
        Self(Arc::new(Mutex::new(ExchangeState::Pending(request))))
    }

    pub(super) fn take(&self) -> ExchangeState<Req, Res> {
        self.replace(ExchangeState::Taken)
    }

    pub(super) fn answer(&self, response: Res) {
        self.replace(ExchangeState::Answered(response));
    }

    fn replace(&self, state: ExchangeState<Req, Res>) -> ExchangeState<Req, Res> {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut current, state)
    }
}

impl<Req, Res> Clone for Exchange<Req, Res> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}
