//! What every primitive keeps when something fails, each in the same words: whatever befalls, there is no
//! second holder before the first one's deadline has fired, nobody waits longer than one lease for what
//! nobody holds, and nothing is left behind.
//!
//! A [pair](testkit::primitives::Pair) is a primitive and a rival that cannot have it at the same time; each fault is
//! a test for each pair, against real servers.

mod cancel;
mod cluster;
mod faults;
mod mixed;

/// Makes each fault a test of each pair.
macro_rules! each {
    ($($file:ident: $($fault:ident,)+;)+) => {$($(
        mod $fault {
            use testkit::primitives::*;

            each!(@ $file $fault: mutex MUTEX, fair FAIR,
                reentrant REENTRANT, not_reentrant NOT_REENTRANT, several SEVERAL,
                one_of_them ONE_OF_THEM, all_with_it ALL_WITH_IT, reader READER, writer WRITER, writers WRITERS,
                semaphore SEMAPHORE, many MANY, permits PERMITS);
        }
    )+)+};
    (@ $file:ident $fault:ident: $($name:ident $pair:ident),+) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            crate::family::$file::$fault($pair).await;
        }
    )+};
}

each! {
    cancel:
        a_wait_that_is_dropped_leaves_nothing,
        a_try_that_is_dropped_leaves_nothing,;
    cluster:
        names_with_braces,
        a_node_that_hangs_beyond_the_lease,
        a_slot_that_moves,;
    faults:
        a_server_that_hangs_beyond_the_lease,
        primitives_survive_a_server_that_is_killed_and_starts_empty,
        primitives_survive_a_server_that_is_killed_and_starts_with_its_data,
        pushes_that_are_lost,
        a_user_that_may_not_publish_is_served,
        a_user_that_may_not_subscribe_is_served,
        primitives_survive_a_full_server,
        an_acquire_whose_answer_is_lost,
        an_acquire_that_arrives_twice,
        a_release_whose_answer_is_lost,
        a_connection_that_is_cut_at_each_command,
        what_others_left_under_the_name,;
}
