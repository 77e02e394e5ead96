//! `HEAD`, conditions and ranges, answered from one whole response.

use http::{HeaderValue, Method};

use super::prelude::*;

const MODIFIED: &str = "Tue, 15 Nov 1994 12:45:25 GMT";
/// A date to come, for one that is over would age the answer.
const DATE: &str = "Wed, 19 Nov 2081 12:45:30 GMT";
const BODY: &str = "0123456789";

/// Returns an origin that says what reaches it in the headers of its answers.
fn documents() -> (Inner, Calls) {
    origin(|_, request| {
        let seen: Vec<_> = request.headers().keys().map(|name| name.as_str()).collect();
        let seen = format!("{} {}", request.method(), seen.join(","));
        let headers = [
            ("etag", "\"v1\""),
            ("last-modified", MODIFIED),
            ("date", DATE),
            ("content-type", "text/plain"),
            ("content-location", "/document"),
            ("content-digest", "sha-256=:YWJj:"),
            ("cache-control", "max-age=60"),
            ("x-seen", &*seen),
        ];
        reply(200, &headers, BODY)
    })
}

fn by(method: Method, headers: Lines<'_>) -> Request<Body> {
    request(method.as_str(), "/", headers)
}

/// Requests with their answers: the status, and the body.
const TABLE: [(Method, Lines<'static>, u16, &str); 16] = [
    (Method::GET, &[], 200, BODY),
    (Method::HEAD, &[], 200, ""),
    (Method::GET, &[("if-none-match", "\"v0\", W/\"v1\"")], 304, ""),
    (Method::GET, &[("if-none-match", "*")], 304, ""),
    (Method::HEAD, &[("if-none-match", "\"v1\"")], 304, ""),
    (Method::GET, &[("if-none-match", "\"v2\"")], 200, BODY),
    (Method::GET, &[("if-modified-since", MODIFIED)], 304, ""),
    (Method::GET, &[("if-none-match", "\"v2\""), ("if-modified-since", MODIFIED)], 200, BODY),
    (Method::GET, &[("range", "bytes=2-4")], 206, "234"),
    (Method::GET, &[("range", "bytes=-2")], 206, "89"),
    (Method::GET, &[("range", "bytes=0-1,4-5")], 200, BODY),
    (Method::GET, &[("range", "bytes=10-")], 200, BODY),
    (Method::HEAD, &[("range", "bytes=2-4")], 200, ""),
    (Method::GET, &[("range", "bytes=2-4"), ("if-range", "\"v1\"")], 206, "234"),
    (Method::GET, &[("range", "bytes=2-4"), ("if-range", "\"v0\"")], 200, BODY),
    (Method::GET, &[("range", "bytes=2-4"), ("if-none-match", "\"v1\"")], 304, ""),
];

/// Checks the answers to the table, of a body that is there as a whole.
fn assert_answers(answers: &[Answer]) {
    for (at, (answer, (method, lines, status, body))) in answers.iter().zip(TABLE).enumerate() {
        let what = format!("{at}: {method} {lines:?}");
        assert_eq!((answer.status.as_u16(), answer.text()), (status, body), "{what}");
        assert!(answer.headers.contains_key("etag"), "{what}");
        // It is one of the whole body.
        assert!(status != 206 || !answer.headers.contains_key("content-digest"), "{what}");
        // The headers about the body come with the body, and with a `HEAD`.
        let has_type =
            matches!(status, 200 | 206) && !lines.iter().any(|line| line.0 == "if-range");
        assert_eq!(
            answer.headers.contains_key("content-type"),
            has_type || status == 200,
            "{what}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn one_answer_serves_all_that_is_asked_of_it() {
    let requests = || TABLE.map(|(method, lines, ..)| by(method, lines));
    // Each of them comes first once, and so leads the load.
    for first in 0..TABLE.len() {
        let (inner, calls) = documents();
        let service = layered(&inner);
        // At once on a cold entry, then one by one on a fresh one.
        let mut cold = requests();
        cold.rotate_left(first);
        let mut answers = ask_all(std::slice::from_ref(&service), cold).await;
        answers.rotate_right(first);
        assert_answers(&answers);
        let mut answers = Vec::new();
        for request in requests() {
            answers.push(ask(&service, request).await);
        }
        assert_answers(&answers);
        assert_eq!(calls.count(), 1, "{first}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_origin_is_asked_for_the_whole_answer() {
    let (inner, _) = documents();
    let lines = [("accept", "*/*"), ("if-none-match", "\"v0\""), ("range", "bytes=0-1")];
    let answer = ask(&layered(&inner), by(Method::HEAD, &lines)).await;
    assert_eq!(answer.headers["x-seen"], "GET accept");
    assert_eq!(answer.headers["content-length"], "10");
}

#[tokio::test(start_paused = true)]
async fn each_answer_has_its_headers() {
    let (inner, _) = documents();
    let service = layered(&inner);
    ask(&service, get("/")).await;
    let ask = |lines| ask(&service, get_with(lines));
    let has = |answer: &Answer, name: &str| {
        answer.headers.get(name).map(|value| value.to_str().unwrap().to_owned())
    };
    let part = ask(&[("range", "bytes=2-4")]).await;
    assert_eq!(has(&part, "content-range").unwrap(), "bytes 2-4/10");
    assert_eq!(has(&part, "content-length").unwrap(), "3");
    assert_eq!(has(&part, "last-modified").unwrap(), MODIFIED);
    let known = ask(&[("if-none-match", "\"v1\"")]).await;
    for name in ["etag", "date", "content-location", "cache-control", "age", "x-seen"] {
        assert!(known.headers.contains_key(name), "{name}");
    }
    for name in ["content-type", "content-length", "last-modified"] {
        assert!(!known.headers.contains_key(name), "{name}");
    }
}

/// Everything but one range of bytes that the body has selects all of it.
#[tokio::test(start_paused = true)]
async fn one_range_selects_a_part() {
    let (inner, calls) = documents();
    let service = layered(&inner);
    ask(&service, get("/")).await;
    let ask = |request| ask(&service, request);
    let assert_whole = async |lines: Lines<'_>| {
        let answer = ask(get_with(lines)).await;
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, BODY), "{lines:?}");
    };
    for (line, part) in [
        ("bytes=0-0", "0"),
        ("bytes=0-9", BODY),
        ("bytes=3-", "3456789"),
        ("bytes=9-99999999999999999999999999", "9"),
        ("bytes=-30", BODY),
        ("Bytes = 2-2 ", "2"),
    ] {
        let answer = ask(get_with(&[("range", line)])).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (206, part), "{line}");
    }
    for line in "bytes=0-1,3-4|lines=0-1|bytes=5-3|bytes=-|bytes=|bytes||bytes=a-b|bytes=+1-2|\
                 bytes=1 - 2|bytes=1--2|\u{e4}|bytes=10-20|bytes=99999999999999999999999999-|\
                 bytes=-0"
        .split('|')
    {
        assert_whole(&[("range", line)]).await;
    }
    let range = ("range", "bytes=0-1");
    assert_whole(&[range, range]).await;
    // Another validator than the strong tag permits no part.
    for line in ["\"v0\"", "W/\"v1\"", "\"v1\", \"v1\"", "\"v1", "v1", MODIFIED, "\"V1\""] {
        assert_whole(&[range, ("if-range", line)]).await;
    }
    let tag = ("if-range", "\"v1\"");
    assert_whole(&[range, tag, tag]).await;
    assert_eq!(calls.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn tags_are_compared_weakly_and_dates_after_them() {
    const TAGS: &str = "if-none-match";
    const SINCE: &str = "if-modified-since";
    const LATER: &str = "Tue, 15 Nov 1994 12:45:26 GMT";
    let tag = ("etag", "\"v1\"");
    let weak = ("etag", "W/\"v1\"");
    let modified = ("last-modified", MODIFIED);
    let dated = ("date", DATE);
    let comma = ("etag", "\"a,b\"");
    let table: [(&[_], Lines<'static>, bool); 31] = [
        (&[comma], &[(TAGS, "\"a,b\"")], true),
        (&[comma], &[(TAGS, "\"x\", \"a,b\"")], true),
        (&[comma], &[(TAGS, "\"x\",W/\"a,b\" , \"y,z\"")], true),
        (&[comma], &[(TAGS, "\"x,y\", \"a,b\"")], true),
        (&[comma], &[(TAGS, "x, \"a,b\"")], true),
        (&[comma], &[(TAGS, "\"x\""), (TAGS, ",, \"a,b\",")], true),
        (&[comma], &[(TAGS, "\"a\", \"b\"")], false),
        (&[comma], &[(TAGS, "\"a, b\"")], false),
        (&[comma], &[(TAGS, "\"x, \"a,b\"")], false),
        (&[("etag", "\"a\"")], &[(TAGS, "\"x,\"a\",y\"")], false),
        (&[("etag", "\"a\"")], &[(TAGS, "\"x,*,y\"")], false),
        (&[("etag", "\"a\"")], &[(TAGS, "\"x\",*")], true),
        (&[tag], &[(TAGS, "W/\"v1\"")], true),
        (&[weak], &[(TAGS, "\"v1\"")], true),
        (&[weak], &[(TAGS, "\"v0\" ,\t, \"v1\"")], true),
        (&[tag], &[(TAGS, "\"v0,\", W/\"v1\"")], true),
        (&[tag], &[(TAGS, "\"v0\""), (TAGS, "\"v1\"")], true),
        (&[tag], &[(TAGS, "\"V1\"")], false),
        (&[tag], &[(TAGS, "v1")], false),
        (&[tag], &[(TAGS, "w/\"v1\"")], false),
        (&[tag], &[(TAGS, "\"v0\"\"v1\"")], false),
        (&[tag], &[(TAGS, "")], false),
        (&[tag, tag], &[(TAGS, "\"v1\"")], false),
        (&[modified], &[(TAGS, "\"v1\"")], false),
        (&[modified], &[(SINCE, LATER)], true),
        (&[modified], &[(SINCE, "Tuesday, 15-Nov-94 12:45:25 GMT")], true),
        (&[modified], &[(SINCE, "soon")], false),
        (&[modified], &[(SINCE, LATER), (SINCE, LATER)], false),
        (&[("last-modified", LATER)], &[(SINCE, MODIFIED)], false),
        (&[dated], &[(SINCE, DATE)], true),
        (&[dated], &[(SINCE, MODIFIED)], false),
    ];
    for (stored, asked, is_known) in table {
        let (inner, calls) = with_headers(stored);
        let service = layered(&inner);
        ask(&service, get("/")).await;
        let status = ask(&service, get_with(asked)).await.status.as_u16();
        let expected = if is_known { 304 } else { 200 };
        assert_eq!((status, calls.count()), (expected, 1), "{stored:?} {asked:?}");
    }
}

/// RFC 9110, section 8.6.
#[tokio::test(start_paused = true)]
async fn a_head_of_a_response_without_content_has_no_length() {
    for (status, length) in [(StatusCode::NO_CONTENT, None), (StatusCode::NOT_FOUND, Some("0"))] {
        let (inner, calls) = origin(move |_, _| reply(status.as_u16(), &[], ""));
        let service =
            layer().policy(Policy::default().status_lifetime(status, SECOND)).layer(inner);
        for method in [Method::GET, Method::HEAD] {
            let answer = ask(&service, by(method.clone(), &[])).await;
            let found = answer.headers.get("content-length").map(|length| length.to_str().unwrap());
            assert!(found == length || method == Method::GET, "{status} {found:?}");
        }
        assert_eq!(calls.count(), 1, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_of_a_body_is_not_copied() {
    let service = layered(&origin(|_, _| reply(200, &[], vec![b'x'; 1000])).0);
    ask(&service, get("/")).await;
    let mut addresses = Vec::new();
    for range in ["bytes=0-", "bytes=100-199"] {
        let part = ask(&service, get_with(&[("range", range)])).await;
        addresses.push(part.body.as_ptr() as usize);
    }
    assert_eq!(addresses[1] - addresses[0], 100);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_shared_meets_the_conditions_too() {
    let (inner, calls) = origin(|call, request| {
        let body = format!("{call} {} {}", request.method(), request.headers().len());
        reply(200, &[("etag", "\"v1\""), ("set-cookie", "a=b")], body)
    });
    for (method, lines, status, body) in [
        (Method::GET, &[("if-none-match", "\"v1\"")][..], 304, ""),
        (Method::HEAD, &[], 200, ""),
        (Method::GET, &[("range", "bytes=0-0")], 200, "1 GET 1"),
    ] {
        let service = layered(&inner);
        let before = calls.count();
        let answer = ask(&service, by(method.clone(), lines)).await;
        let body = body.replacen('1', &(before + 1).to_string(), 1);
        assert_eq!((answer.status.as_u16(), answer.text()), (status, &*body), "{lines:?}");
        // Known to be uncacheable, the next one reaches the origin as it is.
        let answer = ask(&service, by(method.clone(), lines)).await;
        let expected = format!("{} {method} {}", before + 2, lines.len());
        assert_eq!((answer.status, answer.text()), (StatusCode::OK, &*expected));
    }
}

#[tokio::test(start_paused = true)]
async fn without_a_store_each_condition_reaches_the_origin() {
    let (inner, calls) = documents();
    let service = layer().policy(Policy::default().coalesce_only()).layer(inner);
    for (at, (method, lines, ..)) in TABLE.into_iter().enumerate() {
        let answer = ask(&service, by(method.clone(), lines)).await;
        let seen = answer.headers["x-seen"].to_str().unwrap().to_owned();
        let names: Vec<_> = lines.iter().map(|line| line.0).collect();
        assert_eq!(seen, format!("{method} {}", names.join(",")));
        assert_eq!(calls.count(), at + 1);
    }
}

/// They are rare, and the service knows what it has now.
#[tokio::test(start_paused = true)]
async fn a_precondition_reaches_the_origin() {
    let (inner, calls) = documents();
    let service = layered(&inner);
    ask(&service, get("/")).await;
    for (at, name) in ["if-match", "if-unmodified-since"].into_iter().enumerate() {
        let answer = ask(&service, get_with(&[(name, "\"v2\"")])).await;
        let seen = answer.headers["x-seen"].to_str().unwrap();
        assert_eq!((seen, calls.count()), (&*format!("GET {name}"), at + 2));
    }
}

#[tokio::test(start_paused = true)]
async fn a_stale_answer_meets_the_conditions() {
    let (inner, calls) = documents();
    let layer = layer_of(builder().stale_while_revalidate(60 * SECOND));
    let service: Layered = layer.layer(inner);
    ask(&service, get("/")).await;
    sleep(61 * SECOND).await;
    let answer = ask(&service, get_with(&[("if-none-match", "\"v1\"")])).await;
    assert_eq!((answer.status, calls.count()), (StatusCode::NOT_MODIFIED, 1));
    sleep(SECOND).await;
    // The refresh asked for the whole answer.
    assert_eq!(ask(&service, get("/")).await.headers["age"], "0");
    assert_eq!((ask(&service, get("/")).await.text(), calls.count()), (BODY, 2));
}

/// RFC 9110, section 8.8.3, permits bytes outside ASCII.
#[tokio::test(start_paused = true)]
async fn a_tag_may_be_any_bytes() {
    let tag = HeaderValue::from_bytes(b"\"caf\xc3\xa9\"").unwrap();
    let answered = tag.clone();
    let (inner, _) = origin(move |_, _| {
        let mut answer = reply(200, &[("cache-control", "max-age=60")], BODY);
        answer.headers_mut().insert("etag", answered.clone());
        answer
    });
    let service = layered(&inner);
    ask(&service, get("/")).await;
    for (name, status, body) in [("if-none-match", 304, ""), ("if-range", 206, "234")] {
        let mut request = get_with(&[("range", "bytes=2-4")]);
        request.headers_mut().insert(name, tag.clone());
        let answer = ask(&service, request).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (status, body), "{name}");
    }
}

/// Returns an origin that has a file of so many bytes, which are the last digits of their places,
/// and answers a range of it with a `206`.
fn file(length: usize, control: &'static str) -> (Inner, Calls) {
    origin(move |_, request| {
        let bytes: Bytes = (0..length).map(|at| b'0' + (at % 10) as u8).collect();
        let seen: Vec<_> = request.headers().keys().map(|name| name.as_str()).collect();
        let common = [("etag", "\"v1\""), ("cache-control", control), ("x-seen", &seen.join(","))];
        let range = request.headers().get("range").and_then(|range| range.to_str().ok());
        let range = range.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
        let Some((first, last)) = range else { return reply(200, &common, bytes) };
        let first: usize = first.parse().unwrap();
        if first >= length {
            let place = format!("bytes */{length}");
            return reply(416, &[&common[..], &[("content-range", &place)]].concat(), "");
        }
        let end = last.parse().map_or(length, |last: usize| length.min(last + 1));
        let place = format!("bytes {first}-{}/{length}", end - 1);
        let lines = [&common[..], &[("content-range", &place)]].concat();
        reply(206, &lines, bytes.slice(first..end))
    })
}

/// Of a file over the limit, or of a private one, two bytes were 3 MiB: the first request in ten
/// seconds received the whole.
#[tokio::test(start_paused = true)]
async fn a_part_of_what_is_not_stored_is_a_part() {
    const PART: Lines<'_> = &[("range", "bytes=2-3")];
    for (length, control) in [(3 << 20, "max-age=60"), (10, "private"), (10, "max-age=60")] {
        let (inner, calls) = file(length, control);
        let service = layer().cache_status().layer(inner);
        for call in 1..4 {
            let answer = ask(&service, get_with(PART)).await;
            assert_eq!((answer.status.as_u16(), answer.text()), (206, "23"), "{length} {control}");
            assert_eq!(answer.headers["content-range"], *format!("bytes 2-3/{length}"));
            let status = answer.headers["cache-status"].to_str().unwrap();
            assert_eq!(status, "bellwether; fwd=uri-miss; detail=\"uncacheable: range\"");
            assert_eq!(calls.count(), call);
        }
        // A request for the whole finds no mark, and what may be stored is.
        let whole = ask(&service, get("/")).await;
        assert_eq!((whole.status, whole.body.len()), (StatusCode::OK, length));
        let before = calls.count();
        let answer = ask(&service, get_with(PART)).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (206, "23"));
        let is_stored = length == 10 && control != "private";
        assert_eq!(calls.count() - before, usize::from(!is_stored), "{length} {control}");
    }
}

/// What a player begins with is all of the file.
#[tokio::test(start_paused = true)]
async fn a_range_that_is_the_whole_response_is_none() {
    let (inner, calls) = file(10, "max-age=60");
    let service = layered(&inner);
    for _ in 0..2 {
        let answer = ask(&service, get_with(&[("range", "bytes=0-")])).await;
        assert_eq!((answer.status.as_u16(), answer.text()), (206, BODY));
        assert_eq!((&answer.headers["x-seen"], calls.count()), (&"".parse().unwrap(), 1));
    }
}

/// The part is its caller's alone. Those that wait for the whole share it, and those that wait for
/// a part ask for theirs.
#[tokio::test(start_paused = true)]
async fn callers_that_wait_for_a_part_of_another_one_have_what_is_theirs() {
    let (inner, calls) = file(10, "max-age=60");
    let service = layered(&inner);
    let part = || get_with(&[("range", "bytes=2-3")]);
    let requests = [part()].into_iter().chain((0..10).flat_map(|_| [get("/"), part()]));
    let answers = ask_all(std::slice::from_ref(&service), requests).await;
    for (at, answer) in answers.iter().enumerate() {
        let expected = if at % 2 == 0 { (206, "23") } else { (200, BODY) };
        assert_eq!((answer.status.as_u16(), answer.text()), expected, "{at}");
    }
    assert_eq!(calls.count(), 12);
    ask_all(std::slice::from_ref(&service), [part(), get("/")]).await;
    assert_eq!(calls.count(), 12, "nothing is stored");
}

/// The leader's response is no part of theirs.
#[tokio::test(start_paused = true)]
async fn a_caller_that_waits_for_a_part_of_an_unfit_response_asks_for_its_own() {
    for (length, control) in [(3 << 20, "max-age=60"), (10, "private")] {
        let (inner, _) = file(length, control);
        let requests = [get("/"), get_with(&[("range", "bytes=2-3")])];
        let answers = ask_all(&[layered(&inner)], requests).await;
        assert_eq!(answers[0].body.len(), length);
        assert_eq!((answers[1].status.as_u16(), answers[1].text()), (206, "23"), "{control}");
    }
}

/// A range of one client must neither mark a URL nor be the response to all.
#[tokio::test(start_paused = true)]
async fn what_a_range_provokes_is_for_its_caller() {
    let wide = [("range", "bytes=90-99")];
    let (inner, calls) = file(10, "max-age=60");
    let service = layered(&inner);
    assert_eq!(ask(&service, get_with(&wide)).await.status.as_u16(), 416);
    ask_all(std::slice::from_ref(&service), (0..10).map(|_| get("/"))).await;
    assert_eq!(calls.count(), 2);
    for lines in [&[("vary", "range")][..], &[("vary", "if-range")], &[("content-range", "x")]] {
        let (inner, _) = origin(move |_, request| {
            let has_range = request.headers().contains_key("range");
            reply(200, if has_range { lines } else { &[] }, if has_range { "cut" } else { "whole" })
        });
        let service = layer().policy(Policy::rfc9111()).layer(inner);
        let range = get_with(&[("range", "bytes=0-1")]);
        let answers = ask_all(std::slice::from_ref(&service), [range, get("/")]).await;
        assert_eq!([answers[0].text(), answers[1].text()], ["cut", "whole"], "{lines:?}");
        assert_eq!(ask(&service, get("/")).await.text(), "whole", "{lines:?}");
    }
}

/// RFC 9110, section 13.2.2: the condition comes before the range.
#[tokio::test(start_paused = true)]
async fn a_condition_comes_before_the_range_of_what_is_not_stored() {
    for (lines, status, seen) in [
        (&[("range", "bytes=2-3"), ("if-none-match", "\"v1\"")][..], 304, "range"),
        (&[("range", "bytes=2-3"), ("if-none-match", "\"v0\"")], 206, "range"),
        (&[("range", "bytes=2-3"), ("if-range", "\"v1\"")], 206, "range,if-range"),
    ] {
        let answer = ask(&layered(&file(10, "max-age=60").0), get_with(lines)).await;
        let seen_there = answer.headers["x-seen"].to_str().unwrap();
        assert_eq!((answer.status.as_u16(), seen_there), (status, seen));
    }
}

/// The response that is stored is validated as a whole, and the part is cut from it.
#[tokio::test(start_paused = true)]
async fn a_part_of_a_stale_response_is_cut_from_the_next_one() {
    let (inner, calls) = file(10, "max-age=60");
    let service = layered(&inner);
    ask(&service, get("/")).await;
    sleep(61 * SECOND).await;
    let answer = ask(&service, get_with(&[("range", "bytes=2-3")])).await;
    assert_eq!((answer.status.as_u16(), answer.text()), (206, "23"));
    assert_eq!((&answer.headers["x-seen"], calls.count()), (&"if-none-match".parse().unwrap(), 2));
}
