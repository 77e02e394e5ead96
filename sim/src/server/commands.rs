//! The commands on keys. Each has the replies, the errors and the effects of Redis 7.0.

use super::{
    data::Data,
    keyspace::{Fields, Millis, Sorted, Value},
    reply::Reply,
};

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NO_INTEGER: &str = "ERR value is not an integer or out of range";
const NO_FLOAT: &str = "ERR value is not a valid float";
const NO_RANGE: &str = "ERR min or max is not a float";
const SYNTAX: &str = "ERR syntax error";

/// An error reply that ends a command.
pub struct Refusal(pub String);

impl From<&str> for Refusal {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

type Outcome = Result<Reply, Refusal>;
type Words<'a> = &'a [Vec<u8>];

/// Whether a command may change a key.
pub fn is_write(name: &str) -> bool {
    matches!(
        name,
        "APPEND"
            | "DEL"
            | "FLUSHALL"
            | "HSET"
            | "PEXPIRE"
            | "RENAME"
            | "SET"
            | "SETRANGE"
            | "UNLINK"
            | "ZADD"
            | "ZREM"
    )
}

/// The least number of words, and whether there may be more.
fn arity(name: &str) -> Option<(usize, bool)> {
    Some(match name {
        "TIME" | "DBSIZE" => (1, false),
        "FLUSHALL" => (1, true),
        "DEL" | "UNLINK" | "EXISTS" | "MGET" => (2, true),
        "GET" | "PTTL" | "TYPE" | "KEYS" | "ZCARD" | "STRLEN" | "HGETALL" => (2, false),
        "SCAN" => (2, true),
        "APPEND" | "RENAME" | "PUBLISH" | "SPUBLISH" | "ZSCORE" => (3, false),
        "SET" | "PEXPIRE" | "ZREM" | "HMGET" => (3, true),
        "GETRANGE" | "SETRANGE" | "ZCOUNT" => (4, false),
        "HSET" | "ZADD" | "ZRANGE" => (4, true),
        _ => return None,
    })
}

/// Runs a command on keys, or a publication.
pub fn run(data: &mut Data, words: Words<'_>) -> Reply {
    let name = words.first().map(|word| String::from_utf8_lossy(word).to_uppercase());
    let name = name.unwrap_or_default();
    let Some((least, may_be_more)) = arity(&name) else {
        return Reply::error(format!("ERR unknown command '{name}'"));
    };
    if words.len() < least || words.len() > least && !may_be_more {
        let name = name.to_lowercase();
        return Reply::error(format!("ERR wrong number of arguments for '{name}' command"));
    }
    if is_write(&name) {
        if data.refuses_writes {
            return Reply::error("READONLY You can't write against a read only replica.");
        }
        data.writes += 1;
    }
    perform(data, &name, &words[1..]).unwrap_or_else(|refusal| Reply::Error(refusal.0))
}

fn perform(data: &mut Data, name: &str, words: Words<'_>) -> Outcome {
    match name {
        "TIME" => Ok(time(data)),
        "DBSIZE" => Ok(Reply::Int(data.keys.all(data.millis()).count() as i64)),
        "FLUSHALL" => {
            data.keys.clear();
            Ok(Reply::ok())
        }
        "DEL" | "UNLINK" => {
            let now = data.millis();
            let removed = words.iter().filter(|key| data.keys.remove(key, now)).count();
            Ok(Reply::Int(removed as i64))
        }
        "EXISTS" => {
            let now = data.millis();
            let there = words.iter().filter(|key| data.keys.get(key, now).is_some()).count();
            Ok(Reply::Int(there as i64))
        }
        "TYPE" => Ok(kind(data, &words[0])),
        "KEYS" => Ok(keys(data, &words[0])),
        "SCAN" => scan(data, words),
        "PTTL" => Ok(time_to_live(data, &words[0])),
        "PEXPIRE" => expire(data, words),
        "RENAME" => rename(data, words),
        "GET" => Ok(bulk(text(data, &words[0])?)),
        "MGET" => Ok(many(data, words)),
        "STRLEN" => {
            let length = text(data, &words[0])?.map_or(0, |bytes| bytes.len());
            Ok(Reply::Int(length as i64))
        }
        "SET" => set(data, words),
        "APPEND" => append(data, words),
        "GETRANGE" => range(data, words),
        "SETRANGE" => set_range(data, words),
        "HSET" => set_fields(data, words),
        "HMGET" => fields(data, words),
        "HGETALL" => all_fields(data, &words[0]),
        "ZADD" => add(data, words),
        "ZREM" => remove_members(data, words),
        "ZSCORE" => score(data, words),
        "ZCARD" => Ok(Reply::Int(sorted(data, &words[0])?.map_or(0, |set| set.len() as i64))),
        "ZCOUNT" => count(data, words),
        "ZRANGE" => members(data, words),
        "PUBLISH" | "SPUBLISH" => Ok(Reply::Int(data.publish(&words[0], &words[1]))),
        _ => Err(format!("ERR unknown command '{name}'").as_str().into()),
    }
}

fn time(data: &Data) -> Reply {
    let micros = data.now;
    let parts = [micros / 1_000_000, micros % 1_000_000];
    Reply::Array(parts.map(|part| Reply::text(part.to_string())).to_vec())
}

fn bulk(value: Option<Vec<u8>>) -> Reply {
    value.map_or(Reply::Nil, Reply::Bulk)
}

/// Returns the text under a key.
fn text(data: &mut Data, key: &[u8]) -> Result<Option<Vec<u8>>, Refusal> {
    let now = data.millis();
    match data.keys.get(key, now).map(|stored| &stored.value) {
        None => Ok(None),
        Some(Value::Text(text)) => Ok(Some(text.clone())),
        Some(_) => Err(WRONG_TYPE.into()),
    }
}

fn sorted<'a>(data: &'a mut Data, key: &[u8]) -> Result<Option<&'a mut Sorted>, Refusal> {
    let now = data.millis();
    match data.keys.get(key, now).map(|stored| &mut stored.value) {
        None => Ok(None),
        Some(Value::Sorted(set)) => Ok(Some(set)),
        Some(_) => Err(WRONG_TYPE.into()),
    }
}

