use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use crate::sync::lock;

/// One caller's side of an exchange with the flight that it may lead.
///
/// It holds the request until it runs, then the response if it is for this caller. The request can
/// be taken only once, so it runs at most once. A response that the flight leaves here reaches the
/// caller however the flight ends. It is dropped with the caller.
pub(super) struct Exchange<Req, Res> {
    request: Arc<Mutex<Option<Req>>>,
    response: oneshot::Receiver<Res>,
}

/// The side of the flight.
pub(super) struct FlightExchange<Req, Res> {
    request: Arc<Mutex<Option<Req>>>,
    response: oneshot::Sender<Res>,
}

pub(super) enum ExchangeState<Req, Res> {
    /// The request has not run.
    Pending(Req),
    /// The request was taken. Its response is shared, or is not there yet, or there is none.
    Taken(oneshot::Receiver<Res>),
    /// The inner service's response to this caller.
    Answered(Res),
}

impl<Req, Res> Exchange<Req, Res> {
    pub(super) fn new(request: Req) -> (Self, FlightExchange<Req, Res>) {
        let request = Arc::new(Mutex::new(Some(request)));
        let (sender, receiver) = oneshot::channel();
        let of_flight = FlightExchange { request: Arc::clone(&request), response: sender };
        (Self { request, response: receiver }, of_flight)
    }

    pub(super) fn take(mut self) -> ExchangeState<Req, Res> {
        if let Ok(response) = self.response.try_recv() {
            return ExchangeState::Answered(response);
        }
        let request = lock(&self.request).take();
        request.map_or(ExchangeState::Taken(self.response), ExchangeState::Pending)
    }
}

impl<Req, Res> FlightExchange<Req, Res> {
    /// Takes the request, if no side has taken it.
    pub(super) fn request(&self) -> Option<Req> {
        lock(&self.request).take()
    }

    /// Leaves the response to the caller, if it has not gone away.
    pub(super) fn answer(self, response: Res) {
        drop(self.response.send(response));
    }
}
