//! Fields that list header names.

use http::{HeaderMap, HeaderName};

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
