//! Attackers: a user tries to get a byte of the answer to another user that docs/http.md does not
//! permit.
//!
//! A scenario is a mode of the layer and a pair of its settings. In each, the request of the victim
//! has a secret in one place after the other. The service repeats all that it has received. The
//! attacker sends a plain request, before, while and after the victim does.

use http::{header, request::Parts};

use super::prelude::*;

/// What only the request of the victim has.
const SECRET: &str = "TheVictimsSecret";

/// What the requests of the layer's user are shared by.
#[derive(Clone, Copy, Debug)]
struct Mode {
    is_rfc9111: bool,
    coalesces: bool,
}

const MODES: [Mode; 4] = [
    Mode { is_rfc9111: false, coalesces: false },
    Mode { is_rfc9111: true, coalesces: false },
    Mode { is_rfc9111: false, coalesces: true },
    Mode { is_rfc9111: true, coalesces: true },
];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Setting {
    VaryByUser,
    KeyTenant,
    IgnoreCookie,
    IgnoreUser,
    IgnoreReloads,
    ForwardOnly,
    NormalizeAgent,
    IgnoreQuery,
    DefaultLifetime,
    Tags,
    NoStale,
    LocalTier,
    CacheStatus,
}

const SETTINGS: [Setting; 13] = [
    Setting::VaryByUser,
    Setting::KeyTenant,
    Setting::IgnoreCookie,
    Setting::IgnoreUser,
    Setting::IgnoreReloads,
    Setting::ForwardOnly,
    Setting::NormalizeAgent,
    Setting::IgnoreQuery,
    Setting::DefaultLifetime,
    Setting::Tags,
    Setting::NoStale,
    Setting::LocalTier,
    Setting::CacheStatus,
];

/// A user that an outer layer has found out.
#[derive(Clone)]
struct Known(&'static str);

/// What a secret in one place means to others.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// The layer must tell these requests apart, or let the request pass.
    Apart,
    Authorization,
    Cookie,
    /// A cookie that [`Setting::IgnoreCookie`] declares harmless.
    IgnoredCookie,
    /// A header that looks like a credential.
    Credential,
    /// The same. [`Setting::IgnoreUser`] declares it harmless.
    UserHeader,
    /// The same. [`Setting::KeyTenant`] has it in the key.
    TenantHeader,
    /// A header that looks like nothing, and that no `Vary` names.
    Header,
    Agent,
    Extension,
    /// A parameter that [`Setting::IgnoreQuery`] declares harmless.
    IgnoredQuery,
}

/// Where the request of a victim has the secret.
struct Victim {
    place: Place,
    method: &'static str,
    target: &'static str,
    lines: Lines<'static>,
    has_body: bool,
    /// The header that the answers name in their `Vary`.
    vary: Option<&'static str>,
}

impl Victim {
    const PLAIN: Self = Self {
        place: Place::Apart,
        method: "GET",
        target: "/page",
        lines: &[],
        has_body: false,
        vary: None,
    };

    const fn at(place: Place, lines: Lines<'static>) -> Self {
        Self { place, lines, ..Self::PLAIN }
    }

    const fn targeting(place: Place, target: &'static str) -> Self {
        Self { place, target, ..Self::PLAIN }
    }

    const fn varied(name: &'static str, lines: Lines<'static>) -> Self {
        Self { lines, vary: Some(name), ..Self::PLAIN }
    }
}