fn integer(word: &[u8]) -> Result<i64, Refusal> {
    let text = std::str::from_utf8(word).map_err(|_| NO_INTEGER)?;
    let is_plain =
        !text.starts_with('+') && (text == "0" || !text.trim_start_matches('-').starts_with('0'));
    if !is_plain {
        return Err(NO_INTEGER.into());
    }
    text.parse().map_err(|_| NO_INTEGER.into())
}

fn float(word: &[u8], refusal: &str) -> Result<f64, Refusal> {
    let text = std::str::from_utf8(word).map_err(|_| refusal)?;
    let number: f64 = text.parse().map_err(|_| refusal)?;
    if number.is_nan() { Err(refusal.into()) } else { Ok(number) }
}

fn upper(word: &[u8]) -> String {
    String::from_utf8_lossy(word).to_uppercase()
}

fn kind(data: &mut Data, key: &[u8]) -> Reply {
    let now = data.millis();
    Reply::Status(match data.keys.get(key, now).map(|stored| &stored.value) {
        None => "none",
        Some(Value::Text(_)) => "string",
        Some(Value::Hash(_)) => "hash",
        Some(Value::Sorted(_)) => "zset",
    })
}

fn keys(data: &Data, pattern: &[u8]) -> Reply {
    let all = data.keys.all(data.millis()).map(|(key, _)| key);
    Reply::Array(all.filter(|key| matches(pattern, key)).map(Reply::text).collect())
}

/// Returns all keys at once, whatever the cursor.
fn scan(data: &Data, words: Words<'_>) -> Outcome {
    let mut pattern = b"*".to_vec();
    let mut options = words[1..].iter();
    while let Some(option) = options.next() {
        let value = options.next().ok_or(SYNTAX)?;
        match upper(option).as_str() {
            "MATCH" => pattern = value.clone(),
            "COUNT" => drop(integer(value)?),
            _ => return Err(SYNTAX.into()),
        }
    }
    Ok(Reply::Array(vec![Reply::text("0"), keys(data, &pattern)]))
}

/// Returns whether a key matches a pattern with `*`, `?`, classes and backslashes.
fn matches(pattern: &[u8], key: &[u8]) -> bool {
    match pattern.first() {
        None => key.is_empty(),
        Some(b'*') => (0..=key.len()).any(|at| matches(&pattern[1..], &key[at..])),
        Some(b'?') => !key.is_empty() && matches(&pattern[1..], &key[1..]),
        Some(b'[') => {
            let Some(end) = pattern.iter().position(|byte| *byte == b']') else { return false };
            let Some(first) = key.first() else { return false };
            let class = &pattern[1..end];
            let (is_not, class) = match class.first() {
                Some(b'^') => (true, &class[1..]),
                _ => (false, class),
            };
            let is_in =
                class.windows(3).any(|part| part[1] == b'-' && (part[0]..=part[2]).contains(first))
                    || class.contains(first);
            is_in != is_not && matches(&pattern[end + 1..], &key[1..])
        }
        Some(b'\\') if pattern.len() > 1 => {
            key.first() == Some(&pattern[1]) && matches(&pattern[2..], &key[1..])
        }
        Some(byte) => key.first() == Some(byte) && matches(&pattern[1..], &key[1..]),
    }
}

