//! The rules that every backend keeps.
//!
//! Each rule is written once, against a [`Harness`](harness::Harness), and is a test for each
//! backend. A rule that only one backend keeps is a bug in the other one, or no rule. The exception
//! is a majority of servers, which [`lacks`] some capabilities. Other suites test the matters of
//! one backend alone, such as foreign bytes, a full server or a weight limit.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]
// The package `sim` compiles the rules for its own server alone.
#![cfg_attr(bellwether_sim, allow(dead_code))]

mod back_off;
mod commits;
mod contention;
mod fences;
mod forced;
mod handover;
mod harness;
mod inspections;
mod lacks;
mod large;
mod latches;
mod leases;
mod leftovers;
mod marks;
mod names;
mod passing;
mod permits;
mod pushes;
mod queues;
mod read_write;
mod tags;
mod unpolled;
mod windows;
mod writes;

/// Makes each rule a test of each backend that promises it.
///
/// Memory, a server and a cluster promise all rules. A majority of servers promises those of every
/// backend. It lacks the capabilities that the others need, and a test for each of them says so.
macro_rules! rules {
    (
        every_backend { $($file:ident: $($rule:ident,)+;)+ }
        $(needs $capability:ident { $($its_file:ident: $($its_rule:ident,)+;)+ })+
    ) => {
        #[cfg(not(bellwether_sim))]
        tests! { memory, Memory, tokio::test(start_paused = true);
            $($($file $rule)+)+ $($($($its_file $its_rule)+)+)+ }
        #[cfg(not(bellwether_sim))]
        tests! { redis, Redis, tokio::test;
            $($($file $rule)+)+ $($($($its_file $its_rule)+)+)+ }
        #[cfg(not(bellwether_sim))]
        tests! { cluster, Clustered, tokio::test;
            $($($file $rule)+)+ $($($($its_file $its_rule)+)+)+ }
        #[cfg(not(bellwether_sim))]
        tests! { majority_of_memory, OverMemory, tokio::test(start_paused = true);
            $($($file $rule)+)+ $(lacks $capability)+ }
        #[cfg(not(bellwether_sim))]
        tests! { majority_of_redis, OverRedis, tokio::test;
            $($($file $rule)+)+ $(lacks $capability)+ }
        #[cfg(bellwether_sim)]
        tests! { simulated, Simulated, tokio::test(start_paused = true);
            $($($file $rule)+)+ $($($($its_file $its_rule)+)+)+ }
    };
}

macro_rules! tests {
    ($backend:ident, $harness:ident, $test:meta; $($file:ident $rule:ident)+) => {
        mod $backend {
            use crate::harness::{Harness, $harness};
            $(
                #[$test]
                async fn $rule() {
                    let harness = $harness::start().await;
                    crate::$file::$rule(&harness).await;
                    harness.finish().await;
                }
            )+
        }
    };
}