const VICTIMS: [Victim; 40] = [
    Victim::at(Place::Authorization, &[("authorization", "Bearer TheVictimsSecret")]),
    Victim::at(Place::Apart, &[("proxy-authorization", "Basic TheVictimsSecret")]),
    Victim::at(Place::Cookie, &[("cookie", "session=TheVictimsSecret")]),
    Victim::at(Place::Cookie, &[("cookie", "_ga=1, session=TheVictimsSecret")]),
    Victim::at(Place::Cookie, &[("cookie", "_ga=1;session=TheVictimsSecret")]),
    Victim::at(Place::Cookie, &[("cookie", "_ga=1%3Bsession=TheVictimsSecret")]),
    Victim::at(Place::Cookie, &[("cookie", "_ga=1"), ("cookie", "session=TheVictimsSecret")]),
    Victim::at(Place::IgnoredCookie, &[("cookie", "_ga=TheVictimsSecret")]),
    Victim::at(Place::Credential, &[("x-api-key", "TheVictimsSecret")]),
    Victim::at(Place::Credential, &[("x-forwarded-email", "TheVictimsSecret")]),
    Victim::at(Place::Credential, &[("ssl-client-cert", "TheVictimsSecret")]),
    Victim::at(Place::UserHeader, &[("x-user", "TheVictimsSecret")]),
    Victim::at(Place::TenantHeader, &[("x-tenant", "TheVictimsSecret")]),
    Victim::at(Place::Header, &[("x-theme", "TheVictimsSecret")]),
    Victim::at(Place::Header, &[("x-forwarded-for", "TheVictimsSecret")]),
    Victim::at(Place::Agent, &[("user-agent", "TheVictimsSecret")]),
    Victim::varied("x-theme", &[("x-theme", "TheVictimsSecret")]),
    Victim::varied("user-agent", &[("user-agent", "TheVictimsSecret")]),
    Victim::varied("accept-language", &[("accept-language", "TheVictimsSecret")]),
    Victim::varied("accept-encoding", &[("accept-encoding", "TheVictimsSecret")]),
    Victim::varied("origin", &[("origin", "https://TheVictimsSecret")]),
    Victim::varied("cookie", &[("cookie", "_ga=TheVictimsSecret")]),
    Victim::varied("accept", &[("accept", "a/b"), ("accept", "TheVictimsSecret/b")]),
    Victim::at(Place::Apart, &[("host", "TheVictimsSecret.test")]),
    Victim::at(Place::Apart, &[("host", "shop.test"), ("host", "TheVictimsSecret.test")]),
    Victim::at(Place::Apart, &[("host", "shop.test/TheVictimsSecret")]),
    Victim::at(Place::Apart, &[("x-http-method-override", "TheVictimsSecret")]),
    Victim::at(Place::Apart, &[("x-original-url", "/TheVictimsSecret")]),
    Victim::at(Place::Apart, &[("destination", "/TheVictimsSecret")]),
    Victim::at(Place::Apart, &[("upgrade", "TheVictimsSecret")]),
    Victim::at(Place::Apart, &[("connection", "x-theme"), ("x-theme", "TheVictimsSecret")]),
    Victim::at(Place::Apart, &[("if-match", "\"TheVictimsSecret\"")]),
    Victim::at(Place::Apart, &[("if-none-match", "\"TheVictimsSecret\"")]),
    Victim::targeting(Place::Apart, "/page/TheVictimsSecret"),
    Victim::targeting(Place::Apart, "/page?user=TheVictimsSecret"),
    Victim::targeting(Place::Apart, "/%70age?user=TheVictimsSecret"),
    Victim::targeting(Place::Apart, "/TheVictimsSecret/../page"),
    Victim::targeting(Place::Apart, "/page?utm_source=mail;user=TheVictimsSecret"),
    Victim::targeting(Place::IgnoredQuery, "/page?utm_source=TheVictimsSecret"),
    Victim { has_body: true, ..Victim::PLAIN },
];

/// Victims whose requests are made otherwise than by a method, a target and lines.
const OTHER_VICTIMS: [Victim; 3] = [
    Victim { place: Place::Extension, ..Victim::PLAIN },
    Victim { method: "PUT", has_body: true, ..Victim::PLAIN },
    Victim { method: "THEVICTIMSSECRET", has_body: true, ..Victim::PLAIN },
];

