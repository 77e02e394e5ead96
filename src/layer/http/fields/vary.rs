//! Fields that list header names, and the headers by which the responses of a resource vary.

use http::{HeaderMap, HeaderName, header::VARY};

/// The most names that are told apart. A response with more is not shared.
const MOST_NAMES: usize = 16;

/// Returns the names in the `Vary` of a response, in order. Returns `None` if no request can be
/// known to select the same response.
pub(crate) fn vary(headers: &HeaderMap) -> Option<Vec<HeaderName>> {
    let mut names = listed(headers, &VARY)?;
    names.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
    names.dedup();
    let is_known = names.len() <= MOST_NAMES && names.iter().all(|name| name != "*");
    is_known.then_some(names)
}

/// Parses the header names in all lines of a field. Returns `None` if one is not a header name.
pub(crate) fn listed(headers: &HeaderMap, field: &HeaderName) -> Option<Vec<HeaderName>> {
    let mut names = Vec::new();
    for line in headers.get_all(field) {
        for name in line.to_str().ok()?.split(',').map(|name| name.trim_matches([' ', '\t'])) {
            if !name.is_empty() {
                names.push(HeaderName::from_bytes(name.as_bytes()).ok()?);
            }
        }
    }
    Some(names)
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
