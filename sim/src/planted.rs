//! Faults that are planted, to see whether and how fast the simulation finds them.
//!
//! Most are planted into the scripts: the simulated server changes the text of a script when it
//! learns it. Its digest stays that of the real script, so the client notices nothing. Those
//! without a text are in the code of the crate, where `is_planted` asks for them.

/// A fault, and what is replaced in all scripts.
#[derive(Debug)]
pub struct Planted {
    pub name: &'static str,
    /// What is wrong.
    pub what: &'static str,
    replaced: &'static [(&'static str, &'static str)],
}

pub static ALL: &[Planted] = &[
    Planted {
        name: "foreign-release",
        what: "a release does not check its owner",
        replaced: &[
            (
                concat!(
                    "if type(value) == 'string' and string.find(value, owner, 1, true) == 1 then\n",
                    "    others =",
                ),
                "if type(value) == 'string' then\n    others =",
            ),
            (
                concat!(
                    "elseif is_held_by(lease, owner) then\n",
                    "  redis.call('DEL', lease)\n",
                    "  was_held",
                ),
                "elseif true then\n  redis.call('DEL', lease)\n  was_held",
            ),
        ],
    },
    Planted {
        name: "renewal-of-nothing",
        what: "a renewal is answered and does not extend the lease",
        replaced: &[("    redis.call('PEXPIRE', key, life_ms)\n", "")],
    },
    Planted {
        name: "foreign-renewal",
        what: "a renewal does not check its owner",
        replaced: &[(
            concat!(
                "if type(value) == 'string' and string.find(value, owner, 1, true) == 1 then\n",
                "    -- The fence first.",
            ),
            "if type(value) == 'string' then\n    -- The fence first.",
        )],
    },
    Planted {
        name: "tick-twice",
        what: "a tick is begun whatever the last tick was",
        replaced: &[("(not last or tick > last or is_same)", "true")],
    },
    Planted {
        name: "done-tick",
        what: "a tick that is done is begun again",
        replaced: &[("step == 'again' and by ~= ''", "step == 'again'")],
    },
    Planted {
        name: "earlier-tick",
        what: "a tick is begun after a later one",
        replaced: &[("tick > last", "tick ~= last")],
    },
    Planted {
        name: "two-holders",
        what: "a claim is granted beside a reader, a writer or a permit",
        replaced: &[("return (units and out + units - limit or out) <= 0", "return true")],
    },
    Planted {
        name: "limit-off-by-one",
        what: "a semaphore has one permit too many",
        replaced: &[(
            "return (units and out + units - limit or out) <= 0",
            "return (units and out + units - limit - 1 or out) <= 0",
        )],
    },
    Planted {
        name: "short-lease",
        what: "the server ends a lease before the deadline of its holder",
        replaced: &[
            (
                "redis.call('SET', lease, value, 'PX', lease_ms)",
                "redis.call('SET', lease, value, 'PX', math.ceil(lease_ms / 2))",
            ),
            (
                "redis.call('PEXPIRE', key, life_ms)",
                "redis.call('PEXPIRE', key, math.ceil(life_ms / 2))",
            ),
        ],
    },
    Planted {
        name: "fence-by-clock",
        what: "a fence is the time, whatever the last fence was",
        replaced: &[
            ("if least > at_us then", "if false then"),
            ("and last < text then", "and true then"),
        ],
    },
    Planted {
        name: "commit-without-fence",
        what: "a commit does not check that its fence is the last one",
        replaced: &[
            ("and redis.pcall('GET', fence) == granted", "and true"),
            ("and string.sub(value .. ',', 1, #own + 1) == own .. ','", "and true"),
            ("if last ~= mine then", "if false then"),
            ("local is_stored = type(value) == 'string'", "local is_stored = true"),
        ],
    },
    Planted {
        name: "invalidation-burns-no-fence",
        what: "an invalidation ends no load under way",
        replaced: &[
            (
                "local text = digits(math.max(at_us, last + 1, stored + 1))",
                "local text = digits(math.max(last, stored))",
            ),
            (
                concat!(
                    "local registered = end_lease(lease)\n",
                    "-- A full server refuses the write. Without",
                ),
                "local registered = ''\n-- A full server refuses the write. Without",
            ),
        ],
    },
    Planted {
        name: "invalidation-keeps-the-entry",
        what: "an invalidation does not remove the entry",
        replaced: &[(
            "elseif what == 'invalidate' then\n  redis.call('DEL', entry)",
            "elseif what == 'invalidate' then",
        )],
    },
    Planted {
        name: "expiry-keeps-the-windows",
        what: "an expiry does not end the windows of the entry",
        replaced: &[("    redis.call('SETRANGE', entry, 52, ended)\n", "")],
    },
    Planted {
        name: "tag-without-end",
        what: "the end of a tag is not written",
        replaced: &[("redis.call('SET', tag, ended .. expired, 'PX', life_ms)", "")],
    },
    Planted {
        name: "silent-tiers",
        what: "local tiers do not hear of changes",
        replaced: &[
            (
                concat!(
                    "if tiers ~= '' then redis.pcall('PUBLISH', tiers, ",
                    "string.sub(lease, 1, -2) .. 'i' .. text) end",
                ),
                "",
            ),
            (
                concat!(
                    "if tiers ~= '' then redis.pcall('PUBLISH', tiers, ",
                    "string.sub(lease, 1, -2) .. 'i' .. granted) end",
                ),
                "",
            ),
        ],
    },
    Planted {
        name: "step-counted-twice",
        what: "a latch counts a step again that was sent again",
        replaced: &[("if told or left == 0", "if left == 0")],
    },
    Planted {
        name: "no-back-off",
        what: "a name does not back off after a failed load",
        replaced: &[
            ("if wait_ms > 0 then return {'failed'", "if false then return {'failed'"),
            ("EXISTS', lease, entry, failure)", "EXISTS', lease, entry)"),
        ],
    },
    Planted {
        name: "handed-over-twice",
        what: "a lease is handed over to a waiter that stays in the queue",
        replaced: &[
            ("if gone[1] then redis.call('ZREM', queue, unpack(gone)) end", ""),
            ("redis.call('ZREM', queue, first, own)", "redis.call('ZREM', queue, own)"),
        ],
    },
    Planted {
        name: "revived-hold",
        what: "a renewal revives a hold that has ended",
        replaced: &[
            (
                "if not ends then return false end\n  keep(set, life_ms)",
                "ends = ends or 0\n  keep(set, life_ms)",
            ),
            ("score, 'XX', 'CH') == count", "score, 'CH') == count"),
        ],
    },
    Planted {
        name: "refresh-beside-loads",
        what: "a refresh does not end the loads before it",
        replaced: &[
            (
                "local text = digits(math.max(at_us, last + 1, stored + 1))",
                concat!(
                    "local text = what == 'supersede' and digits(last) or digits(math.max(at_us, ",
                    "last + 1, stored + 1))",
                ),
            ),
            (
                concat!(
                    "local registered = end_lease(lease)\n",
                    "-- A full server refuses the write. Without",
                ),
                concat!(
                    "local registered = what == 'supersede' and '' or end_lease(lease)\n",
                    "-- A full server refuses the write. Without",
                ),
            ),
        ],
    },
    Planted {
        name: "second-load",
        what: "a load is granted while another process loads",
        replaced: &[(
            "local holder, held, left, value = lease_at(lease)",
            "local holder, held, left, value = nil, nil, 0, ''",
        )],
    },
    Planted {
        name: "writer-before-readers-end",
        what: "ended holds and living ones are not told apart",
        replaced: &[(
            "local count = read('ZCOUNT', set, '(' .. at, '+inf')",
            "local count = read('ZCOUNT', set, '(' .. at + 300, '+inf')",
        )],
    },
    Planted {
        name: "touch-revives",
        what: "a touch begins the windows of an expired entry anew",
        replaced: &[(" or string.find(windows_now, has_expired)", "")],
    },
    Planted {
        name: "late-deadline",
        what: "the deadline of a holder counts from the answer of the server",
        replaced: &[],
    },
    Planted {
        name: "no-epochs",
        what: "an outcome goes to callers that joined after its question",
        replaced: &[],
    },
    Planted {
        name: "old-memory",
        what: "a value from an outage outlives a newer answer of the server",
        replaced: &[],
    },
    Planted {
        name: "failed-end",
        what: "a load and a copy outlive an end of a tag that failed",
        replaced: &[],
    },
    Planted {
        name: "older-copy",
        what: "an answer that is too late to keep leaves an older copy in the process",
        replaced: &[],
    },
    Planted {
        name: "slow-after-failover",
        what: "leases are not renewed at a new connection",
        replaced: &[],
    },
];

impl Planted {
    /// Returns the fault of a name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|planted| planted.name == name)
    }

    /// Returns the text of a script with the fault.
    pub fn plant(&self, source: &str) -> String {
        let mut text = source.to_owned();
        for (sound, broken) in self.replaced {
            text = text.replace(sound, broken);
        }
        text
    }

    /// Returns the texts that it looks for.
    pub fn looks_for(&self) -> impl Iterator<Item = &'static str> {
        self.replaced.iter().map(|(sound, _)| *sound)
    }
}

#[cfg(test)]
#[path = "../../src/backend/redis/scripts/sources.rs"]
mod sources;

#[cfg(test)]
mod tests {
    use super::{ALL, sources::Scripts};

    #[test]
    fn each_planted_fault_finds_its_place() {
        let scripts = Scripts::from_sources(|source| source);
        for planted in ALL {
            for sound in planted.looks_for() {
                let is_there = scripts.all().any(|(_, source)| source.contains(sound));
                assert!(is_there, "{}: no script has {sound}", planted.name);
            }
        }
    }
}