impl Victim {
    fn request(&self) -> Request<Body> {
        let mut request = Request::builder().method(self.method).uri(self.target);
        if !self.lines.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "shop.test");
        }
        for (name, value) in self.lines {
            request = request.header(*name, *value);
        }
        let body = if self.has_body { Body::from(SECRET) } else { Body::empty() };
        let mut request = request.body(body).unwrap();
        if self.place == Place::Extension {
            request.extensions_mut().insert(Known(SECRET));
        }
        request
    }
}

/// The answers of the service: a status and headers.
struct Reply {
    status: u16,
    lines: Lines<'static>,
    allows: Allows,
}

/// Whether an answer may be shared by its status and its headers.
#[derive(Clone, Copy, PartialEq)]
enum Allows {
    Nobody,
    /// Requests without credentials.
    Anonymous,
    Everybody,
    /// Only by RFC 9111.
    ByRfc9111,
}

const REPLIES: [Reply; 20] = [
    Reply::new(200, &[("cache-control", "max-age=60")], Allows::Anonymous),
    Reply::new(200, &[("cache-control", "public, max-age=60")], Allows::Everybody),
    Reply::new(200, &[("cache-control", "s-maxage=60")], Allows::Everybody),
    Reply::new(200, &[("cache-control", "max-age=60, must-revalidate")], Allows::Everybody),
    Reply::new(200, &[], Allows::Anonymous),
    Reply::new(200, &[("cache-control", "private, max-age=60")], Allows::Nobody),
    Reply::new(200, &[("cache-control", "max-age=60, no-store")], Allows::Nobody),
    Reply::new(200, &[("cache-control", "no-cache, max-age=60")], Allows::Nobody),
    Reply::new(200, &[("cache-control", "max-age=60"), ("set-cookie", "a=b")], Allows::Nobody),
    Reply::new(
        200,
        &[("cache-control", "max-age=60"), ("clear-site-data", "\"*\"")],
        Allows::Nobody,
    ),
    Reply::new(200, &[("cache-control", "max-age=60"), ("vary", "*")], Allows::Nobody),
    Reply::new(
        200,
        &[("cache-control", "max-age=60"), ("content-encoding", "x-own")],
        Allows::Nobody,
    ),
    Reply::new(
        200,
        &[("cache-control", "max-age=60"), ("access-control-allow-origin", "https://a.test")],
        Allows::Nobody,
    ),
    Reply::new(
        200,
        &[("cache-control", "max-age=60"), ("content-type", "text/event-stream")],
        Allows::Nobody,
    ),
    Reply::new(
        206,
        &[("cache-control", "max-age=60"), ("content-range", "bytes 0-9/99")],
        Allows::Nobody,
    ),
    Reply::new(200, &[("cache-control", "max-age=60, private=\"*\"")], Allows::Nobody),
    Reply::new(403, &[("cache-control", "max-age=60")], Allows::ByRfc9111),
    Reply::new(404, &[("cache-control", "max-age=60")], Allows::ByRfc9111),
    Reply::new(503, &[("retry-after", "60")], Allows::Nobody),
    Reply::new(302, &[("location", "/page"), ("cache-control", "max-age=60")], Allows::Nobody),
];

impl Reply {
    const fn new(status: u16, lines: Lines<'static>, allows: Allows) -> Self {
        Self { status, lines, allows }
    }
}

/// When the attacker asks. He asks again in the end, and after the lifetime.
#[derive(Clone, Copy, Debug)]
enum When {
    After,
    Together,
    Meanwhile,
    /// The attacker has the response stored before the victim asks, and it is stale by then.
    Before,
}

const WHENS: [When; 4] = [When::After, When::Together, When::Meanwhile, When::Before];

/// A mode of the layer, and a pair of its settings.
#[derive(Clone, Copy, Debug)]
struct Attacked {
    mode: Mode,
    settings: [Setting; 2],
}

impl Attacked {
    fn has(self, setting: Setting) -> bool {
        self.settings.contains(&setting)
    }

