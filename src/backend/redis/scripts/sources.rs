//! The sources of the scripts. Each source is the parts of a script, one behind another.
//!
//! A part of `lib/` is one function, or two functions that belong together, with constants. A
//! script has the functions that it uses, in the order in which the functions use each other. The
//! usual case in `usual/` comes before the functions, because Lua creates a function whenever its
//! line runs, and the usual case returns before that line.

macro_rules! sources {
    ($($name:ident: $($part:literal)+;)+) => {
        /// A value for each script.
        pub(crate) struct Scripts<T> {
            $(pub(crate) $name: T,)+
        }

        impl<T> Scripts<T> {
            /// Makes each value from the source of its script.
            pub(crate) fn from_sources(make: impl Fn(&'static str) -> T) -> Self {
                Self { $($name: make(concat!($(include_str!(concat!($part, ".lua"))),+)),)+ }
            }

            /// Returns all values, each with the name of its script.
            pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &T)> {
                [$((stringify!($name), &self.$name)),+].into_iter()
            }
        }
    };
}

sources! {
    acquire: "usual/acquire" "lib/read" "lib/fail_foreign" "lib/is_full" "lib/keep" "lib/now"
        "lib/digits" "lib/batch" "lib/lease_at" "lib/renew_lease" "lib/grant" "lib/held_until"
        "lib/count_holds" "lib/first_end" "lib/fits" "lib/write_hold" "lib/hold" "lib/extend_hold"
        "lib/time_left" "lib/deadline_in" "lib/deadline" "lib/claim_at" "lib/first_alive" "acquire";
    beat: "beat";
    change: "lib/read" "lib/now" "lib/digits" "lib/fence_at" "lib/registered_at" "lib/end_lease"
        "lib/publish" "lib/process_channels" "lib/publish_to_all" "lib/tell_tiers" "lib/entry_at"
        "lib/publish_entry" "lib/move_entry" "change";
    claim: "usual/claim" "lib/read" "lib/fail_foreign" "lib/is_full" "lib/now" "lib/digits"
        "lib/lease_at" "lib/renew_lease" "lib/grant" "lib/entry_at" "lib/failure_at" "claim";
    clear: "lib/batch" "lib/registered_at" "lib/publish" "lib/process_channels"
        "lib/publish_to_process" "lib/publish_to_all" "clear";
    commit: "usual/commit" "lib/publish" "lib/process_channels" "lib/publish_to_all"
        "usual/commit_registered" "lib/read" "lib/fence_at" "lib/is_held_by" "lib/registered_at"
        "lib/end_lease" "lib/tell_tiers" "lib/entry_at" "lib/publish_entry" "lib/move_entry"
        "commit";
    convert: "usual/convert" "lib/read" "lib/fail_foreign" "lib/keep" "lib/now" "lib/digits"
        "lib/batch" "lib/lease_at" "lib/grant" "lib/publish" "lib/process_channels"
        "lib/publish_to_process" "lib/held_until" "lib/count_holds" "lib/fits" "lib/write_hold"
        "lib/hold" "lib/read_entry" "lib/time_left" "lib/deadline_in" "lib/claim_at"
        "lib/grant_next" "convert";
    end_load: "lib/read" "lib/is_held_by" "lib/registered_at" "lib/end_lease" "lib/publish"
        "lib/process_channels" "lib/publish_to_all" "end_load";
    end_tag: "lib/read" "lib/keep" "lib/now" "lib/digits" "lib/fence_at" "end_tag";
    inspect: "lib/read" "lib/fail_foreign" "lib/now" "lib/lease_at" "lib/count_holds"
        "lib/failure_at" "inspect";
    keep: "lib/read" "lib/fail_foreign" "lib/now" "lib/batch" "lib/lease_at" "lib/time_left"
        "lib/deadline_in" "lib/deadline" "usual/keep" "lib/keep" "lib/digits" "lib/grant"
        "lib/publish" "lib/process_channels" "lib/publish_to_process" "lib/count_holds"
        "lib/first_end" "lib/fits" "lib/write_hold" "lib/hold" "lib/read_entry" "lib/claim_at"
        "lib/grant_next" "keep";
    latch: "lib/read" "lib/fail_foreign" "lib/publish" "latch";
    mark: "lib/read" "lib/keep" "lib/now" "lib/digits" "lib/is_held_by" "mark";
    release: "usual/release" "usual/hand_over" "lib/read" "lib/fail_foreign" "lib/keep" "lib/now"
        "lib/digits" "lib/batch" "lib/is_held_by" "lib/grant" "lib/publish" "lib/process_channels"
        "lib/publish_to_process" "lib/held_until" "lib/count_holds" "lib/fits" "lib/write_hold"
        "lib/hold" "lib/read_entry" "lib/time_left" "lib/deadline_in" "lib/claim_at"
        "lib/grant_next" "release";
    renew: "usual/renew" "lib/read" "lib/keep" "lib/now" "lib/held_until" "lib/write_hold"
        "lib/extend_hold" "renew";
    rights: "rights";
    set_fence: "lib/read" "lib/keep" "lib/digits" "lib/fence_at" "lib/is_held_by" "set_fence";
}
