//! A request that passes: the inner service is called as if the layer were not there.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request, response};
use http_body::Body;
use pin_project::pin_project;
use tokio::{task::JoinHandle, time::Instant};
use tower::{Service, util::Oneshot};

use super::{
    Http, ResponseBody, invalidation::is_safe, question::Question, request::Asked, status::Forward,
};
use crate::{error::BoxError, key::Key};

/// The future of a request that passes to the inner service.
#[must_use = "futures do nothing unless you `.await` or poll them"]
#[pin_project]
pub struct HttpPass<S: Service<Request<B>>, B> {
    passed: Passed,
    #[pin]
    state: State<S, B>,
}

// A pass is polled in place, and so its call is in no box.
#[allow(clippy::large_enum_variant)]
#[pin_project(project = StateProjection)]
enum State<S: Service<Request<B>>, B> {
    /// The inner service answers the request. The clone of the service is gone when the service has
    /// been called, because a clone may hold a permit.
    Calling(#[pin] Oneshot<S, Request<B>>),
    /// The response to an unsafe request waits for the task that ends what the request outdates.
    Invalidating(JoinHandle<()>, Option<S::Response>),
}

impl<S: Service<Request<B>>, B> HttpPass<S, B> {
    /// Passes a request that takes no part.
    pub(super) fn without_part(http: Http, question: Question, call: (S, B), why: Forward) -> Self {
        let effect = if is_safe(&question.head.method) {
            Effect::Nothing
        } else {
            Effect::Invalidation(Box::new(question.head.clone()))
        };
        Self::new(http, question, call, why, effect)
    }

    /// Passes a request that takes part, and that shares no response.
    pub(super) fn alone(asked: Asked, call: (S, B), why: Forward) -> Self {
        let Asked { http, place, question } = asked;
        let sent = Question::clone(&question);
        Self::new(http, sent, call, why, Effect::EndOfMark(place.lasting, question))
    }

    fn new(http: Http, question: Question, call: (S, B), why: Forward, effect: Effect) -> Self {
        http.count_passed(&why);
        let (inner, body) = call;
        let request = Request::from_parts(question.into_sent(), body);
        let state = State::Calling(Oneshot::new(inner, request));
        Self { passed: Passed { http, why, since: Instant::now(), effect }, state }
    }
}

impl<S, B, ResBody> Future for HttpPass<S, B>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body<Error: Into<BoxError>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.state.as_mut().project() {
                StateProjection::Calling(call) => {
                    let answer = ready!(call.poll(cx));
                    this.passed.count_failure(&answer);
                    let (parts, body) = answer?.into_parts();
                    let invalidation = this.passed.apply_effect(&parts, &body);
                    let response = Response::from_parts(parts, body);
                    match invalidation {
                        Some(task) => this.state.set(State::Invalidating(task, Some(response))),
                        None => return Poll::Ready(Ok(this.passed.explain(response))),
                    }
                }
                StateProjection::Invalidating(task, response) => {
                    // An error says that the runtime shuts down.
                    let _ended = ready!(Pin::new(task).poll(cx));
                    // The response is there until this future has returned it.
                    let Some(response) = response.take() else { return Poll::Pending };
                    return Poll::Ready(Ok(this.passed.explain(response)));
                }
            }
        }
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for HttpPass<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpPass").finish_non_exhaustive()
    }
}

/// What the layer knows of a request that passes.
struct Passed {
    http: Http,
    why: Forward,
    /// When the request was sent.
    since: Instant,
    effect: Effect,
}

/// What the answer to a request that passes means to other requests.
enum Effect {
    /// The request is safe, and takes no part.
    Nothing,
    /// The request is unsafe. If the answer is no error, the request ends the responses that it
    /// outdates.
    Invalidation(Box<request::Parts>),
    /// The request takes part. An answer that could be shared ends the mark of this key.
    EndOfMark(Key, Arc<Question>),
}

impl Passed {
    fn count_failure<B, E>(&self, answer: &Result<Response<B>, E>) {
        let is_failed = match answer {
            Ok(response) => response.status().is_server_error(),
            Err(_) => true,
        };
        if is_failed {
            self.http.count_failed_pass();
        }
    }

    /// Does what the answer means to other requests. Returns the task that the caller waits for, if
    /// any.
    fn apply_effect(&self, answer: &response::Parts, body: &impl Body) -> Option<JoinHandle<()>> {
        match &self.effect {
            Effect::Nothing => None,
            Effect::Invalidation(head) => {
                self.http.invalidate(head, answer.status, &answer.headers)
            }
            Effect::EndOfMark(key, question) => {
                let judged = self.http.judge(question, self.since.elapsed(), answer, body);
                if judged.is_ok() {
                    self.http.0.marks.end(key, question.is_authorized);
                }
                None
            }
        }
    }

    fn explain<B>(&self, response: Response<B>) -> Response<ResponseBody<B>> {
        let response = response.map(ResponseBody::from_passed);
        self.http.explained(response, &self.why, None, None)
    }
}