rules! {
    every_backend {
        leases:
            a_lease_has_one_holder_at_a_time,
            a_claim_sent_twice_is_granted_one_lease,
            a_lease_ends_by_itself_unless_it_is_renewed,
            a_lease_can_be_looked_at_and_cleared,
            renewals_are_answered_one_by_one_and_in_order,;
        passing:
            a_lease_passes_on_in_one_step_with_a_greater_fence,
            a_pass_sent_twice_passes_once,
            a_claim_without_a_lease_passes_nothing,;
        fences:
            fences_grow_over_expiries,
            fences_grow_though_the_last_one_is_forgotten,;
        pushes:
            a_release_wakes,;
        contention:
            contenders_never_hold_together,;
    }
    needs queues {
        handover:
            a_waiter_is_handed_the_lease_with_the_release,
            a_release_sent_twice_hands_over_once,
            waiters_are_served_in_their_order,
            the_end_of_a_handover_counts_from_the_queue_entry,
            a_waiter_that_does_not_listen_is_skipped,
            a_lease_that_was_passed_on_is_handed_over,
            a_waiter_that_already_had_the_lease_is_not_handed_it_again,
            a_lease_is_not_handed_to_a_waiter_that_does_not_listen,
            a_plain_waiter_that_does_not_hear_is_passed_over,
            a_waiter_that_asks_again_keeps_its_queue_entry,
            a_claim_that_does_not_wait_gets_no_queue_entry,;
    }
    needs modes {
        queues:
            one_request_keeps_all_entries_of_a_process,
            a_process_learns_that_its_entries_are_gone,
            keeping_entries_hands_a_free_lease_over,
            a_dead_waiter_in_front_says_when_its_entry_ends,
            a_dead_waiter_in_front_lets_those_pass_that_fit,
            a_waiter_that_comes_back_lets_those_pass_that_fit,
            a_permit_that_no_client_heard_of_is_handed_over_later,
            a_claim_that_asks_by_itself_hides_no_others,
            a_dead_writer_between_readers_is_passed_over,
            a_process_that_stands_still_costs_one_handover,
            a_release_grants_all_readers_at_the_head,
            permits_are_served_in_order,
            a_release_without_waiters_tells_nothing,
            many_dead_waiters_are_passed_over,;
        read_write:
            a_reader_waits_behind_a_writer,
            readers_and_writers_are_served_in_their_order,
            a_writer_that_leaves_lets_readers_pass,
            one_dead_holder_of_several_ends_with_its_lease,
            a_lock_whose_last_holder_died_is_seen_as_free,
            the_only_reader_becomes_the_writer,
            a_writer_becomes_a_reader,
            an_ended_lease_does_not_pass,;
        permits:
            a_second_release_by_id_is_no_loss,
            several_permits_are_granted_all_or_none,
            many_permits_are_renewed_and_handed_over,
            each_claim_brings_its_limit,
            permits_do_not_interfere_with_other_modes,;
        inspections:
            a_lock_tells_its_holder_and_its_waiters,
            a_lock_that_is_shared_tells_how_many_hold_it,
            the_locks_of_a_namespace_are_listed,;
        contention:
            readers_and_writers_never_hold_together,
            permits_in_use_never_exceed_the_limit,;
    }
    needs marks {
        marks:
            a_mark_is_set_by_the_holder_alone,
            a_tick_that_is_not_greater_than_the_mark_does_not_begin,
            a_tick_that_is_not_done_begins_again_if_that_is_wanted,
            a_tick_sent_twice_begins_and_ends_once,
            a_mark_is_removed_by_anyone,
            a_mark_is_removed_only_as_it_was_seen,
            a_mark_ends_with_its_time,
            a_mark_tells_the_time_of_the_backend,;
    }
    needs entries {
        fences:
            fences_grow_over_writes,
            fences_grow_past_the_entry_though_the_last_one_is_forgotten,
            a_fence_is_remembered_while_its_lease_is_renewed,
            a_holder_can_be_given_a_greater_fence,;
        leases:
            a_second_release_does_nothing,
            a_holder_is_told_by_the_label_of_its_process,;
        commits:
            an_entry_is_stored_and_the_lease_ended,
            a_claim_gets_the_entry_that_it_had_not_seen,
            a_commit_sent_twice_stores_once,
            a_commit_sent_twice_does_not_restore_an_ended_entry,
            a_commit_sent_twice_does_not_end_the_next_lease,
            a_hand_over_sent_twice_hands_over_once,
            an_entry_that_is_not_stored_is_pushed_without_windows,
            a_commit_of_a_lost_lease_is_stored_if_no_other_claim_had_it,
            a_commit_of_a_lost_lease_is_refused_after_another_claim,
            a_commit_after_its_fence_is_forgotten_is_refused,
            a_forgotten_fence_is_not_brought_back_by_its_holder,
            an_entry_ends_with_its_time,
            an_uncacheable_entry_is_an_entry_too,
            a_failure_ends_the_lease_and_stores_nothing,;
        windows:
            an_entry_tells_its_age,
            an_entry_grows_older_between_two_reads,
            a_newer_entry_tells_its_age,
            an_entry_is_read_with_its_windows,
            a_touch_begins_the_windows_anew,
            a_touch_of_nothing_changes_nothing,
            a_touch_leaves_another_entry_as_it_is,
            a_touch_does_not_revive_an_expired_entry,
            a_touch_leaves_an_uncacheable_entry_as_it_is,
            an_expired_entry_is_kept_for_failures,
            an_entry_without_an_error_window_expires_for_good,;
        tags:
            each_end_of_a_tag_has_a_greater_number,
            many_ends_at_once_have_numbers_of_their_own,
            the_ends_of_tags_are_told_in_order,
            the_end_of_a_tag_outlives_each_entry,
            an_entry_keeps_its_tags,
            an_entry_without_tags_has_none,;
        back_off:
            a_name_backs_off_after_a_failed_load,
            failures_are_forgotten_after_a_time,
            a_failure_without_a_back_off_leaves_the_others,
            a_back_off_of_one_name_is_not_that_of_others,
            an_act_ends_a_back_off,
            a_commit_ends_a_back_off,
            a_late_failure_changes_nothing,
            a_failure_sent_twice_backs_off_once,
            a_claim_gets_a_newer_entry_though_the_name_backs_off,
            a_failure_is_told_as_it_was,;
        inspections:
            a_load_tells_its_process_and_those_that_wait,
            failed_loads_are_told_until_they_are_forgotten,;
        writes:
            a_put_writes_and_ends_the_lease,
            a_put_makes_the_commit_under_way_give_way,
            many_entries_are_answered_in_order_and_as_each_alone,
            a_superseded_load_is_not_stored,
            an_invalidation_removes_and_ends_the_lease,
            an_invalidation_makes_the_commit_under_way_fail,
            schemas_are_stored_side_by_side,
            a_write_clears_the_neighbouring_schemas,;
        large:
            a_large_entry_is_found_whole,
            a_large_entry_is_committed_and_ends_with_its_time,
            a_large_commit_gives_way_to_an_invalidation,
            large_and_small_entries_replace_each_other,
            the_waiters_for_a_large_entry_are_told,;
        pushes:
            a_release_of_nothing_is_silent,
            a_claim_that_waits_is_told_how_the_load_ends,
            a_turn_reaches_the_claim_that_it_is_for,
            a_commit_hands_its_entry_over,
            every_listener_is_told,
            only_listeners_of_the_name_are_told,
            a_new_listener_gets_the_changes_that_follow,
            a_listener_that_replaces_another_misses_nothing,;
        names:
            any_text_is_a_name_of_its_own,
            any_name_gets_its_own_pushes,
            namespaces_do_not_meet,
            caches_and_locks_do_not_meet,;
        contention:
            an_invalidation_wins_against_any_commit,
            a_put_wins_against_any_commit,
            one_of_many_claims_is_granted,;
        leftovers:
            nothing_but_fences_and_entries_stays,
            every_key_ends,;
    }
    needs latches {
        unpolled:
            a_waiter_that_is_not_polled_delays_others_for_its_lease,
            a_grant_that_is_not_read_delays_others_for_its_lease,
            a_grant_that_is_read_late_is_held,
            many_futures_that_are_not_polled_delay_no_other_name,
            a_task_of_a_reentrant_holder_that_is_not_polled_delays_others_for_its_lease,
            an_unlock_that_is_not_polled_delays_no_other,
            a_try_gets_a_lock_that_was_left_unread,;
        forced:
            a_lock_that_is_ended_by_force_is_free_in_its_process,
            a_holder_learns_from_another_process_that_it_was_ended,;
        latches:
            a_latch_is_counted_down_to_zero_and_no_lower,
            a_latch_that_was_never_set_is_not_at_zero,
            a_latch_is_set_once,
            a_step_sent_twice_counts_once,
            an_unfinished_latch_ends_with_its_time,
            a_finished_latch_stands_for_its_time_again,
            zero_is_pushed_once_and_the_steps_are_not,
            a_latch_that_is_cleared_is_not_set_and_wakes,
            a_latch_and_a_lease_of_one_name_do_not_meet,
            no_step_is_lost_and_none_counted_twice,;
    }
}
