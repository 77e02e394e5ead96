//! Parts of the key that the user of the layer adds, and the generation of a resource.

use std::io;

use http::request::Parts;

use super::{
    bodies::{data, fed, next},
    prelude::*,
};

/// An extension of an outer layer.
#[derive(Clone)]
struct User(String);

pub fn user(parts: &Parts) -> Option<String> {
    parts.extensions.get::<User>().map(|user| user.0.clone())
}

pub fn by_identity(layer: BellwetherLayer<Http>) -> BellwetherLayer<Http> {
    layer.vary_by(user)
}

/// Shares by the identity, also responses that name no lifetime.
fn by_user_shared(layer: BellwetherLayer<Http>) -> BellwetherLayer<Http> {
    by_identity(shared(layer))
}

pub fn as_user(mut request: Request<Body>, user: &str) -> Request<Body> {
    request.extensions_mut().insert(User(user.to_owned()));
    request
}

pub fn of(user: &str) -> Request<Body> {
    as_user(get("/"), user)
}

pub fn user_of(request: &Request<Body>) -> String {
    request.extensions().get::<User>().map_or(String::new(), |user| user.0.clone())
}

/// Returns an origin that answers with the user of the request.
pub fn by_user() -> (Inner, Calls) {
    origin(|_, request| reply(200, &[], user_of(request)))
}

/// A write by one tenant left the responses to all others, and that of an excluded admin left all.
#[tokio::test(start_paused = true)]
async fn a_write_ends_the_responses_of_all_parts() {
    let added: [(&str, Set); 4] = [
        ("an identity", by_identity),
        ("a header", |layer| layer.vary_by_header("x-tenant")),
        ("a function", |layer| layer.vary_by(|parts: &Parts| user(parts).unwrap_or_default())),
        ("two parts", |layer| layer.vary_by_header("x-tenant").vary_by(|_: &Parts| "b".to_owned())),
    ];
    for (what, add) in added {
        let (inner, calls) = numbered();
        let [one, other] = processes(&inner, |layer| add(shared(layer)).purge_if(|_| true));
        let by = |method: &str, user: Option<&str>| match user {
            Some(user) => as_user(request(method, "/", &[("x-tenant", user)]), user),
            None => request(method, "/", &[]),
        };
        for (method, writer) in
            [("POST", Some("bob")), ("POST", Some("carol")), ("POST", None), ("PURGE", None)]
        {
            let both = async || {
                ask(&one, by("GET", Some("alice"))).await;
                ask(&one, by("GET", Some("bob"))).await;
            };
            both().await;
            both().await;
            let before = calls.count();
            ask(&other, by(method, writer)).await;
            let passed = usize::from(method == "POST");
            both().await;
            assert_eq!(calls.count() - before, passed + 2, "{what}: {method} by {writer:?}");
        }
    }
}

/// The entry is written after the write ended, because its load began before.
#[tokio::test(start_paused = true)]
async fn a_load_that_began_before_a_write_is_not_found_by_any_user() {
    let (inner, _) = numbered();
    let service = by_identity(layer()).layer(inner);
    for warm in [false, true] {
        if warm {
            ask(&service, of("alice")).await;
        }
        let before = asking(&service, of(if warm { "bob" } else { "alice" }));
        sleep(DELAY / 5).await;
        let written: u32 = ask(&service, as_user(post(), "carol")).await.text().parse().unwrap();
        before.await.unwrap();
        for user in ["alice", "bob"] {
            let found: u32 = ask(&service, of(user)).await.text().parse().unwrap();
            assert!(found > written, "{user} {warm}");
        }
    }
}

