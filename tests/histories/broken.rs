//! Scripts that are broken on purpose, to see that the checker notices.
//!
//! Each is the real script with one rule cut out of it. A rule that is no longer found in the
//! script is a failure here. The script is then written differently, and the cut must follow it.

use std::{str::FromStr, time::Duration};

use bellwether::{
    backend::{Acquired, Claim, Claimed, Committed, Edit, Entry, Grant, Mode, Occupied},
    error::{BackendError, BackendErrorKind},
    key::Name,
};
use bytes::Bytes;
use redis::{Value, aio::MultiplexedConnection};
use serde::{Deserialize, Serialize};
use testkit::interceptor::{Answer, Operation};
use tokio::time::timeout;

/// The rule that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Break {
    /// A commit passes regardless of later grants and burnt fences.
    CommitIgnoresFence,
    /// A lease is granted although it is held.
    LeaseIgnoresHolder,
    /// A fence is not greater than the last one.
    FenceStandsStill,
    /// An invalidation removes the entry and nothing else.
    InvalidationBurnsNothing,
    /// A release ends the lease of any owner.
    ReleaseIgnoresHolder,
    /// A writer is granted the lock although there are readers.
    WriterIgnoresReaders,
    /// A reader is granted the lock although there is a writer.
    ReaderIgnoresWriter,
    /// Permits are granted although all are in use.
    PermitIgnoresLimit,
    /// An expiry burns a fence and leaves the windows of the entry.
    ExpiryLeavesWindows,
    /// An entry is stored with a time that never comes.
    EntriesDoNotAge,
    /// The tag number of a value is read after its load.
    NumbersAreLate,
}

/// The broken scripts, each in the place of one of the crate.
pub struct Scripts {
    connection: MultiplexedConnection,
    acquire: Option<String>,
    write: Option<String>,
    read: Option<String>,
    permit: Option<String>,
    release: Option<String>,
    commit: Option<String>,
    invalidate: Option<String>,
    expire: Option<String>,
    pub numbers_are_late: bool,
}

impl Scripts {
    pub fn new(broken: Break, connection: MultiplexedConnection) -> Self {
        let mut scripts = Self {
            connection,
            acquire: None,
            write: None,
            read: None,
            permit: None,
            release: None,
            commit: None,
            invalidate: None,
            expire: None,
            numbers_are_late: broken == Break::NumbersAreLate,
        };
        match broken {
            Break::CommitIgnoresFence => {
                let cuts = [
                    ("if last ~= mine then", "if false then"),
                    ("if is_committed then", "if false then"),
                ];
                scripts.commit = Some(cut("commit", &cuts));
            }
            Break::LeaseIgnoresHolder => {
                scripts.acquire = Some(cut("claim", &[("if holder then", "if false then")]));
            }
            Break::FenceStandsStill => {
                let fence = "math.max(now(), last + 1, stored + 1)";
                scripts.acquire = Some(cut("claim", &[(fence, "math.max(last, stored, 1)")]));
            }
            Break::InvalidationBurnsNothing => {
                let cuts = [("= burn(lease, fence, text, fence_ms)", "= ''")];
                scripts.invalidate = Some(cut("change", &cuts));
            }
            Break::ReleaseIgnoresHolder => {
                let check = "if lease_at(lease) ~= owner then";
                scripts.release = Some(cut("end_load", &[(check, "if false then")]));
            }
            Break::WriterIgnoresReaders => {
                let cuts = [("out + units - limit or out", "out + units - limit or 0")];
                scripts.write = Some(cut("acquire", &cuts));
            }
            Break::ReaderIgnoresWriter => {
                let cuts = [("foreign = lease_at(lease)", "foreign = nil, nil, 0")];
                scripts.read = Some(cut("acquire", &cuts));
            }
            Break::PermitIgnoresLimit => {
                let cuts = [("units and out + units - limit", "units and 0")];
                scripts.permit = Some(cut("acquire", &cuts));
            }
            Break::ExpiryLeavesWindows => {
                let cuts = [("  expire()\n", "\n")];
                scripts.expire = Some(cut("change", &cuts));
            }
            Break::EntriesDoNotAge => {
                let stored_at = "time[1] .. string.sub('00000' .. time[2], -6)";
                let stamp = (stored_at, "('9'):rep(16)");
                scripts.commit = Some(cut("commit", &[stamp]));
            }
            Break::NumbersAreLate => {}
        }
        scripts
    }

