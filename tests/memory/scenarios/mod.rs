//! Two users whose requests differ in one respect, over any backend.
//!
//! The origin writes all that it has looked at into the body, a header and a trailer: the identity
//! of the request. A caller may only get an identity that its own request could have caused.

pub(crate) mod table;

use std::{convert::Infallible, io, time::Duration};

use axum::body::Body;
use bellwether::{
    BellwetherLayer, Cache,
    layer::{Bellwether, CachedResponse, Http, Policy, ResponseBody},
};
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Extensions, HeaderMap, Request, Response, StatusCode, Version, header, request::Parts};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tokio::time::sleep;
use tower::{Layer, ServiceExt, service_fn, util::BoxCloneSyncService};

use table::{equal_users, pairs};

/// The duration of each step of the origin.
const STEP: Duration = Duration::from_millis(10);

type Inner = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;
type Service = Bellwether<Inner, Http>;

/// The requests of two users, and how the origin answers them.
#[derive(Clone, Debug)]
pub(crate) struct Pair {
    pub(crate) is_rfc9111: bool,
    pub(crate) users: [User; 2],
    /// The headers that the origin looks at. It looks at extensions as well.
    pub(crate) reads: &'static str,
    /// The status of its answers.
    pub(crate) status: u16,
    /// The headers of its answers.
    pub(crate) says: Vec<(&'static str, String)>,
    /// Headers in the key, and cookies that are ignored.
    pub(crate) keyed: &'static str,
    pub(crate) ignored_cookies: &'static str,
}

/// The request of a user, before it takes a form.
#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) method: &'static str,
    pub(crate) target: &'static str,
    pub(crate) lines: Vec<(&'static str, &'static str)>,
    /// The user, as an outer middleware has found it out.
    pub(crate) extension: Option<&'static str>,
    pub(crate) is_http2: bool,
}

/// An extension of a request.
#[derive(Clone)]
struct Known(&'static str);

/// An extension of an answer, with the identity of its request.
#[derive(Clone)]
struct Told(String);

/// What a user asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Form {
    All,
    Head,
    Part,
    Known,
    Reload,
}

/// How a body comes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Delivery {
    Announced,
    Unknown,
    Broken,
    Short,
    Trailers,
}

/// When the second user asks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Order {
    /// After the answer to the first one.
    After,
    /// Together with the first one.
    Together,
    /// After the head of the answer to the first one, while its body arrives.
    Meanwhile,
}

const FORMS: [Form; 5] = [Form::All, Form::Head, Form::Part, Form::Known, Form::Reload];
const DELIVERIES: [Delivery; 5] =
    [Delivery::Announced, Delivery::Unknown, Delivery::Broken, Delivery::Short, Delivery::Trailers];
const ORDERS: [Order; 3] = [Order::After, Order::Together, Order::Meanwhile];

/// Returns scenarios of each pair in each order. Every other one has plain requests. In the rest,
/// the forms and deliveries go round.
pub(crate) fn scenarios() -> Vec<Scenario> {
    let mut scenarios = Vec::new();
    let mut round = 0;
    for (at, pair) in pairs().into_iter().enumerate() {
        for (after, order) in ORDERS.into_iter().enumerate() {
            let (forms, delivery) = match (at + at / 4 + after) % 2 {
                0 => ([Form::All; 2], Delivery::Announced),
                _ => {
                    round += 1;
                    let forms = [FORMS[round % 5], FORMS[round / 5 % 5]];
                    (forms, DELIVERIES[round / 25 % 5])
                }
            };
            scenarios.push(Scenario { pair: pair.clone(), forms, delivery, order });
        }
    }
    scenarios
}

/// Returns scenarios of equal users, with the number of calls of the origin.
pub(crate) fn shared_scenarios() -> Vec<(Scenario, usize)> {
    let mut scenarios = Vec::new();
    for form in FORMS {
        for (order, delivery) in ORDERS.into_iter().zip(DELIVERIES) {
            let pair = equal_users();
            let forms = [Form::All, form];
            let calls = match (form, delivery) {
                (_, Delivery::Broken) => continue,
                (Form::Reload, _) => 2,
                _ => 1,
            };
            scenarios.push((Scenario { pair, forms, delivery, order }, calls));
        }
    }
    scenarios
}

/// One scenario.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) pair: Pair,
    /// The form of the request of each user.
    pub(crate) forms: [Form; 2],
    pub(crate) delivery: Delivery,
    pub(crate) order: Order,
}

/// What a user received.
#[derive(Debug)]
struct Answer {
    status: StatusCode,
    told: Option<String>,
    headers: HeaderMap,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    is_whole: bool,
}

