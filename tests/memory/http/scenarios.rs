//! The scenarios of two users, in one process and in two.

use super::prelude::*;
use crate::scenarios::{Order, scenarios, shared_scenarios};

fn caches(processes: usize) -> [Cache<CachedResponse>; 2] {
    let backend = MemoryBackend::new();
    let own = cache(&backend);
    let other = if processes == 1 { own.clone() } else { cache(&backend) };
    [own, other]
}

async fn run(order: Order) {
    let scenarios = scenarios().into_iter().filter(|scenario| scenario.order == order);
    let mut count = 0;
    for scenario in scenarios {
        // Callers of one process attach to one flight. The second user of another process comes to
        // one that knows nothing yet.
        for processes in [1, 2] {
            scenario.run(caches(processes)).await;
        }
        count += 1;
    }
    assert!(count >= 300, "{count} scenarios");
}

#[tokio::test(start_paused = true)]
async fn two_users_one_after_the_other_get_what_is_theirs() {
    run(Order::After).await;
}

#[tokio::test(start_paused = true)]
async fn two_users_at_once_get_what_is_theirs() {
    run(Order::Together).await;
}

#[tokio::test(start_paused = true)]
async fn a_user_that_attaches_to_a_body_gets_what_is_theirs() {
    run(Order::Meanwhile).await;
}

/// The scenarios would show nothing if no answer were shared.
#[tokio::test(start_paused = true)]
async fn equal_users_share_in_the_same_scenarios() {
    for (scenario, calls) in shared_scenarios() {
        for processes in [1, 2] {
            let found = scenario.run(caches(processes)).await;
            assert_eq!(found, calls, "{processes}: {scenario:#?}");
        }
    }
}