    async fn eval(
        &self,
        script: Option<&String>,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> Result<Value, BackendError> {
        let mut eval = redis::cmd("EVAL");
        eval.arg(script.expect("the script that is broken")).arg(keys.len());
        eval.arg(keys).arg(arguments);
        let mut connection = self.connection.clone();
        let answer = timeout(Duration::from_millis(250), eval.query_async(&mut connection)).await;
        let unknown =
            |error: bellwether::BoxError| BackendError::new(BackendErrorKind::Unknown, error);
        answer.map_err(|late| unknown(late.into()))?.map_err(|error| unknown(error.into()))
    }

    /// Returns `true` if a broken script performs the operation.
    pub fn breaks(&self, operation: &Operation) -> bool {
        match operation {
            Operation::Acquire { claim } => match claim.mode {
                Mode::Exclusive => self.acquire.is_some(),
                Mode::Write => self.write.is_some(),
                Mode::Read => self.read.is_some(),
                Mode::Permit { .. } => self.permit.is_some(),
                _ => false,
            },
            Operation::Claim { .. } => self.acquire.is_some(),
            Operation::Release { claim } => self.release.is_some() && claim.mode == Mode::Exclusive,
            Operation::Commit { .. } => self.commit.is_some(),
            Operation::Edit { edit: Edit::Invalidate, .. } => self.invalidate.is_some(),
            Operation::Edit { edit: Edit::Expire, .. } => self.expire.is_some(),
            _ => false,
        }
    }

    /// Performs an operation that one of the scripts [breaks](Self::breaks).
    pub async fn perform(&self, operation: &Operation) -> Result<Answer, BackendError> {
        match operation {
            Operation::Acquire { claim } => self.acquire(claim).await.map(Answer::Acquire),
            Operation::Claim { claim, seen } => {
                self.ask(claim, Some(*seen)).await.map(Answer::Claim)
            }
            Operation::Release { claim } => self.release(claim).await.map(Answer::Release),
            Operation::Commit { claim, fence, entry, ttl } => {
                self.commit(claim, *fence, entry, *ttl).await.map(Answer::Commit)
            }
            Operation::Edit { name, edit, fence_life } => {
                let (script, what) = match edit {
                    Edit::Expire => (&self.expire, "expire"),
                    _ => (&self.invalidate, "invalidate"),
                };
                self.change(script.as_ref(), what, name, *fence_life).await.map(Answer::Edit)
            }
            other => panic!("no script of {:?} is broken", other.op()),
        }
    }

    async fn ask(&self, claim: &Claim, seen: Option<u64>) -> Result<Claimed, BackendError> {
        let (script, suffixes): (_, &[_]) = match claim.mode {
            Mode::Write => (&self.write, &["w", "r", "f", "rq", "rd"]),
            Mode::Read => (&self.read, &["w", "r", "f", "rq", "rd"]),
            Mode::Permit { .. } => (&self.permit, &["pl", "p", "f", "pq", "pd"]),
            _ => (&self.acquire, &["l", "f", "e", "b"]),
        };
        let keys: Vec<_> = suffixes.iter().map(|suffix| claim.name.suffixed(suffix)).collect();
        let kept = if claim.waits { claim.queue_entry_life().as_millis() } else { 0 };
        let need = match claim.mode {
            Mode::Write => Some(("f".to_owned(), 0)),
            Mode::Read => Some(("1".to_owned(), 1 << 31)),
            Mode::Permit { limit, count } => Some((count.to_string(), limit)),
            _ => None,
        };
        let (lease, fence_life) = (claim.lease.as_millis(), claim.fence_life.as_millis());
        let arguments = match need {
            Some((need, limit)) => {
                let entry = format!("{}:{need}:{limit}:{lease}:", claim.owner);
                vec![text(entry), text(fence_life), text(kept)]
            }
            None => {
                let (owner, seen) = (claim.owner, text(seen.unwrap_or(0)));
                let process = text(&owner.to_string()[..16]);
                vec![text(owner), text(lease), text(fence_life), seen, text(1 << 16), process]
            }
        };
        let answer = self.eval(script.as_ref(), &keys, &arguments).await?;
        if let Value::Int(fence) = answer {
            return Ok(Claimed::Granted(Grant::new(u64::try_from(fence).unwrap())));
        }
        let fields = fields(answer);
        match fields[0].as_slice() {
            b"newer" => Ok(Claimed::Newer(Entry::decode(Bytes::from(fields[1].clone())).unwrap())),
            _ => Ok(Claimed::Occupied(Occupied {
                fence: number(&fields[1]),
                remaining: Duration::from_millis(number(&fields[2])),
                holders: 1,
            })),
        }
    }

    async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        Ok(match self.ask(claim, None).await? {
            Claimed::Granted(grant) => Acquired::Granted(grant),
            Claimed::Occupied(occupied) => Acquired::Occupied(occupied),
            other => panic!("a lock has no entry: {other:?}"),
        })
    }

