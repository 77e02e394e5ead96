//! The rules that every backend keeps.
//!
//! Each rule is written once, against a [`Harness`](harness::Harness), and is a test for each backend. A
//! rule that only one backend keeps is a bug in the other one, or is no rule: what is true of one alone
//! (foreign bytes, a full server, a weight limit) is tested elsewhere.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, unreachable_pub)]

mod calls;
mod commits;
mod contention;
mod fair;
mod fences;
mod handover;
mod harness;
mod latches;
mod leases;
mod leftovers;
mod names;
mod passing;
mod permits;
mod pushes;
mod read_write;
mod several;
mod writes;

/// Makes each rule a test of each backend.
macro_rules! rules {
    ($($file:ident: $($rule:ident,)+;)+) => {
        mod memory {
            use crate::harness::{Harness, Memory};
            $($(
                #[tokio::test(start_paused = true)]
                async fn $rule() {
                    let harness = Memory::start().await;
                    crate::$file::$rule(&harness).await;
                    harness.finish().await;
                }
            )+)+
        }

        mod redis {
            use crate::harness::{Harness, Redis};
            $($(
                #[tokio::test]
                async fn $rule() {
                    let harness = Redis::start().await;
                    crate::$file::$rule(&harness).await;
                    harness.finish().await;
                }
            )+)+
        }

        mod cluster {
            use crate::harness::{Clustered, Harness};
            $($(
                #[tokio::test]
                async fn $rule() {
                    let harness = Clustered::start().await;
                    crate::$file::$rule(&harness).await;
                    harness.finish().await;
                }
            )+)+
        }
    };
}

