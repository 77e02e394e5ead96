//! What is left of a lease when a server dies, for each way to run Redis.
//!
//! A lease is one key in one server. While that server lives, keeps its data and keeps its clock, no two hold
//! it at once. When it dies, what counts is what its successor knows; Redis replicates *after* it has
//! answered, so the successor may not know of the last grants, renewals, releases and invalidations. Nobody is
//! asked for help: connections follow the new master, who waits is woken and tries there, who holds something
//! is told at the first contact whether it is lost. That is a renewal, within a third of the lease.
//!
//! | Redis is run as | while it is down | what its successor may not know | so, for a lock or a lease | with [`Replicas`](super::Replicas) |
//! |---|---|---|---|---|
//! | one server that keeps nothing | nothing is granted, loads run once for each process | everything | after the restart two may hold, until the first of them is told | |
//! | one server with an append-only file | the same | `appendfsync always`: nothing. `everysec`: after a power failure the last second or two; after a crash of Redis alone nothing | for grants of that second, as above | |
//! | one server with snapshots (RDB) | the same | everything since the last snapshot | as above; and a lease that was given back since then comes back, held by nobody, until its time ends | |
//! | a master with replicas and Sentinel | the same, for as long as the sentinels take (`down-after-milliseconds` and an election) | what was not replicated: usually a few milliseconds, everything since the link broke if it was broken | two may hold, if the grant was among that. A master that is cut off from its sentinels grants on: who can reach a sentinel leaves it within a second or so; `min-replicas-to-write 1` on the servers stops it for the others | a grant that counts is on so many replicas. It is lost only if another one is promoted |
//! | a cluster | only the names of the node that died (all names, with `cluster-require-full-coverage yes`) | the same, of that node | the same, for the names of that node. A master on the side of the minority stops by itself after `cluster-node-timeout`, and grants until then | the same |
//! | independent servers, [`Redlock`](crate::Redlock) | locks go on while a majority lives | each server by itself: what its row above says | two may hold only if so many servers forget at once that the rest is no majority, or clocks err; there is no fence | not meant for it |
//!
//! # What Kleppmann's objection means for each
//!
//! M. Kleppmann ("How to do distributed locking", 2016) asks what the lock is for. If two holders at once would
//! waste work (efficiency), one server is enough, and a failover that lets a second one in costs a second load.
//! If they would do damage (correctness), no lock with a lease is enough, whatever it is kept in, for two
//! reasons.
//!
//! **The holder stands still.** A process that is suspended, or a write that is delayed in the network, acts
//! after its lease has ended, and cannot know it. That is true of *every* row above, and of every other lock that
//! ends by itself. The holder's deadline here fires before the server lets anyone else in, but only while the
//! holder runs. What helps is a fence: what is written to remembers the greatest that it has seen and refuses a
//! lesser one.
//!
//! **The lock itself forgets or misjudges time.** That is the third column. What helps is a server that does not
//! forget (`appendfsync always`, one server, no failover), replicas that confirm where a failover is wanted all the
//! same, and again a fence, for a holder that the successor does not know of has an older one.
//!
//! # Where a fence helps, and what it needs
//!
//! | | |
//! |---|---|
//! | it helps | in the first five rows, for [mutexes](crate::lock::MutexGuard::fence) and other exclusive holds, where what is written to compares it |
//! | it does not help | where what is written to cannot compare (a mail that is sent, a payment service); where several hold together (readers, permits); with Redlock, which has none |
//! | a cache | does it by itself: an older load is never stored over a newer one |
//! | it keeps growing over a failover | because a fence is at least the time of the server in microseconds. If the last fence was not replicated *and* the successor's clock is behind by more than the time since that grant, a fence may be less than the one before: keep the clocks of servers that replace each other in step (NTP) |
//!
//! # What else a failover may undo
//!
//! - An invalidation that was not replicated: the entry that it removed is served again until its time ends.
//! - A release: its lease stands again, and ends by itself.
//! - A renewal: the lease ends a third of it sooner than its holder would think, but he renews it there before
//!   that, or is told. (With replicas that confirm, a renewal counts only when they have it.)