impl User {
    fn request(&self, form: Form) -> Request<Body> {
        let mut request = Request::builder().method(self.method).uri(self.target);
        for (name, value) in &self.lines {
            request = request.header(*name, *value);
        }
        let mut request = request.body(Body::empty()).unwrap();
        if self.is_http2 {
            *request.version_mut() = Version::HTTP_2;
        }
        if let Some(extension) = self.extension {
            request.extensions_mut().insert(Known(extension));
        }
        let (name, value) = match form {
            Form::All => return request,
            Form::Head if self.method == "GET" => {
                *request.method_mut() = http::Method::HEAD;
                return request;
            }
            Form::Head => return request,
            Form::Part => (header::RANGE, "bytes=7-"),
            Form::Known => (header::IF_NONE_MATCH, "\"known\""),
            Form::Reload => (header::CACHE_CONTROL, "no-cache"),
        };
        request.headers_mut().insert(name, value.parse().unwrap());
        request
    }
}

impl Scenario {
    /// Runs the scenario between two processes, and checks each answer. Returns the number of calls
    /// of the origin.
    pub(crate) async fn run(&self, caches: [Cache<CachedResponse>; 2]) -> usize {
        let (count, mut calls) = tokio::sync::mpsc::unbounded_channel();
        let services = caches.map(|cache| self.layer(cache).layer(self.origin(count.clone())));
        let [first, second] = [0, 1].map(|at| self.pair.users[at].request(self.forms[at]));
        match self.order {
            Order::After => {
                self.check(0, read(send(&services[0], first).await).await);
                self.check(1, read(send(&services[1], second).await).await);
            }
            Order::Together => {
                let both = [send(&services[0], first), send(&services[1], second)];
                let answers = both.map(|sent| async { read(sent.await).await });
                let answers = futures_util::future::join_all(answers).await;
                answers.into_iter().enumerate().for_each(|(at, answer)| self.check(at, answer));
            }
            Order::Meanwhile => {
                let first = read(send(&services[0], first).await);
                let second = async { read(send(&services[1], second).await).await };
                let (first, second) = tokio::join!(first, second);
                self.check(0, first);
                self.check(1, second);
            }
        }
        // From what is stored now, if anything.
        for at in [1, 0] {
            let request = self.pair.users[at].request(Form::All);
            self.check(at, read(send(&services[1 - at], request).await).await);
        }
        std::iter::from_fn(|| calls.try_recv().ok()).count()
    }

    fn layer(&self, cache: Cache<CachedResponse>) -> BellwetherLayer<Http> {
        let pair = &self.pair;
        let policy = if pair.is_rfc9111 { Policy::rfc9111() } else { Policy::default() };
        let (status, lifetime) =
            (StatusCode::from_u16(pair.status).unwrap(), Duration::from_secs(3600));
        let policy = policy.status_lifetime(status, lifetime);
        let layer = BellwetherLayer::http(cache).default_lifetime(lifetime);
        let layer = layer.policy(policy).ignore_cookies(pair.ignored_cookies.split_whitespace());
        let layer = if pair.users.iter().any(|user| user.extension.is_some()) {
            layer.vary_by(|parts: &Parts| Some(known(&parts.extensions).to_owned()))
        } else {
            layer
        };
        pair.keyed.split_whitespace().fold(layer, |layer, name| layer.vary_by_header(name))
    }

    fn origin(&self, count: tokio::sync::mpsc::UnboundedSender<()>) -> Inner {
        let scenario = self.clone();
        BoxCloneSyncService::new(service_fn(move |request| {
            let _ = count.send(());
            let answer = scenario.answer(&request);
            async move {
                sleep(STEP).await;
                Ok(answer)
            }
        }))
    }

    /// Returns the answer of the origin. Its body comes in two halves.
    fn answer(&self, request: &Request<Body>) -> Response<Body> {
        let identity = self.pair.identity(request);
        let body = Bytes::from(body(&identity));
        let half = body.len() / 2;
        let trailers = HeaderMap::from_iter([(
            header::HeaderName::from_static("x-identity"),
            identity.parse().unwrap(),
        )]);
        let mut response = Response::builder()
            .status(self.pair.status)
            .extension(Told(identity.clone()))
            .header("x-identity", &identity)
            .header("etag", "\"1\"");
        for (name, value) in &self.pair.says {
            response = response.header(*name, value);
        }
        if !matches!(self.delivery, Delivery::Unknown) {
            response = response.header("content-length", body.len());
        }
        let mut frames = vec![Ok(Frame::data(body.slice(..half)))];
        match self.delivery {
            Delivery::Broken => frames.push(Err(io::Error::other("cut"))),
            Delivery::Short => {}
            _ => frames.push(Ok(Frame::data(body.slice(half..)))),
        }
        if let Delivery::Trailers = self.delivery {
            frames.push(Ok(Frame::trailers(trailers)));
        }
        let frames = stream::iter(frames).then(|frame| async {
            sleep(STEP).await;
            frame
        });
        response.body(Body::new(StreamBody::new(frames))).unwrap()
    }

