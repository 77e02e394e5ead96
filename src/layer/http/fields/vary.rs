//! The names of the headers by which the responses of a resource vary.

use http::{HeaderMap, HeaderName, header::VARY};

use super::names::listed;

/// The most names that are told apart. A response with more is not shared.
const MOST_NAMES: usize = 16;

/// Returns the names in the `Vary` of a response, in order. Returns `None` if no request can be
/// known to select the same response.
pub(crate) fn vary(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let names = in_order(listed(headers, &VARY)?)?;
    names.iter().all(|name| name != "*").then_some(names)
}

/// Sorts some names, each once. Returns `None` if there are too many.
pub(crate) fn in_order(mut names: Vec<HeaderName>) -> Option<Vec<HeaderName>> {
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    (names.len() <= MOST_NAMES).then_some(names)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn all_lines_of_vary_name_headers() {
        let parsed = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(VARY, HeaderValue::from_bytes(line.as_bytes()).unwrap());
            }
            let names = vary(&headers)?;
            Some(names.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(" "))
        };
        let many: Vec<_> = (0..17).map(|number| format!("x-{number}")).collect();
        for (lines, expected) in [
            (&[][..], Some("")),
            (&["Origin, accept-encoding,, Origin"], Some("accept-encoding origin")),
            (&["b", " ,\ta"], Some("a b")),
            (&["accept, *"], None),
            (&["*"], None),
            (&["accept encoding"], None),
            (&["\u{e4}"], None),
            (&[&*many.join(",")], None),
        ] {
            assert_eq!(parsed(lines).as_deref(), expected, "{lines:?}");
        }
    }
}
