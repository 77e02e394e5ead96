//! From `SETNX` to this crate: what each step gets wrong, and what proves that it is not wrong here.
//!
//! A lock in Redis looks like one command, and each way to do it wrong was somebody's production once. The steps
//! below go from the first idea to what is done here. Under each stand tests of the repository that fail if this
//! crate makes that mistake.
//!
//! # 1. `SETNX lock 1`, and `DEL lock` at the end
//!
//! Whoever creates the key has the lock. But if he crashes, nobody deletes the key, and it is locked for ever:
//! somebody is called at night to delete it by hand, and must know that its owner is really dead.
//!
//! Here each lock is a lease: it ends by itself unless its holder renews it, and what is left behind ends too.
//!
//! Tests: `tests/fleet/locks.rs` `a_killed_holder_costs_the_rest_of_its_lease`; `tests/conformance/leases.rs`
//! `a_lease_ends_by_itself`; `tests/conformance/leftovers.rs` `every_key_ends`.
//!
//! # 2. `SETNX lock 1`, then `EXPIRE lock 10`
//!
//! Two commands, and a crash or a cut connection between them is step 1 again: rare enough to pass every review.
//!
//! Here whatever must happen together is one script, and no key is without an end at any time.
//!
//! Tests: `tests/redis/family/faults.rs` `a_connection_that_is_cut_at_each_command`, which cuts before and after each one
//! and looks for keys with no end.
//!
//! # 3. The end as the value: `SETNX lock <now + 10 s>`, and `GETSET` when it has passed
//!
//! Whoever finds a time stamp in the past swaps in his own by `GETSET`, and has the lock if what comes back is what
//! he read. The keys need no expiry; but now the clients' clocks decide. One that is a minute ahead takes every
//! lock from under its holder. And who loses the race has overwritten the winner's time stamp with his own.
//!
//! Here only the server's clock ends a lease. A holder's own deadline is a duration, measured by a clock that
//! nobody sets, from before the command was sent.
//!
//! Tests: `tests/faults/holder.rs` `a_holder_whose_clock_is_set_keeps_its_lease`; `tests/redis/scripts.rs`
//! `the_servers_clock_ends_leases_and_entries`; `tests/conformance/leases.rs`
//! `a_renewed_lease_lasts_its_full_time_from_then`.
//!
//! # 4. `SET lock 1 NX PX 10000`
//!
//! One command, and the server's clock. But the value is the same for everyone. Ann stalls for 11 s, her lease
//! ends, Bob takes the lock; Ann wakes up, is done, and deletes *Bob's* key. Now Cid comes in beside Bob, and Bob
//! will open Cid's lock in turn: one pause, and the lock guards nothing until the traffic ends.
//!
//! Here each acquisition has a token of its own, from the system's randomness, and ends nothing else.
//!
//! Tests: `tests/conformance/leases.rs` `a_late_release_does_not_end_a_newer_lease`, `a_stranger_releases_nothing`,
//! `a_stranger_renews_nothing`.
//!
//! # 5. A unique value; to release, `GET` it, compare, and `DEL`
//!
//! Between the answer to `GET` and the arrival of `DEL` the lease may end and another one begin: step 4 again, in a
//! smaller window, which a pause of the process or a slow network makes as large as you like.
//!
//! Here the comparison and what follows from it are one step at the server, for releases, renewals and hand-overs
//! alike. The long test lets processes be killed and suspended while others want what they had, and judges by what
//! each of them saw; and a lock that is broken on purpose in this way is found by it.
//!
//! Tests: `tests/conformance/contention.rs` `contenders_never_hold_together`; `tests/histories/main.rs`
//! `histories_of_real_runs_keep_the_promises`, `a_release_of_a_foreign_lease_is_found`.
//!
//! # 6. `WATCH lock`, `GET`, `MULTI`, `SET` or `DEL`, `EXEC`
//!
//! Correct: `EXEC` does nothing if anyone touched the key since `WATCH`. But it needs a connection for each caller,
//! and several round trips for each try; and who meets another one starts again. The more want the lock, the more
//! they disturb each other. Measured by `peers/benches/hot_lock.rs`, 32 tasks in 4 processes, each hold 1 ms, on
//! two busy cores:
//!
//! | | commands for one hold | from one holder to the next, median |
//! |---|---|---|
//! | `WATCH`, polling | 110 | 1.4 ms |
//! | `SET NX PX`, polling (step 7) | 33 | 0.26 ms |
//! | [`mutex`](crate::Locks::mutex) | 1.1 | 0.25 ms |
//!
//! Here nothing is optimistic: a script never has to start again, and of the callers of one process one asks.
//!
//! Tests: `tests/memory/locks.rs` `the_callers_of_one_process_are_served_in_order_and_one_contends`,
//! `a_local_queue_gives_other_processes_their_turn`.
//!
//! # 7. A compare-and-delete script, and `SET NX PX` in a loop
//!
//! The recipe of most libraries, and sound while every answer arrives. When one does not, the caller does not know
//! whether he has the lock: he asks again, and takes his own key for a stranger's; or he gives up, and leaves it
//! locked for its whole lease. An async caller that is cancelled does the same. Who waits polls: at 100 ms each
//! hand-over wastes 50 ms, at 1 ms the server works for those who wait. Whoever happens to ask at the right moment
//! gets it, so some wait for very long.
//!
//! Here a second try with the same token is recognised, and gets the same fence. What was taken and is not wanted
//! is given back: by a caller that is dropped at any of its awaits, and by a guard that is dropped. A release is
//! sent until it is answered, or its lease has ended.
//!
//! Tests: `tests/redis/family/faults.rs` `an_acquire_whose_answer_is_lost`, `an_acquire_that_arrives_twice`,
//! `a_release_whose_answer_is_lost`; `tests/redis/family/cancel.rs` `a_wait_that_is_dropped_leaves_nothing`,
//! `a_try_that_is_dropped_leaves_nothing`; `tests/memory/locks.rs` `a_release_whose_caller_leaves_still_happens`.
//!
//! # 8. Waiting for a push
//!
//! A release publishes, and who waits subscribes instead of polling. Three things go wrong. The release falls
//! between the failed try and the subscription, and nobody says it again. A push is lost, with its connection or in
//! a failover, and who waits for it waits for ever. And all who wait are woken at once, for a lock that one of them
//! can have.
//!
//! Here the lock is asked for once more after the subscription is in place. There is a timer behind each push, at
//! the end of the lease that is in the way; and where pushes are forbidden, there are looks at growing intervals.
//! The server knows who waits and gives it to one of them, in their order, and who leaves or died is passed over. What is
//! pushed is believed only for as long as it is true by the reader's own clock.
//!
//! Tests: `tests/memory/locks.rs` `a_lock_has_one_holder_at_a_time_and_growing_fences`, which leaves no time for a timer;
//! `tests/redis/family/faults.rs` `pushes_that_are_lost`, `a_user_that_may_not_publish_is_served`, `a_user_that_may_not_subscribe_is_served`;
//! `tests/conformance/pushes.rs` `a_listener_that_replaces_another_misses_nothing`; `tests/conformance/fair.rs`
//! `fair_waiters_are_served_in_their_order`, `dead_waiters_are_skipped_together`; `tests/redis/handover.rs`
//! `a_push_that_comes_after_the_end_is_not_believed`.
//!
//! # 9. Renewing by itself
//!
//! A lease must be short, so that a dead holder costs little, and the work may be long: so a background task renews
//! it. Now that task is the trouble. It renews for a holder that is stuck, or that has long released. It dies of
//! the first error. Or it fails quietly, and the holder works on without a lock.
//!
//! Here the guard is what is renewed, and it ends with the guard, or at [`max_hold`](super::Mutex::max_hold). A
//! renewal that fails is tried again while the lease lasts. When it has not come through in time,
//! [`lost`](super::MutexGuard::lost) completes: at the holder's own deadline, which is before the server lets
//! anyone else in.
//!
//! Tests: `tests/memory/locks.rs` `a_lease_is_renewed_while_its_guard_lives`,
//! `a_failed_renewal_is_repeated_while_the_lease_lasts`, `a_stuck_holder_loses_the_lock_at_its_hold_limit`,
//! `a_loss_is_reported_before_the_next_holder_gets_in`; `tests/redis/family/faults.rs` `a_server_that_hangs_beyond_the_lease`.
//!
//! # 10. Fences
//!
//! A process that is suspended cannot be told anything. It wakes up after its lease, and its next instruction is
//! the write that it was about to do: no lock that ends by itself can prevent that. So each grant carries a
//! [fence](super::MutexGuard::fence), greater than any before. What is written to remembers the greatest that it
//! has seen, and refuses less. A counter in Redis would do until it expires, is evicted, or is forgotten by a
//! restart, and begins again at 1: then every old holder is ahead of every new one.
//!
//! Here a fence is at least the server's time in microseconds and more than the last one that is remembered, so it
//! grows though either is lost.
//!
//! Tests: `tests/fleet/locks.rs` `a_suspended_holder_learns_of_its_loss`, `no_update_is_lost`;
//! `tests/conformance/fences.rs` `fences_grow_over_expiries`, `fences_grow_though_the_last_one_is_forgotten`;
//! `tests/redis/scripts.rs` `fences_grow_though_the_clock_steps_back`.
//!
//! # 11. The server dies
//!
//! Redis answers before it replicates. So a master may grant a lock and die, and its successor, which knows nothing
//! of it, grants it again. No client can prevent that; a client can say it, and hide nothing.
//!
//! Here connections follow the new master, holders learn at their next renewal whether they still hold, and who
//! waits goes on waiting there. What may be lost, for each way to run Redis, is a
//! [table](crate::backend::failover); a grant can wait for replicas, which makes it rare; and
//! [`Redlock`](crate::Redlock) asks a majority of independent servers, for those who want a lock that outlives any
//! one of them and can do without a fence.
//!
//! Tests: `tests/redis/sentinel/failover.rs` `a_lease_that_was_not_replicated_is_told_lost_and_goes_to_who_waits`,
//! `a_lease_that_was_replicated_is_held_on_and_waiters_get_their_turn`; `tests/redis/replicas.rs`
//! `what_no_replica_confirms_is_given_back_and_told`; `tests/redis/family/faults.rs`
//! `primitives_survive_a_server_that_is_killed_and_starts_empty`; `tests/redis/redlock/servers.rs` `a_holder_knows_before_another_gets_in`.