/// The parts of a list are joined, and no two lists may look the same.
#[tokio::test(start_paused = true)]
async fn each_list_of_parts_has_a_response_of_its_own() {
    let lists: [&[&'static str]; 12] = [
        &[],
        &[""],
        &["", ""],
        &["t"],
        &["t", "t"],
        &["t 1:t"],
        &["t t"],
        &["t /"],
        &["*"],
        &["1", "23"],
        &["12", "3"],
        &["123", ""],
    ];
    let (inner, calls) = numbered();
    for coalesce_only in [false, true] {
        let cache = cache(&MemoryBackend::new());
        let services = lists.map(|list| {
            let layer = list.iter().fold(http_layer(cache.clone()), |layer, part| {
                layer.vary_by(|_: &Parts| (*part).to_owned())
            });
            if coalesce_only { layer.policy(Policy::default().coalesce_only()) } else { layer }
                .layer(inner.clone())
        });
        let before = calls.count();
        let answers = ask_all(&services, (0..5 * lists.len()).map(|_| get("/"))).await;
        assert_eq!((different(&answers), calls.count() - before), (lists.len(), lists.len()));
    }
}

#[tokio::test(start_paused = true)]
async fn any_number_of_users_load_once_each() {
    let (inner, calls) = by_user();
    let services: [_; 2] = processes(&inner, by_user_shared);
    let users: Vec<_> = (0..200).map(|at| format!("user {at}")).collect();
    for _ in 0..2 {
        let asked = users.iter().chain(&users).chain(&users);
        let answers = ask_all(&services, asked.clone().map(|user| of(user))).await;
        for (answer, user) in answers.iter().zip(asked) {
            assert_eq!(answer.text(), user);
        }
        assert_eq!(calls.count(), users.len());
    }
}

/// The callers of a user read the body that arrives for this user.
#[tokio::test(start_paused = true)]
async fn callers_read_the_body_of_their_user_while_it_arrives() {
    let (inner, mut feeds) = fed(&[]);
    let service = by_identity(layer()).layer(inner);
    let users = ["alice", "bob", "alice", "bob"];
    let bodies = users.map(|user| tokio::spawn(service.clone().oneshot(of(user))));
    let mut open = Vec::new();
    for body in bodies {
        open.push(body.await.unwrap().unwrap().into_body());
    }
    for piece in ["one", "two"] {
        let feed = timeout(20 * DELAY, feeds.recv()).await.unwrap().unwrap();
        feed.send(data(piece)).unwrap();
    }
    assert!(feeds.try_recv().is_err());
    let mut pieces = Vec::new();
    for body in &mut open {
        pieces.push(next(body).await);
    }
    // Either user may be asked for first.
    let [alice, bob] = [&pieces[0], &pieces[1]];
    assert!((alice == "one" && bob == "two") || (alice == "two" && bob == "one"), "{pieces:?}");
    assert_eq!([&pieces[2], &pieces[3]], [alice, bob]);
}

/// A user whose responses are private, or fail, comes first.
#[tokio::test(start_paused = true)]
async fn one_user_does_not_keep_the_others_from_sharing() {
    for (status, control) in [(200, "private"), (500, "no-store"), (404, "no-store")] {
        let (inner, calls) = origin(move |call, request| {
            if user_of(request) == "odd" {
                reply(status, &[("cache-control", control)], call.to_string())
            } else {
                reply(200, &[("cache-control", "max-age=60")], call.to_string())
            }
        });
        let services = [by_identity(layer()).layer(inner)];
        for _ in 0..3 {
            ask(&services[0], of("odd")).await;
            ask(&services[0], of("bob")).await;
        }
        let before = calls.count();
        for round in 1..4 {
            ask(&services[0], of("odd")).await;
            let answers = ask_all(&services, (0..10).map(|_| of("bob"))).await;
            assert_eq!((different(&answers), calls.count() - before), (1, round), "{status}");
        }
    }
}

/// A service that fails for one user is asked for the others.
#[tokio::test(start_paused = true)]
async fn a_pause_after_a_failure_is_for_its_user() {
    let (inner, calls) = origin(|_, request| {
        let status = if user_of(request) == "odd" { 503 } else { 200 };
        reply(status, &[("retry-after", "30")], "")
    });
    let rule = AfterFailure::BackOff { first: SECOND, longest: SECOND };
    let layer = layer_of(builder().after_failure(move |_| Some(rule)));
    let service = by_identity(layer).layer(inner);
    ask(&service, of("bob")).await;
    for call in 2..5 {
        assert_eq!(ask(&service, of("odd")).await.status, 503);
        assert_eq!(ask(&service, of(&format!("user {call}"))).await.status, 200);
        assert_eq!(calls.count(), call + 1);
    }
}

/// A `Vary` selects among the responses of a part.
#[tokio::test(start_paused = true)]
async fn a_vary_and_a_part_select_together() {
    let (inner, calls) = origin(|_, request| {
        let text = |name| request.headers().get(name).map_or("", |line| line.to_str().unwrap());
        let body = format!("{} {}", text("x-tenant"), text("accept-language"));
        reply(200, &[("vary", "accept-language")], body)
    });
    let services: [_; 2] = processes(&inner, |layer| shared(layer).vary_by_header("x-tenant"));
    let tenants = ["a", "b", "c"].iter();
    let asked: Vec<_> =
        tenants.flat_map(|tenant| ["en", "de"].map(|language| (*tenant, language))).collect();
    for _ in 0..2 {
        let requests = asked.iter().cycle().take(60).map(|(tenant, language)| {
            get_with(&[("x-tenant", tenant), ("accept-language", language)])
        });
        let answers = ask_all(&services, requests).await;
        for (answer, (tenant, language)) in answers.iter().zip(asked.iter().cycle()) {
            assert_eq!(answer.text(), format!("{tenant} {language}"));
        }
        assert_eq!(calls.count(), asked.len());
    }
}

/// Without a backend, no generation is stored that the callers could agree in.
#[tokio::test(start_paused = true)]
async fn callers_share_by_user_while_the_backend_is_away() {
    for memory in [0, 1 << 20] {
        let (inner, calls) = by_user();
        let away = Faulty::new(|_| Some(Fault::Refuse));
        let cache = http_cache(away, "shop").outage_memory(memory).build().unwrap();
        let services: [Layered; 1] = [by_identity(http_layer(cache)).layer(inner)];
        for round in 1..4 {
            let users = ["alice", "bob"];
            let begun = Instant::now();
            let answers = ask_all(&services, (0..40).map(|at| of(users[at % 2]))).await;
            for (at, answer) in answers.iter().enumerate() {
                assert_eq!(answer.text(), users[at % 2]);
            }
            assert!(calls.count() <= 3 * round, "{} in round {round}: {memory}", calls.count());
            assert!(begun.elapsed() <= 2 * DELAY, "{:?}", begun.elapsed());
        }
        assert!(memory == 0 || calls.count() <= 3, "{}", calls.count());
    }
}

/// The users of other processes were to wait for the body that a user of this one loads.
#[tokio::test(start_paused = true)]
async fn no_user_waits_for_the_load_of_another() {
    let (inner, calls) = origin(|_, request| {
        let user = user_of(request);
        let body = futures_util::stream::once(async move {
            sleep(if user == "slow" { 1000 * DELAY } else { Duration::ZERO }).await;
            Ok::<_, io::Error>(user)
        });
        Response::new(Body::from_stream(body))
    });
    let services: [_; 2] = processes(&inner, by_user_shared);
    let slow = asking(&services[0], of("slow"));
    for round in 1..4 {
        let begun = Instant::now();
        let users = ["alice", "bob"];
        ask_all(&services, (0..20).map(|at| of(users[at / 2 % 2]))).await;
        assert_eq!((begun.elapsed(), calls.count()), (DELAY, 4 * round - 1));
        ask(&services[0], as_user(post(), "admin")).await;
        ask(&services[0], of("carol")).await;
    }
    assert!(!slow.is_finished());
}

/// All users had to load again and again, because the `Vary` of one ended the marker of all.
#[tokio::test(start_paused = true)]
async fn a_vary_of_one_user_ends_nothing_of_the_others() {
    let (inner, calls) = origin(|_, request| match user_of(request) {
        user if user == "odd" => reply(200, &[("vary", "x-odd")], user),
        user => reply(200, &[], user),
    });
    let services: [_; 2] = processes(&inner, by_user_shared);
    for _ in 0..5 {
        for at in 0..20 {
            ask(&services[at % 2], of(&format!("user {}", at % 4))).await;
            ask(&services[at / 2 % 2], of("odd")).await;
        }
    }
    assert_eq!(calls.count(), 5);
}

/// With `rfc9111()`, a mark of one user was to send all others to the service alone.
#[tokio::test(start_paused = true)]
async fn a_reserved_response_of_one_user_keeps_no_other_from_sharing() {
    let (inner, calls) = origin(|_, request| {
        let is_odd = user_of(request) == "odd";
        let control = if is_odd { "max-age=60" } else { "public, max-age=600" };
        reply(200, &[("cache-control", control)], "")
    });
    let service = by_identity(layer()).policy(Policy::rfc9111()).layer(inner);
    let authorized = |user| as_user(get_with(&[("authorization", "Basic YTpi")]), user);
    for _ in 0..10 {
        ask(&service, authorized("odd")).await;
        ask(&service, authorized("bob")).await;
        sleep(5 * SECOND).await;
    }
    assert_eq!(calls.count(), 11);
}

/// The marker of a resource is kept as long as its responses are asked for.
#[tokio::test(start_paused = true)]
async fn a_response_is_found_for_as_long_as_it_is_fresh() {
    for (pause, count) in [(11, 300), (700, 5), (3500, 2)] {
        let (inner, calls) = numbered();
        let backend = MemoryBackend::new();
        let services = [(), ()].map(|()| {
            let cache = http_cache(backend.clone(), "bellwether").ttl(12_000 * SECOND);
            by_identity(http_layer(cache.build().unwrap())).layer(inner.clone())
        });
        for at in 0..count {
            assert_eq!(ask(&services[at % 2], of("alice")).await.text(), "1", "{at} {pause}");
            sleep(pause * SECOND).await;
        }
        assert_eq!(calls.count(), 1);
    }
}

/// The key of the resource is that of all users, so their responses end with it.
#[tokio::test(start_paused = true)]
async fn an_invalidation_that_fails_ends_what_the_process_remembers() {
    for memory in [0, 1 << 20] {
        let (inner, calls) = numbered();
        let faulty = Faulty::new(|_| None);
        let builder = http_cache(faulty.clone(), "shop").outage_memory(memory);
        let cache = builder.stale_if_error(600 * SECOND).build().unwrap();
        let layer = by_identity(http_layer(cache.clone()));
        let service = layer.layer(inner);
        let key = layer.key(&get("/").into_parts().0).unwrap();
        for away in [false, true, true] {
            faulty.plan(move |_| away.then_some(Fault::Refuse));
            let before: usize = ask(&service, of("alice")).await.text().parse().unwrap();
            assert!(before <= calls.count());
            assert_eq!(cache.invalidate(key.clone()).await.is_err(), away);
            let after: usize = ask(&service, of("alice")).await.text().parse().unwrap();
            assert!(after > before, "{memory} {away}");
        }
    }
}

/// The caller had led a load, and looked for an old response when its patience was over. It found
/// the marker of a load behind a write, and was told that its own was cancelled.
#[tokio::test(start_paused = true)]
async fn a_slow_load_answers_its_caller_after_a_write() {
    let vary: [(&str, Set); 2] = [("", by_identity), ("x-user", |layer| layer)];
    for (vary, set) in vary {
        let (inner, _) = origin(move |_, request| {
            let headers = [("vary", vary)];
            reply(200, if vary.is_empty() { &[] } else { &headers }, user_of(request))
        });
        let slow = service_fn(move |request: Request<Body>| {
            let is_slow = user_of(&request) == "slow";
            let answer = inner.clone().oneshot(request);
            async move {
                sleep(if is_slow { 20 * DELAY } else { DELAY }).await;
                answer.await
            }
        });
        let layer = set(layer_of(builder().serve_stale_after(5 * DELAY)));
        let service = layer.layer(BoxCloneSyncService::new(slow));
        let by = |user| as_user(get_with(&[("x-user", user)]), user);
        let led = asking(&service, by("slow"));
        sleep(DELAY).await;
        ask(&service, as_user(post(), "bob")).await;
        assert_eq!(ask(&service, by("bob")).await.text(), "bob");
        assert!(!led.is_finished());
        assert_eq!(led.await.unwrap().text(), "slow", "{vary}");
    }
}

/// A key has room for the generation, or its request passes. A marker was stored without that
/// room, and each request that found it failed.
#[tokio::test(start_paused = true)]
async fn a_cache_of_short_keys_answers_each_request() {
    for limit in [20, 40, 60, 101, 102, 104, 512] {
        for varies in [false, true] {
            let (inner, calls) =
                if varies { with_headers(&[("vary", "accept-language")]) } else { by_user() };
            let layer = layer_of(builder().max_key(limit));
            let service = if varies { layer } else { by_identity(layer) }.layer(inner);
            for call in 1..4 {
                let expected = if limit < 102 { call.to_string() } else { "1".to_owned() };
                let expected = if varies { expected } else { "alice".to_owned() };
                assert_eq!(ask(&service, of("alice")).await.text(), expected, "{limit} {varies}");
            }
            assert_eq!(calls.count(), if limit < 102 { 3 } else { 1 }, "{limit} {varies}");
        }
    }
}
