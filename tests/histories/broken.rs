//! Scripts broken on purpose, to see that the checker notices.
//!
//! Each is the real script with one rule cut out of it. If the rule can no longer be found in the script,
//! that is a failure here: then it is written differently now, and so must be what cuts it out.

use std::{str::FromStr, time::Duration};

use bellwether::{
    backend::{Acquired, Claimed, Committed},
    entry::Entry,
    error::{BackendError, BackendErrorKind},
    key::Name,
    lease::{Claim, Grant, Occupied},
};
use bytes::Bytes;
use redis::{Value, aio::MultiplexedConnection};
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

macro_rules! lua {
    ($name:literal) => {
        include_str!(concat!("../../src/backend/redis/lua/", $name, ".lua"))
    };
}

/// The rule that is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Break {
    /// A commit passes whatever fence was granted or burnt since.
    CommitIgnoresFence,
    /// A lease is granted though somebody has it.
    LeaseIgnoresHolder,
    /// A fence is not greater than the last one.
    FenceStandsStill,
    /// An invalidation removes the entry and nothing else.
    InvalidationBurnsNothing,
    /// A lease is ended by whoever asks for it.
    ReleaseIgnoresHolder,
}

/// The scripts that are not those of the crate.
pub struct Scripts {
    connection: MultiplexedConnection,
    pub acquire: Option<String>,
    pub release: Option<String>,
    pub commit: Option<String>,
    pub invalidate: Option<String>,
}

impl Scripts {
    pub fn new(broken: Break, connection: MultiplexedConnection) -> Self {
        let mut scripts =
            Self { connection, acquire: None, release: None, commit: None, invalidate: None };
        match broken {
            Break::CommitIgnoresFence => {
                let cuts =
                    [("if last ~= mine then", "if false then"), ("if spent or ", "if false or ")];
                scripts.commit = Some(cut(lua!("commit"), &cuts));
            }
            Break::LeaseIgnoresHolder => {
                scripts.acquire = Some(cut(lua!("acquire"), &[("if token then", "if false then")]));
            }
            Break::FenceStandsStill => {
                let fence = "math.max(now(), last + 1, stored + 1)";
                scripts.acquire =
                    Some(cut(lua!("acquire"), &[(fence, "math.max(last, stored, 1)")]));
            }
            Break::InvalidationBurnsNothing => {
                let burn = "redis.pcall('SET', KEYS[2], digits(fence), 'PX', ARGV[1])";
                let cuts = [(burn, "true"), ("'DEL', KEYS[1], KEYS[3]", "'DEL', KEYS[3]")];
                scripts.invalidate = Some(cut(lua!("invalidate"), &cuts));
            }
            Break::ReleaseIgnoresHolder => {
                let check = "if lease_at(KEYS[1]) ~= ARGV[1] then";
                scripts.release = Some(cut(lua!("release"), &[(check, "if false then")]));
            }
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

    async fn ask(&self, claim: &Claim, seen: Option<u64>) -> Result<Claimed, BackendError> {
        let name = &claim.name;
        let mut keys = vec![name.suffixed("l"), name.suffixed("f")];
        keys.extend(seen.map(|_| name.entry()));
        let mut arguments = vec![
            text(claim.holder),
            text(claim.lease.as_millis()),
            text(claim.fence_life.as_millis()),
        ];
        arguments.extend(seen.map(text));
        let fields = fields(self.eval(self.acquire.as_ref(), &keys, &arguments).await?);
        match fields[0].as_slice() {
            b"granted" => Ok(Claimed::Granted(Grant::new(number(&fields[1])))),
            b"newer" => Ok(Claimed::Newer(Entry::decode(&Bytes::from(fields[1].clone())).unwrap())),
            _ => Ok(Claimed::Held(Occupied {
                fence: number(&fields[1]),
                remaining: Duration::from_millis(number(&fields[2])),
                holders: 1,
            })),
        }
    }

    pub async fn claim(&self, claim: &Claim, seen: u64) -> Result<Claimed, BackendError> {
        self.ask(claim, Some(seen)).await
    }

    pub async fn acquire(&self, claim: &Claim) -> Result<Acquired, BackendError> {
        Ok(match self.ask(claim, None).await? {
            Claimed::Granted(grant) => Acquired::Granted(grant),
            Claimed::Held(occupied) => Acquired::Held(occupied),
            other => panic!("a lock has no entry: {other:?}"),
        })
    }

    pub async fn release(&self, claim: &Claim) -> Result<bool, BackendError> {
        let keys = [claim.name.suffixed("l"), claim.name.suffixed("c")];
        let arguments = [text(claim.holder), text("w")];
        let answer = self.eval(self.release.as_ref(), &keys, &arguments).await?;
        Ok(matches!(answer, Value::Array(fields) if fields.first() == Some(&Value::Int(1))))
    }

    pub async fn commit(
        &self,
        claim: &Claim,
        grant: &Grant,
        entry: &Entry,
        ttl: Option<Duration>,
    ) -> Result<Committed, BackendError> {
        let name = &claim.name;
        let keys = [name.suffixed("l"), name.suffixed("f"), name.entry(), name.suffixed("c")];
        let arguments = [
            text(claim.holder),
            text(grant.fence()),
            entry.clone().with_fence(grant.fence()).encode().to_vec(),
            text(ttl.map_or(0, |ttl| ttl.as_millis())),
            text(1 << 16),
        ];
        let fields = fields(self.eval(self.commit.as_ref(), &keys, &arguments).await?);
        Ok(match fields[0].as_slice() {
            b"stored" => Committed::Stored,
            b"handed" => Committed::HandedOver,
            b"newer" => Committed::Newer(Entry::decode(&Bytes::from(fields[1].clone())).unwrap()),
            _ => Committed::Refused,
        })
    }

    pub async fn invalidate(&self, name: &Name, life: Duration) -> Result<u64, BackendError> {
        let [before, after] = name.neighbours();
        let [lease, fence, channel] = ["l", "f", "c"].map(|suffix| name.suffixed(suffix));
        let keys = [lease, fence, name.entry(), channel, before, after];
        match self.eval(self.invalidate.as_ref(), &keys, &[text(life.as_millis())]).await? {
            Value::Int(fence) => Ok(u64::try_from(fence).unwrap()),
            other => panic!("not a fence: {other:?}"),
        }
    }
}

/// The real script with its prelude, and something else in place of some of it.
fn cut(body: &str, cuts: &[(&str, &str)]) -> String {
    let mut script = format!("{}\n{body}", lua!("prelude"));
    for (rule, nothing) in cuts {
        assert_eq!(script.matches(rule).count(), 1, "the rule `{rule}` is not where it was");
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
    let Value::Array(fields) = answer else { panic!("not a list: {answer:?}") };
    let bytes = |field| match field {
        Value::BulkString(bytes) => bytes,
        Value::Int(number) => text(number),
        other => panic!("not a field: {other:?}"),
    };
    fields.into_iter().map(bytes).collect()
}