    /// Returns whether docs/http.md permits that the attacker gets the answer to a victim.
    fn permits(self, victim: &Victim, reply: &Reply) -> bool {
        let is_rfc9111 = self.mode.is_rfc9111;
        let is_for_all = match reply.allows {
            Allows::Nobody => return false,
            Allows::ByRfc9111 if !is_rfc9111 => return false,
            Allows::Anonymous | Allows::ByRfc9111 => false,
            Allows::Everybody => true,
        };
        if victim.vary.is_some() {
            return false;
        }
        // What the service has not received is in no answer.
        let is_sent = !self.has(Setting::ForwardOnly);
        match victim.place {
            Place::Apart => false,
            Place::Authorization => is_rfc9111 && is_for_all,
            Place::Cookie => is_rfc9111,
            Place::IgnoredCookie => is_rfc9111 || self.has(Setting::IgnoreCookie),
            Place::Credential => is_rfc9111 && is_sent,
            Place::UserHeader => (is_rfc9111 || self.has(Setting::IgnoreUser)) && is_sent,
            Place::TenantHeader => is_rfc9111 && is_sent && !self.has(Setting::KeyTenant),
            Place::Header => is_sent,
            Place::Agent => is_sent && !self.has(Setting::NormalizeAgent),
            Place::Extension => !self.has(Setting::VaryByUser),
            Place::IgnoredQuery => self.has(Setting::IgnoreQuery),
        }
    }

    fn services(self, inner: &Inner) -> [Layered; 2] {
        let backend = MemoryBackend::new();
        let first = self.layer(self.cache(&backend)).layer(inner.clone());
        let second = self.layer(self.cache(&backend)).layer(inner.clone());
        [first, second]
    }

    fn cache(self, backend: &MemoryBackend) -> Cache<CachedResponse> {
        let mut builder = http_cache(backend.clone(), "bellwether");
        if self.has(Setting::Tags) {
            builder = builder.tags();
        }
        if self.has(Setting::LocalTier) {
            builder = builder.local(bellwether::cache::LocalTier::default());
        }
        builder.build().unwrap()
    }

    fn layer(self, cache: Cache<CachedResponse>) -> BellwetherLayer<Http> {
        let mut policy = if self.mode.is_rfc9111 { Policy::rfc9111() } else { Policy::default() };
        if self.mode.coalesces {
            policy = policy.coalesce_only();
        }
        let layer = BellwetherLayer::http(cache).policy(policy);
        self.settings.into_iter().fold(layer, set)
    }
}

fn set(layer: BellwetherLayer<Http>, setting: Setting) -> BellwetherLayer<Http> {
    match setting {
        Setting::VaryByUser => layer.vary_by(|parts: &Parts| {
            let known = parts.extensions.get::<Known>();
            Some(known.map_or("", |known| known.0).to_owned())
        }),
        Setting::KeyTenant => layer.vary_by_header("x-tenant"),
        Setting::IgnoreCookie => layer.ignore_cookies(["_ga"]),
        Setting::IgnoreUser => layer.ignore_headers(["x-user"]),
        Setting::IgnoreReloads => layer.ignore_reloads(),
        Setting::ForwardOnly => layer.forward_only(["accept", "accept-language"]),
        Setting::NormalizeAgent => {
            layer.normalize("user-agent", |agent| Some(agent.len().to_string()))
        }
        Setting::IgnoreQuery => {
            layer.query(bellwether::layer::Query::default().sort().ignore(["utm_*"]))
        }
        Setting::DefaultLifetime => layer.default_lifetime(60 * SECOND),
        Setting::Tags => layer.surrogate_keys(),
        Setting::NoStale => layer.max_stale(Duration::ZERO),
        Setting::LocalTier => layer,
        Setting::CacheStatus => layer.cache_status(),
    }
}