fn time_to_live(data: &mut Data, key: &[u8]) -> Reply {
    let now = data.millis();
    Reply::Int(match data.keys.get(key, now) {
        None => -2,
        Some(stored) => stored.expires.map_or(-1, |at| (at - now).max(0)),
    })
}

fn expire(data: &mut Data, words: Words<'_>) -> Outcome {
    let now = data.millis();
    let life = integer(&words[1])?;
    if let Some(option) = words.get(2) {
        return Err(format!("ERR Unsupported option {}", String::from_utf8_lossy(option))
            .as_str()
            .into());
    }
    let until = now.checked_add(life).ok_or("ERR invalid expire time in 'pexpire' command")?;
    let Some(stored) = data.keys.get(&words[0], now) else { return Ok(Reply::Int(0)) };
    stored.expires = Some(until);
    if life <= 0 {
        data.keys.remove(&words[0], now);
    }
    Ok(Reply::Int(1))
}

fn rename(data: &mut Data, words: Words<'_>) -> Outcome {
    let now = data.millis();
    let stored = data.keys.take(&words[0], now).ok_or("ERR no such key")?;
    data.keys.put_back(&words[1], stored);
    Ok(Reply::ok())
}

fn many(data: &mut Data, words: Words<'_>) -> Reply {
    let get = |key: &Vec<u8>| bulk(text(data, key).unwrap_or(None));
    Reply::Array(words.iter().map(get).collect())
}

/// What `SET` is to do beside the write.
#[derive(Default)]
struct SetOptions {
    life: Option<Millis>,
    keeps_life: bool,
    only_new: bool,
    only_old: bool,
    returns_old: bool,
}

impl SetOptions {
    fn read(words: Words<'_>) -> Result<Self, Refusal> {
        let mut options = Self::default();
        let mut life = None;
        let mut words = words.iter();
        while let Some(word) = words.next() {
            match upper(word).as_str() {
                "PX" if life.is_none() && !options.keeps_life => {
                    life = Some(words.next().ok_or(SYNTAX)?);
                }
                "KEEPTTL" if life.is_none() => options.keeps_life = true,
                "NX" if !options.only_old => options.only_new = true,
                "XX" if !options.only_new => options.only_old = true,
                "GET" => options.returns_old = true,
                _ => return Err(SYNTAX.into()),
            }
        }
        // Only after all options are read.
        options.life = life.map(|life| integer(life)).transpose()?;
        if options.life.is_some_and(|life| life <= 0) {
            return Err("ERR invalid expire time in 'set' command".into());
        }
        Ok(options)
    }
}

fn set(data: &mut Data, words: Words<'_>) -> Outcome {
    let now = data.millis();
    let options = SetOptions::read(&words[2..])?;
    let old = if options.returns_old { Some(bulk(text(data, &words[0])?)) } else { None };
    let before = data.keys.get(&words[0], now);
    let is_there = before.is_some();
    let kept = before.and_then(|stored| stored.expires).filter(|_| options.keeps_life);
    if is_there && options.only_new || !is_there && options.only_old {
        return Ok(old.unwrap_or(Reply::Nil));
    }
    let expires = options.life.map(|life| now.saturating_add(life)).or(kept);
    data.keys.set(&words[0], Value::Text(words[1].clone()), expires);
    Ok(old.unwrap_or_else(Reply::ok))
}

fn append(data: &mut Data, words: Words<'_>) -> Outcome {
    let now = data.millis();
    match data.keys.get(&words[0], now).map(|stored| &mut stored.value) {
        Some(Value::Text(text)) => {
            text.extend_from_slice(&words[1]);
            Ok(Reply::Int(text.len() as i64))
        }
        Some(_) => Err(WRONG_TYPE.into()),
        None => {
            data.keys.set(&words[0], Value::Text(words[1].clone()), None);
            Ok(Reply::Int(words[1].len() as i64))
        }
    }
}