    async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        let keys = ["l", "c"].map(|suffix| claim.name.suffixed(suffix));
        let arguments = [text(claim.owner), text("w")];
        let answer = self.eval(self.release.as_ref(), &keys, &arguments).await?;
        Ok(matches!(answer, Value::Int(flags) if flags & 1 == 1))
    }

    async fn commit(
        &self,
        claim: &Claim,
        fence: u64,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let name = &claim.name;
        let [lease, last, channel] = ["l", "f", "c"].map(|suffix| name.suffixed(suffix));
        let keys = [lease, last, name.entry(), channel, name.suffixed("b")];
        let entry = entry.clone().with_fence(fence).encode();
        let size = text(entry.len());
        let [head, rest] = [&entry[..20], &entry[36..]].map(<[u8]>::to_vec);
        let arguments = [
            text(claim.owner),
            text(fence),
            head,
            rest,
            size,
            text(ttl.map_or(0, |ttl| ttl.as_millis())),
            text(1 << 16),
            text(1 << 16),
            text(""),
            text(""),
        ];
        Ok(match self.eval(self.commit.as_ref(), &keys, &arguments).await? {
            Value::Int(0) => Committed::Refused,
            Value::Int(flags) if flags & 16 == 16 => Committed::Stored,
            Value::Int(_) => Committed::Pushed,
            newer => {
                Committed::Newer(Entry::decode(Bytes::from(fields(newer)[1].clone())).unwrap())
            }
        })
    }

    async fn change(
        &self,
        script: Option<&String>,
        what: &str,
        name: &Name,
        life: Duration,
    ) -> Result<u64, BackendError> {
        let [before, after] = [u16::MAX, 1].map(|schema| name.clone().with_schema(schema).entry());
        let [lease, fence, channel, failure, spare] =
            ["l", "f", "c", "b", "t"].map(|suffix| name.suffixed(suffix));
        let keys = [lease, fence, name.entry(), channel, failure, before, after, spare];
        let arguments = [text(what), text(life.as_millis()), text("")];
        match self.eval(script, &keys, &arguments).await? {
            Value::Int(fence) => Ok(u64::try_from(fence).unwrap()),
            other => panic!("no fence: {other:?}"),
        }
    }
}

/// The usual cases of scripts, which are decided before the rules that are cut out.
const USUAL: [&str; 3] = [
    "if redis.call('EXISTS', lease, entry, failure) == 0 then",
    "if not units and redis.call('EXISTS', lease, shared, queue) == 0 then",
    "if type(value) == 'string' and",
];

/// Returns the real script without its usual case, and with something else in place of some rules.
fn cut(name: &str, cuts: &[(&str, &str)]) -> String {
    let mut script = testkit::script(name);
    let usual = USUAL.iter().filter(|usual| script.contains(**usual)).count();
    let decided = ["acquire", "claim", "commit"].contains(&name);
    assert_eq!(usual, usize::from(decided), "the usual case of `{name}` is not where it was");
    for usual in USUAL {
        let never = if usual.ends_with("and") { "if false and" } else { "if false then" };
        script = script.replace(usual, never);
    }
    for (rule, nothing) in cuts {
        assert_eq!(
            script.matches(rule).count(),
            1,
            "the script does not contain the rule `{rule}` exactly once"
        );
        script = script.replace(rule, nothing);
    }
    script
}

fn text(field: impl ToString) -> Vec<u8> {
    field.to_string().into_bytes()
}

fn number<T: FromStr>(field: &[u8]) -> T {
    std::str::from_utf8(field).ok().and_then(|text| text.parse().ok()).expect("a number")
}

fn fields(answer: Value) -> Vec<Vec<u8>> {
    let Value::Array(fields) = answer else { panic!("the answer is not a list: {answer:?}") };
    let bytes = |field| match field {
        Value::BulkString(bytes) => bytes,
        Value::Int(number) => text(number),
        other => panic!("the answer has an unexpected field: {other:?}"),
    };
    fields.into_iter().map(bytes).collect()
}