    /// Checks that an answer is one that the request of a user could have caused.
    fn check(&self, user: usize, answer: Answer) {
        let request = self.pair.users[user].request(Form::All);
        let mut own = vec![self.pair.identity(&request)];
        if self.pair.is_rfc9111 {
            // The answer to a request without credentials is for all, by section 3.5.
            let mut anonymous = request;
            anonymous.headers_mut().remove(header::AUTHORIZATION);
            own.push(self.pair.identity(&anonymous));
        }
        let told = answer.headers.get("x-identity").map(|told| told.to_str().unwrap());
        let Some(told) = told else {
            assert!(answer.body.is_empty(), "{user} has a body of none: {answer:?}, {self:#?}");
            return;
        };
        let told = own.iter().find(|own| *own == told);
        let told = told.unwrap_or_else(|| panic!("{user} of {own:?} has {answer:?}, {self:#?}"));
        let trailers = answer.trailers.iter().flat_map(|trailers| trailers.get("x-identity"));
        trailers.for_each(|trailer| assert_eq!(trailer, told, "{user}, {self:#?}"));
        answer.told.iter().for_each(|extension| assert_eq!(extension, told, "{user}, {self:#?}"));
        self.check_body(&body(told), &answer);
    }

    fn check_body(&self, body: &[u8], answer: &Answer) {
        let expected = match answer.headers.get(header::CONTENT_RANGE) {
            Some(range) => {
                let whole = format!("bytes 7-{}/{}", body.len() - 1, body.len());
                assert_eq!((answer.status.as_u16(), range.to_str().unwrap()), (206, &*whole));
                &body[7..]
            }
            None => body,
        };
        assert!(expected.starts_with(&answer.body), "another body in {answer:?}, {self:#?}");
        let is_broken = matches!(self.delivery, Delivery::Broken | Delivery::Short);
        // The server that sends an answer whose length is another one breaks it off.
        let announced = answer.headers.get(header::CONTENT_LENGTH);
        let is_noticed = announced.is_some_and(|length| *length != *answer.body.len().to_string());
        if !answer.is_whole {
            assert!(is_broken, "broken in {answer:?}, {self:#?}");
        } else if !answer.body.is_empty() {
            if is_noticed {
                assert!(is_broken, "cut in {answer:?}, {self:#?}");
            } else {
                assert_eq!(expected, answer.body, "cut in {answer:?}, {self:#?}");
            }
        }
    }
}

impl Pair {
    /// Returns all that the origin has looked at.
    fn identity(&self, request: &Request<Body>) -> String {
        let method = request.method().as_str().replace("HEAD", "GET");
        let uri = request.uri();
        let headers = request.headers();
        // The host of an HTTP/2 request is in its target.
        let authority = uri.authority().filter(|_| request.version() == Version::HTTP_2);
        let mut identity = match authority {
            Some(_) => format!("{method} {}", uri.path()),
            None => format!("{method} {uri}"),
        };
        for name in self.reads.split_whitespace() {
            if let Some(authority) =
                authority.filter(|_| name == "host" && !headers.contains_key(name))
            {
                identity += &format!(" {name}:{authority}");
            }
            for line in headers.get_all(name) {
                identity += &format!(" {name}:{}", line.as_bytes().escape_ascii());
            }
        }
        match known(request.extensions()) {
            "" => identity,
            known => format!("{identity} known:{known}"),
        }
    }
}

fn known(extensions: &Extensions) -> &'static str {
    extensions.get::<Known>().map_or("", |known| known.0)
}

fn body(identity: &str) -> Vec<u8> {
    format!("{identity}/{identity}").into_bytes()
}

async fn send(service: &Service, request: Request<Body>) -> Response<ResponseBody<Body>> {
    service.clone().oneshot(request).await.unwrap()
}

async fn read(response: Response<ResponseBody<Body>>) -> Answer {
    let (parts, mut body) = response.into_parts();
    let status = parts.status;
    let headers = parts.headers;
    let told = parts.extensions.get::<Told>().map(|told| told.0.clone());
    let body_so_far = Vec::new();
    let trailers = None;
    let mut answer = Answer { status, told, headers, body: body_so_far, trailers, is_whole: true };
    while let Some(frame) = body.frame().await {
        match frame.map(Frame::into_data) {
            Ok(Ok(data)) => answer.body.extend_from_slice(&data),
            Ok(Err(frame)) => answer.trailers = frame.into_trailers().ok(),
            Err(_) => answer.is_whole = false,
        }
    }
    answer
}