fn range(data: &mut Data, words: Words<'_>) -> Outcome {
    let first = integer(&words[1])?;
    let last = integer(&words[2])?;
    let text = text(data, &words[0])?.unwrap_or_default();
    if first < 0 && last < 0 && first > last {
        return Ok(Reply::text(""));
    }
    // Of a text, an end before its beginning is its first byte.
    let last = last.max(-(text.len() as i64));
    let Some((first, last)) = places(first, last, text.len()) else { return Ok(Reply::text("")) };
    Ok(Reply::text(&text[first..=last]))
}

/// Returns the places in a sequence between two that may count from its end. An end before its
/// beginning is empty.
fn places(first: i64, last: i64, length: usize) -> Option<(usize, usize)> {
    let length = length as i64;
    let at = |place: i64| if place < 0 { place + length } else { place };
    let first = at(first).max(0);
    let last = at(last).min(length - 1);
    (first <= last).then_some((first as usize, last as usize))
}

fn set_range(data: &mut Data, words: Words<'_>) -> Outcome {
    let now = data.millis();
    let offset = integer(&words[1])?;
    let offset = usize::try_from(offset).map_err(|_| "ERR offset is out of range")?;
    let before = text(data, &words[0])?;
    if words[2].is_empty() {
        return Ok(Reply::Int(before.map_or(0, |text| text.len() as i64)));
    }
    let mut text = before.unwrap_or_default();
    let end = offset + words[2].len();
    if text.len() < end {
        text.resize(end, 0);
    }
    text[offset..end].copy_from_slice(&words[2]);
    let length = text.len() as i64;
    let expires = data.keys.get(&words[0], now).and_then(|stored| stored.expires);
    data.keys.set(&words[0], Value::Text(text), expires);
    Ok(Reply::Int(length))
}

fn hash<'a>(data: &'a mut Data, key: &[u8]) -> Result<Option<&'a mut Fields>, Refusal> {
    let now = data.millis();
    match data.keys.get(key, now).map(|stored| &mut stored.value) {
        None => Ok(None),
        Some(Value::Hash(fields)) => Ok(Some(fields)),
        Some(_) => Err(WRONG_TYPE.into()),
    }
}

fn set_fields(data: &mut Data, words: Words<'_>) -> Outcome {
    if words.len().is_multiple_of(2) {
        return Err("ERR wrong number of arguments for 'hset' command".into());
    }
    if hash(data, &words[0])?.is_none() {
        data.keys.set(&words[0], Value::Hash(Fields::new()), None);
    }
    let mut added = 0;
    if let Some(fields) = hash(data, &words[0])? {
        for pair in words[1..].chunks(2) {
            added += i64::from(fields.insert(pair[0].clone(), pair[1].clone()).is_none());
        }
    }
    Ok(Reply::Int(added))
}

fn fields(data: &mut Data, words: Words<'_>) -> Outcome {
    let fields = hash(data, &words[0])?;
    let get = |field: &Vec<u8>| bulk(fields.as_ref().and_then(|all| all.get(field).cloned()));
    Ok(Reply::Array(words[1..].iter().map(get).collect()))
}

fn all_fields(data: &mut Data, key: &[u8]) -> Outcome {
    let fields = hash(data, key)?.cloned().unwrap_or_default();
    let pairs = fields.into_iter().map(|(field, value)| (Reply::Bulk(field), Reply::Bulk(value)));
    Ok(Reply::Map(pairs.collect()))
}

/// What `ZADD` is to do beside the write.
#[derive(Default)]
struct AddOptions {
    only_new: bool,
    only_old: bool,
    counts_changed: bool,
}

fn add(data: &mut Data, words: Words<'_>) -> Outcome {
    let mut options = AddOptions::default();
    let mut rest = &words[1..];
    while let Some(word) = rest.first() {
        match upper(word).as_str() {
            "NX" => options.only_new = true,
            "XX" => options.only_old = true,
            "CH" => options.counts_changed = true,
            _ => break,
        }
        rest = &rest[1..];
    }
    if rest.is_empty() || !rest.len().is_multiple_of(2) {
        return Err(SYNTAX.into());
    }
    if options.only_new && options.only_old {
        return Err("ERR XX and NX options at the same time are not compatible".into());
    }
    let scores: Result<Vec<_>, _> = rest
        .chunks(2)
        .map(|pair| float(&pair[0], NO_FLOAT).map(|score| (score, &pair[1])))
        .collect();
    let scores = scores?;
    if sorted(data, &words[0])?.is_none() {
        if options.only_old {
            return Ok(Reply::Int(0));
        }
        data.keys.set(&words[0], Value::Sorted(Sorted::default()), None);
    }
    let mut added = 0;
    let mut changed = 0;
    if let Some(set) = sorted(data, &words[0])? {
        for (score, member) in scores {
            match set.score(member) {
                None if options.only_old => {}
                None => {
                    set.insert(score, member);
                    added += 1;
                }
                Some(before) if options.only_new || before == score => {}
                Some(_) => {
                    set.insert(score, member);
                    changed += 1;
                }
            }
        }
    }
    data.keys.drop_if_empty(&words[0]);
    Ok(Reply::Int(if options.counts_changed { added + changed } else { added }))
}

