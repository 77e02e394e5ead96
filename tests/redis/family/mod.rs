//! Each lock of [`PAIRS`](testkit::primitives::PAIRS) keeps the same promises under every fault.
//! There is no second holder before the first has been told that its lease ended. No caller waits
//! longer than one lease for a lock without a holder. Nothing is left behind.
//!
//! A [pair](testkit::primitives::Pair) is a primitive and a rival that cannot be held at the same
//! time. Each fault is a test for each pair, against real servers. A fault that cannot disturb
//! other pairs is one test over all, on one cluster.

mod cancel;
mod cluster;
mod faults;
mod mixed;

/// Makes each fault a test of each pair. `file: fault,;` names functions of that file.
macro_rules! for_each_pair {
    ($($file:ident: $($fault:ident,)+;)+) => {$($(
        mod $fault {
            use testkit::primitives::*;

            for_each_pair!(@ $file $fault: mutex MUTEX, fair FAIR,
                reentrant REENTRANT, not_reentrant NOT_REENTRANT, several SEVERAL,
                one_of_them ONE_OF_THEM, all_with_it ALL_WITH_IT, reader READER, writer WRITER,
                writers WRITERS, semaphore SEMAPHORE, many MANY, permits PERMITS,
                many_permits MANY_PERMITS);
        }
    )+)+};
    (@ $file:ident $fault:ident: $($name:ident $pair:ident),+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            crate::family::$file::$fault($pair).await;
        }
    )+};
}

for_each_pair! {
    cancel:
        a_wait_that_is_dropped_leaves_nothing,
        a_try_that_is_dropped_leaves_nothing,
        a_handover_that_is_dropped_leaves_nothing,
        an_unlock_that_is_dropped_leaves_nothing,;
    cluster:
        primitives_survive_a_node_that_hangs_beyond_the_lease,;
    faults:
        primitives_survive_a_server_that_hangs_beyond_the_lease,
        primitives_survive_a_server_that_is_killed_and_starts_empty,
        primitives_survive_a_server_that_is_killed_and_starts_with_its_data,
        primitives_survive_lost_pushes,
        a_user_that_may_not_publish_is_served,
        a_user_that_may_not_subscribe_is_served,
        primitives_survive_a_full_server,
        an_acquisition_with_a_lost_answer_is_recognised,
        a_release_with_a_lost_answer_still_happens,
        primitives_survive_connections_that_are_cut_at_each_command,
        a_foreign_key_is_reported_and_left_alone,;
}
