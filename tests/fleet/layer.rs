//! The layer over axum, in several processes.

use std::time::Duration;

use testkit::RedisServer;

use super::{
    fleet::Fleet,
    protocol::{Answer, Setup},
};

#[tokio::test]
async fn a_stampede_on_a_cold_page_reaches_the_router_once() {
    let server = RedisServer::start().await;
    let mut fleet = Fleet::start(8, &Setup::new(server.url())).await;
    for round in 0..10 {
        let played = fleet.request(&format!("/page/{round}"), 250, Answer::Common, 200).await;
        played.leader();
        played.assert_one_value(8 * 250);
        for (_, report) in &played.reports {
            assert_eq!(report.degraded, 0, "{played:#?}");
        }
    }
}

/// Asserts that each user soon has an answer of its own, without a queue of users. Nothing of it is
/// stored.
async fn assert_an_answer_for_each_user(answer: Answer) {
    const USERS: usize = 100;
    const LOAD_MS: u64 = 50;
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let mut fleet = Fleet::start(2, &Setup::new(server.url())).await;
    let mut times = Vec::new();
    for round in 0..6 {
        let path = format!("/own/{round}");
        // At the second visit, the key is known as uncacheable.
        for visit in ["first", "second"] {
            let played = fleet.request(&path, USERS, answer, LOAD_MS).await;
            assert_eq!(played.begun.len(), 2 * USERS, "not every request reached the router");
            assert_eq!(played.errors(), 0, "{played:#?}");
            for (process, report) in &played.reports {
                for user in process * USERS..(process + 1) * USERS {
                    let own = format!("for {user} alone");
                    assert_eq!(report.values.get(&own), Some(&1), "{own}: {played:#?}");
                }
            }
            if visit == "first" {
                times.push(played.took());
            }
        }
    }
    for key in raw.keys("pages:c:*:e").await {
        let entry: Vec<u8> = raw.run(&["GET", &key]).await;
        assert!(entry.starts_with(b"bw1u"), "an answer is stored under {key}");
        assert!(entry.len() < 100, "{} bytes", entry.len());
    }
    times.sort();
    println!(
        "{answer:?}: each user has its own answer after {:?}, median {:?}",
        times[0], times[3]
    );
    // The users of one process would take so long one after another.
    let queue = USERS as u32 * Duration::from_millis(LOAD_MS);
    assert!(times[0] < queue / 5, "{times:?}, and a queue takes {queue:?}");
}

#[tokio::test]
async fn an_answer_with_a_cookie_is_for_one_user() {
    assert_an_answer_for_each_user(Answer::Cookie).await;
}

#[tokio::test]
async fn an_answer_over_the_limit_is_for_one_user() {
    assert_an_answer_for_each_user(Answer::Large).await;
}

#[tokio::test]
async fn a_stream_over_the_limit_is_for_one_user() {
    assert_an_answer_for_each_user(Answer::LargeStream).await;
}