fn remove_members(data: &mut Data, words: Words<'_>) -> Outcome {
    let Some(set) = sorted(data, &words[0])? else { return Ok(Reply::Int(0)) };
    let removed = words[1..].iter().filter(|member| set.remove(member)).count();
    data.keys.drop_if_empty(&words[0]);
    Ok(Reply::Int(removed as i64))
}

fn score(data: &mut Data, words: Words<'_>) -> Outcome {
    let score = sorted(data, &words[0])?.and_then(|set| set.score(&words[1]));
    Ok(score.map_or(Reply::Nil, Reply::Score))
}

/// The end of a range of scores.
struct Bound {
    score: f64,
    is_excluded: bool,
}

impl Bound {
    fn read(word: &[u8]) -> Result<Self, Refusal> {
        match word.strip_prefix(b"(") {
            Some(rest) => Ok(Self { score: float(rest, NO_RANGE)?, is_excluded: true }),
            None => Ok(Self { score: float(word, NO_RANGE)?, is_excluded: false }),
        }
    }

    fn is_below(&self, score: f64) -> bool {
        if self.is_excluded { self.score < score } else { self.score <= score }
    }

    fn is_above(&self, score: f64) -> bool {
        if self.is_excluded { self.score > score } else { self.score >= score }
    }
}

fn count(data: &mut Data, words: Words<'_>) -> Outcome {
    let least = Bound::read(&words[1])?;
    let most = Bound::read(&words[2])?;
    let Some(set) = sorted(data, &words[0])? else { return Ok(Reply::Int(0)) };
    let within = set.iter().filter(|(score, _)| least.is_below(*score) && most.is_above(*score));
    Ok(Reply::Int(within.count() as i64))
}

fn members(data: &mut Data, words: Words<'_>) -> Outcome {
    let mut by_score = false;
    let mut with_scores = false;
    let mut limit = None;
    let mut options = words[3..].iter();
    while let Some(option) = options.next() {
        match upper(option).as_str() {
            "BYSCORE" => by_score = true,
            "WITHSCORES" => with_scores = true,
            "LIMIT" => {
                let (skipped, taken) =
                    (options.next().ok_or(SYNTAX)?, options.next().ok_or(SYNTAX)?);
                limit = Some((integer(skipped)?, integer(taken)?));
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    if limit.is_some() && !by_score {
        let why =
            "ERR syntax error, LIMIT is only supported in combination with either BYSCORE or BYLEX";
        return Err(why.into());
    }
    let found: Vec<(f64, Vec<u8>)> = if by_score {
        let least = Bound::read(&words[1])?;
        let most = Bound::read(&words[2])?;
        let Some(set) = sorted(data, &words[0])? else { return Ok(Reply::Array(Vec::new())) };
        let within =
            set.iter().filter(|(score, _)| least.is_below(*score) && most.is_above(*score));
        let (skipped, taken) = limit.unwrap_or((0, -1));
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        within.skip(skipped).take(usize::try_from(taken).unwrap_or(usize::MAX)).cloned().collect()
    } else {
        let first = integer(&words[1])?;
        let last = integer(&words[2])?;
        let Some(set) = sorted(data, &words[0])? else { return Ok(Reply::Array(Vec::new())) };
        match places(first, last, set.len()) {
            Some((first, last)) => set.iter().skip(first).take(last + 1 - first).cloned().collect(),
            None => Vec::new(),
        }
    };
    Ok(if with_scores {
        Reply::Scored(found.into_iter().map(|(score, member)| (member, score)).collect())
    } else {
        Reply::Array(found.into_iter().map(|(_, member)| Reply::Bulk(member)).collect())
    })
}