rules! {
    leases:
        one_holder_at_a_time,
        a_claim_sent_twice_is_granted_twice_with_one_fence,
        held_tells_the_holders_fence_and_the_time_left,
        a_lease_ends_by_itself,
        a_renewed_lease_lasts_its_full_time_from_then,
        a_claim_granted_again_lasts_its_full_time_from_then,
        renewals_are_answered_one_by_one_and_in_order,
        no_claims_are_renewed_without_an_answer,
        a_stranger_renews_nothing,
        what_has_ended_cannot_be_renewed,
        a_stranger_releases_nothing,
        a_second_release_does_nothing,
        a_late_release_does_not_end_a_newer_lease,
        names_are_held_apart,;
    passing:
        a_lease_passes_on_in_one_step_with_a_greater_fence,
        a_pass_sent_twice_passes_once,
        who_has_nothing_passes_nothing,
        a_lease_can_be_looked_at,
        a_lease_that_is_cleared_is_free_and_wakes,;
    fences:
        they_grow_over_releases,
        they_grow_over_expiries,
        they_grow_over_writes,
        they_grow_though_the_last_one_is_forgotten,
        they_grow_past_the_entry_though_the_last_one_is_forgotten,
        a_burnt_fence_is_greater_than_the_granted_one,
        they_are_remembered_as_long_as_they_are_renewed,;
    commits:
        an_entry_is_stored_and_the_lease_ended,
        a_claim_gets_the_entry_that_it_had_not_seen,
        the_holder_gets_its_lease_whatever_it_has_seen,
        a_claim_gets_a_newer_entry_though_the_lease_is_held,
        a_commit_sent_twice_stores_once,
        a_commit_sent_twice_does_not_raise_the_dead,
        a_commit_sent_twice_does_not_end_the_next_lease,
        a_commit_without_a_time_stores_nothing,
        a_hand_over_sent_twice_hands_over_once,
        a_commit_of_a_lost_lease_passes_while_nobody_else_had_it,
        a_commit_of_a_lost_lease_is_refused_once_somebody_had_it,
        a_commit_of_a_lost_lease_gets_the_entry_of_who_had_it,
        a_commit_after_its_fence_is_forgotten_is_refused,
        a_forgotten_fence_is_not_brought_back_by_its_holder,
        an_entry_ends_with_its_time,
        a_commit_replaces_the_entry_and_its_time,
        an_uncacheable_entry_is_an_entry_too,
        a_failure_ends_the_lease_and_stores_nothing,
        large_entries_come_back_whole,;
    writes:
        a_put_writes_and_ends_the_lease,
        a_put_makes_the_commit_under_way_give_way,
        a_put_ends_with_its_time,
        an_invalidation_removes_and_ends_the_lease,
        an_invalidation_makes_the_commit_under_way_fail,
        an_invalidation_of_nothing_burns_a_fence,
        schemas_lie_side_by_side,
        a_write_clears_the_neighbouring_schemas,;
    pushes:
        a_release_wakes,
        a_release_of_nothing_is_silent,
        a_commit_hands_its_entry_over,
        a_commit_without_a_time_hands_its_entry_over,
        a_refused_commit_is_silent,
        a_failure_reaches_who_listens,
        a_put_pushes_its_entry,
        an_invalidation_pushes_its_fence,
        every_listener_is_told,
        only_listeners_of_the_name_are_told,
        who_listens_anew_gets_what_comes_then,
        listening_churns_without_a_gap,;
    names:
        any_text_is_a_name_of_its_own,
        any_name_gets_its_own_pushes,
        namespaces_do_not_meet,
        caches_and_locks_do_not_meet,;
    fair:
        a_free_lease_is_granted_at_once,
        first_come_first_served,
        what_nobody_hears_is_granted_to_nobody,
        who_is_only_called_is_handed_nothing_over,
        who_is_only_called_holds_nobody_up,
        who_is_not_held_to_the_order_holds_nobody_to_it,
        what_is_handed_over_lasts_for_its_time,
        it_lasts_no_longer_than_the_place,
        what_is_handed_over_is_a_lease,
        who_asks_again_keeps_the_place,
        who_does_not_wait_takes_no_place,
        who_leaves_lets_the_next_pass,
        the_dead_are_passed_over_together,
        a_grant_sent_twice_is_the_same,
        it_is_the_lease_of_the_mutex,
        a_cleared_lease_has_no_queue,;
    calls:
        who_waits_is_called_when_it_is_free,
        it_is_kept_for_who_was_called,
        it_is_kept_for_a_moment_only,
        who_does_not_come_is_not_called_again,
        who_was_called_has_nothing_before_he_asks,
        who_is_called_and_leaves_calls_the_next,
        the_last_who_is_called_and_leaves_leaves_it_free,
        who_leaves_before_is_not_called,
        they_are_called_in_their_order,
        who_does_not_wait_is_not_called,
        who_did_not_keep_the_place_is_not_called,
        a_release_sent_twice_calls_once,
        who_leaves_twice_calls_once,
        who_was_called_is_granted_once_and_the_same_again,
        who_wants_several_is_called_for_what_stands_in_the_way,;
    handover:
        who_waits_for_a_mutex_is_handed_it,
        it_is_handed_over_in_turn,
        when_it_ends_is_counted_from_the_place,
        who_is_only_called_waits_beside_them,
        nobody_is_handed_what_he_does_not_hear_of,
        a_release_sent_twice_hands_over_once,
        who_was_handed_it_and_leaves_hands_it_on,
        what_was_handed_over_ends_by_itself,
        a_place_that_was_not_kept_is_handed_nothing,
        what_was_passed_on_is_handed_over,
        nobody_is_handed_what_he_has_had,
        a_handover_is_granted_again_to_who_asks,;
    read_write:
        readers_hold_together,
        a_writer_holds_alone,
        a_reader_sent_twice_counts_once,
        a_reader_waits_behind_a_writer,
        the_last_reader_calls_the_writer,
        readers_and_writers_in_their_order,
        a_writer_who_leaves_lets_readers_pass,
        a_dead_writer_is_passed_over,
        a_dead_reader_ends_with_its_lease,
        a_renewed_reader_lasts,
        the_only_reader_becomes_the_writer,
        a_writer_becomes_a_reader,
        what_has_ended_does_not_pass,
        only_some_modes_pass,
        they_can_be_looked_at_and_cleared,;
    permits:
        no_more_than_there_are,
        a_permit_sent_twice_counts_once,
        a_release_sent_twice_raises_nothing,
        many_at_once_are_all_or_none,
        the_dead_give_theirs_back,
        renewed_permits_last,
        each_claim_brings_its_limit,
        permits_can_be_looked_at_and_cleared,
        they_stand_beside_the_other_modes,;
    several:
        all_are_granted_each_with_a_fence,
        all_or_none,
        all_sent_twice_are_granted_twice_with_their_fences,
        what_is_free_is_granted_beside_what_is_ones_own,
        all_are_renewed_and_released_one_by_one,
        only_exclusive_claims_are_acquired_together,
        those_who_want_the_same_never_block_each_other,;
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
    contention:
        contenders_never_hold_together,
        readers_and_writers_never_hold_together,
        no_more_permits_are_out_than_there_are,
        fair_contenders_hold_in_their_order,
        an_invalidation_wins_against_any_commit,
        a_put_wins_against_any_commit,
        one_of_many_claims_is_granted,;
    leftovers:
        nothing_but_fences_and_entries_stays,
        nobody_listens_in_the_end,
        everything_ends,;
}