/// Returns a service that repeats all that it receives.
fn repeating(reply: &'static Reply, vary: Option<&'static str>) -> Inner {
    BoxCloneSyncService::new(service_fn(move |request: Request<Body>| async move {
        let (parts, body) = request.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        let known = parts.extensions.get::<Known>().map(|known| known.0);
        let text = format!("{} {} {:?} {known:?} {body:?}", parts.method, parts.uri, parts.headers);
        sleep(DELAY).await;
        let mut response = super::origin::reply(reply.status, reply.lines, text.clone());
        let headers = response.headers_mut();
        headers.insert("x-repeated", header::HeaderValue::try_from(text).unwrap());
        headers.insert("etag", header::HeaderValue::from_static("\"1\""));
        headers.insert("surrogate-key", header::HeaderValue::from_static("page"));
        if let Some(vary) = vary {
            headers.append("vary", header::HeaderValue::from_static(vary));
        }
        if let Some(control) = headers.get_mut("cache-control") {
            let stale = format!("{}, stale-while-revalidate=600", control.to_str().unwrap());
            *control = header::HeaderValue::try_from(stale).unwrap();
        }
        Ok(response)
    }))
}

/// Lets an attacker ask beside a victim. Returns the answers of the attacker.
async fn attack(services: &[Layered; 2], victim: &Victim, when: When) -> Vec<Answer> {
    let plain = || Victim::PLAIN.request();
    let [first, second] = services;
    let mut answers = Vec::new();
    match when {
        When::After => {
            ask(first, victim.request()).await;
        }
        When::Together => {
            let of_victim = asking(first, victim.request());
            answers.push(ask(first, plain()).await);
            of_victim.await.unwrap();
        }
        When::Meanwhile => {
            let of_victim = asking(first, victim.request());
            sleep(DELAY / 2).await;
            answers.push(ask(second, plain()).await);
            of_victim.await.unwrap();
        }
        When::Before => {
            answers.push(ask(first, plain()).await);
            sleep(61 * SECOND).await;
            ask(first, victim.request()).await;
            // The victim may have refreshed the response in the background.
            sleep(2 * DELAY).await;
        }
    }
    for service in services {
        answers.push(ask(service, plain()).await);
    }
    sleep(61 * SECOND).await;
    answers.push(ask(first, plain()).await);
    answers
}

fn has_secret(answer: &Answer) -> bool {
    let shown = format!("{:?} {:?}", answer.headers, answer.body);
    shown.to_ascii_lowercase().contains(&SECRET.to_ascii_lowercase())
}

fn scenarios() -> Vec<Attacked> {
    let mut scenarios = Vec::new();
    for mode in MODES {
        for (at, first) in SETTINGS.into_iter().enumerate() {
            for second in SETTINGS.into_iter().skip(at + 1) {
                scenarios.push(Attacked { mode, settings: [first, second] });
            }
        }
    }
    scenarios
}

/// A third of the victims, and the pairs of a reply and a time, go round: a few scenarios meet all.
#[tokio::test(start_paused = true)]
async fn no_attacker_gets_what_is_not_for_all() {
    let scenarios = scenarios();
    assert!(scenarios.len() >= 300, "{} scenarios", scenarios.len());
    let mut round = 0;
    let mut permitted = 0;
    for (at, attacked) in scenarios.into_iter().enumerate() {
        for victim in VICTIMS.iter().chain(&OTHER_VICTIMS).skip(at % 3).step_by(3) {
            round += 1;
            let reply = &REPLIES[round % REPLIES.len()];
            let when = WHENS[round / REPLIES.len() % WHENS.len()];
            let services = attacked.services(&repeating(reply, victim.vary));
            for answer in attack(&services, victim, when).await {
                if !has_secret(&answer) {
                    continue;
                }
                let what =
                    format!("{when:?} {:?} {} {}", victim.lines, victim.target, reply.status);
                assert!(
                    attacked.permits(victim, reply),
                    "{attacked:?} {:?} {what} {:?}: {answer:?}",
                    victim.place,
                    reply.lines
                );
                permitted += 1;
            }
        }
    }
    // The attacks would show nothing if no answer were shared.
    assert!(permitted > 100, "{permitted}");
}
