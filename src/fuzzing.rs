//! Checks of the decoders, for any bytes.
//!
//! Each function takes bytes from outside of the process and panics if a rule is broken. The
//! targets in `fuzz/` call them on nightly Rust, guided by coverage, and the tests below on stable
//! Rust, with a fixed number of mutations of the seeds.

#![allow(clippy::panic)]

use bytes::Bytes;

use crate::{
    backend::{Change, Entry},
    escape::{Escaped, acts_on_a_terminal, unescape},
};

/// Checks [`Entry::decode`]: a decoded entry is decoded from its own bytes again.
pub fn entry(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    if let Ok(entry) = Entry::decode(bytes.clone()) {
        assert_eq!(Entry::decode(entry.encode()), Ok(entry));
    }
}

/// Checks [`Change::decode`]: a decoded change survives another round.
pub fn change(data: &[u8]) {
    let change = Change::decode(&Bytes::copy_from_slice(data));
    assert_eq!(Change::decode(&change.encode()), change);
}

/// Checks [`Escaped`] and [`unescape`]: any text comes back, and is shown without what a terminal
/// acts on.
pub fn shown_name(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let shown = Escaped(&text).to_string();
    assert!(!shown.contains(acts_on_a_terminal));
    assert_eq!(unescape(&shown).as_deref(), Some(&*text));
    // An operator may give any text.
    if let Some(name) = unescape(&text) {
        assert_eq!(unescape(&Escaped(&name).to_string()), Some(name));
    }
}

/// Checks the parsers of `Cache-Control` and `Connection`. Each line of `data` is one header line.
#[cfg(feature = "http")]
pub fn directives(data: &[u8]) {
    crate::layer::check_any_lines(data);
}

/// Checks the decoder of stored HTTP responses: a decoded response survives another round.
#[cfg(feature = "http")]
pub fn response(data: &[u8]) {
    use crate::{cache::Codec, layer::ResponseCodec};

    if let Ok(response) = ResponseCodec.decode(Bytes::copy_from_slice(data)) {
        let encoded = ResponseCodec.encode(&response).ok();
        let again = encoded.and_then(|bytes| ResponseCodec.decode(bytes).ok());
        assert_eq!(again, Some(response));
    }
}

/// Checks the parsers of Redis replies. `data` is one reply in RESP.
#[cfg(feature = "redis")]
pub fn redis_reply(data: &[u8]) {
    if let Ok(value) = redis::parse_redis_value(data) {
        crate::backend::redis::check_any_reply(&value);
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, panic, path::Path};

    use fastrand::Rng;

    /// Mutations per target: about a second for all of them in a debug build.
    const ROUNDS: usize = 20_000;
    const LONGEST: usize = 4096;

    /// Runs a target on its seeds and on mutations of them. Every run uses the same inputs.
    fn drive(name: &str, target: fn(&[u8])) {
        let seeds = seeds(name);
        let mut random = Rng::with_seed(0x0be1_13e7);
        let mutated = std::iter::repeat_with(|| {
            let mut input = random.choice(&seeds).cloned().unwrap_or_default();
            for _ in 0..random.usize(1..=4) {
                mutate(&mut input, &seeds, &mut random);
            }
            input.truncate(LONGEST);
            input
        });
        for input in seeds.iter().cloned().chain(mutated.take(ROUNDS)) {
            let outcome = panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "{name} fails for b\"{}\"", input.escape_ascii());
        }
    }

    /// Reads the seeds. The packaged crate has none, and its tests begin with empty input.
    fn seeds(name: &str) -> Vec<Vec<u8>> {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz");
        if !fuzz.exists() {
            return vec![Vec::new()];
        }
        let files = fs::read_dir(fuzz.join("seeds").join(name)).unwrap();
        let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "no seeds for {name}");
        paths.into_iter().map(|path| fs::read(path).unwrap()).collect()
    }

    fn mutate(input: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Rng) {
        const TELLING: &[u8] = b"\0\n\r\t \"%*+,-/09:=\\aefgtvwz{}\x7f\x80\xff";
        let at = random.usize(0..=input.len());
        let length = random.usize(0..=(input.len() - at).min(16));
        match random.u8(0..5) {
            0 if at < input.len() => input[at] ^= 1 << random.u8(0..8),
            1 => input.insert(at, TELLING[random.usize(..TELLING.len())]),
            2 => drop(input.drain(at..at + length)),
            3 => {
                let part = input[at..at + length].to_vec();
                input.splice(at..at, part);
            }
            _ => {
                let other = random.choice(seeds).cloned().unwrap_or_default();
                let from = random.usize(0..=other.len());
                input.splice(at.., other[from..].iter().copied());
            }
        }
    }

    #[test]
    fn any_bytes_are_an_entry_or_an_error() {
        drive("entry", super::entry);
    }

    #[test]
    fn any_bytes_are_a_change() {
        drive("change", super::change);
    }

    #[test]
    fn any_text_is_a_name_that_comes_back() {
        drive("shown_name", super::shown_name);
    }

    #[cfg(feature = "http")]
    #[test]
    fn any_header_lines_are_directives_or_an_error() {
        drive("directives", super::directives);
    }

    #[cfg(feature = "http")]
    #[test]
    fn any_bytes_are_a_stored_response_or_an_error() {
        use crate::{cache::Codec, layer::ResponseCodec};

        // Seeds of an older version would end each round at its first byte.
        for seed in seeds("response").into_iter().filter(|seed| !seed.is_empty()) {
            assert!(ResponseCodec.decode(seed.clone().into()).is_ok(), "{}", seed.escape_ascii());
        }
        drive("response", super::response);
    }

    #[cfg(feature = "redis")]
    #[test]
    fn any_redis_reply_is_an_outcome_or_an_error() {
        drive("redis_reply", super::redis_reply);
    }
}
