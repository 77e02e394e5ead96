//! The dates of a response that was validated since it was stored (RFC 9111, section 3.2).
//!
//! A `304` brings a new `Date`. If nothing else is new, the stored response is renewed as it is.
//! Its dates are moved on when it is served.

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{DATE, EXPIRES},
};

use super::lifetime::date;

/// As long as the clocks and the seconds of an age differ by less, a stored response that was never
/// validated keeps its dates.
const TOLERANCE: Duration = Duration::from_secs(5);

/// The end of the year 9999, the last that a date can tell. Many services use it for "never".
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// Returns whether headers differ from the stored ones by their dates at most, which are moved on
/// together.
pub(crate) fn differ_by_dates(stored: &HeaderMap, newer: &HeaderMap) -> bool {
    let (Some(old), Some(new)) = (date(stored, &DATE), date(newer, &DATE)) else { return false };
    let expires = match (date(stored, &EXPIRES), date(newer, &EXPIRES)) {
        (Some(stored), Some(newer)) => {
            stored.duration_since(old).ok() == newer.duration_since(new).ok() && stored >= old
        }
        // A value that is no date is never moved on.
        (None, None) => stored.get_all(EXPIRES) == newer.get_all(EXPIRES),
        _ => false,
    };
    let others = |headers: &HeaderMap| {
        let mut others = headers.clone();
        others.remove(DATE);
        others.remove(EXPIRES);
        others
    };
    expires && others(stored) == others(newer)
}

/// Moves the dates of a response on that has this age now, if its validation has made it younger
/// than its `Date` says.
pub(crate) fn move_on(headers: &mut HeaderMap, age: u64, now: SystemTime) {
    let Some(sent) = date(headers, &DATE) else { return };
    let made = now.checked_sub(Duration::from_secs(age));
    let Some(later) = made.and_then(|made| made.duration_since(sent).ok()) else { return };
    if later < TOLERANCE {
        return;
    }
    let expires = date(headers, &EXPIRES);
    set(headers, DATE, sent.checked_add(later));
    set(headers, EXPIRES, expires.and_then(|expires| expires.checked_add(later)));
}

fn set(headers: &mut HeaderMap, name: HeaderName, date: Option<SystemTime>) {
    let date = date.filter(|date| *date <= SystemTime::UNIX_EPOCH + LAST);
    let text = date.map(httpdate::fmt_http_date);
    if let Some(value) = text.and_then(|text| HeaderValue::try_from(text).ok()) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
    }

    /// In seconds: `Fri, 31 Dec 9999 23:59:59 GMT`.
    const NEVER: &str = "251702300799";

    /// Returns headers with these dates. `x` stands for a value that is no date.
    fn headers(sent: &str, expires: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x", HeaderValue::from_static("y"));
        for (name, value) in [(DATE, sent), (EXPIRES, expires)] {
            match value.parse() {
                Ok(seconds) => set(&mut headers, name, Some(at(seconds))),
                Err(_) if value.is_empty() => {}
                Err(_) => drop(headers.insert(name, HeaderValue::from_static("0"))),
            }
        }
        headers
    }

    #[test]
    fn only_dates_that_move_together_may_differ() {
        for (stored, newer, differ) in [
            (("0", ""), ("0", ""), true),
            (("0", ""), ("60", ""), true),
            (("0", "9"), ("60", "69"), true),
            (("0", "x"), ("60", "x"), true),
            (("0", "9"), ("60", "70"), false),
            (("0", "9"), ("60", "9"), false),
            (("9", "0"), ("69", "60"), false),
            (("0", "9"), ("60", ""), false),
            (("0", ""), ("60", "x"), false),
            (("", ""), ("60", ""), false),
            (("0", ""), ("x", ""), false),
        ] {
            let of = |(sent, expires)| headers(sent, expires);
            assert_eq!(differ_by_dates(&of(stored), &of(newer)), differ, "{stored:?} {newer:?}");
        }
        let mut other = headers("60", "");
        other.insert("x", HeaderValue::from_static("z"));
        assert!(!differ_by_dates(&headers("0", ""), &other));
    }

    #[test]
    fn the_dates_of_a_validated_response_are_moved_on() {
        for (stored, age, now, served) in [
            // Never validated.
            (("0", "9"), 60, 60, ("0", "9")),
            (("0", "9"), 58, 60, ("0", "9")),
            // The clock of the service is ahead.
            (("30", "39"), 0, 10, ("30", "39")),
            // Validated after a minute.
            (("0", "9"), 0, 60, ("60", "69")),
            (("0", "x"), 10, 70, ("60", "x")),
            (("0", ""), 10, 70, ("60", "")),
            (("", ""), 0, 60, ("", "")),
            (("x", "9"), 0, 60, ("x", "9")),
            // Never.
            (("0", NEVER), 0, 60, ("60", NEVER)),
        ] {
            let mut found = headers(stored.0, stored.1);
            move_on(&mut found, age, at(now));
            assert_eq!(found, headers(served.0, served.1), "{stored:?} at {now}");
        }
    }
}
