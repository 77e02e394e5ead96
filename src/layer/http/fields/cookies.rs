//! The names of the cookies in a request.

use http::{HeaderMap, header::COOKIE};

use crate::layer::http::requests::normal::may_hold_another;

/// Cookies that no response depends on.
#[derive(Clone, Debug, Default)]
pub(crate) struct IgnoredCookies {
    names: Vec<String>,
    /// The beginnings of names.
    prefixes: Vec<String>,
}

impl IgnoredCookies {
    /// Adds a name, or with a `*` at its end the beginning of names.
    pub(crate) fn add(&mut self, name: &str) {
        match name.strip_suffix('*') {
            Some(prefix) => self.prefixes.push(prefix.to_owned()),
            None => self.names.push(name.to_owned()),
        }
    }

    /// Returns whether all cookies of a request are ignored. One in which the service may read
    /// another cookie is not, such as `_ga=1, session=A`.
    pub(crate) fn cover(&self, headers: &HeaderMap) -> bool {
        let mut cookies = headers.get_all(COOKIE).iter().flat_map(|line| pairs(line.as_bytes()));
        cookies.all(|(name, value)| {
            self.has(name) && !may_hold_another(name) && !may_hold_another(value)
        })
    }

    fn has(&self, name: &[u8]) -> bool {
        self.names.iter().any(|known| known.as_bytes() == name)
            || self.prefixes.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
    }
}

/// Returns the cookies in one line, each with its value. One without a name has an empty one.
fn pairs(line: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    let pairs = line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii);
    pairs.filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_at(pair.iter().position(|it| *it == b'=').unwrap_or(0));
        (name.trim_ascii(), value.strip_prefix(b"=").unwrap_or(value).trim_ascii())
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn ignored(names: &[&str], lines: &[&str]) -> bool {
        let mut cookies = IgnoredCookies::default();
        names.iter().for_each(|name| cookies.add(name));
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(COOKIE, HeaderValue::from_bytes(line.as_bytes()).unwrap());
        }
        cookies.cover(&headers)
    }

    #[test]
    fn all_cookies_of_all_lines_must_be_ignored() {
        let known = ["_ga", "_ga_*", "theme"];
        for lines in [
            &[][..],
            &["_ga=1"],
            &["_ga=GA1.1; theme=dark"],
            &["_ga_ABC=x=y", " theme = \u{e4};;"],
            &["_ga="],
        ] {
            assert!(ignored(&known, lines), "{lines:?}");
        }
        for lines in [
            &["session=1"][..],
            &["_ga=1; session=1"],
            &["_ga=1", "session=1"],
            &["_ga=1;session=1"],
            &["_GA=1"],
            &["_gat=1"],
            &["theme"],
            &["=1"],
            &["_ga=\"1; session=1\""],
            // A service may read another cookie in it.
            &["_ga=1, session=1"],
            &["_ga=1,session=1"],
            &["_ga=1 session=1"],
            &["_ga=1\tsession=1"],
            &["_ga=1&session=1"],
            &["_ga=1%3Bsession=1"],
            &["_ga=1%2c%20session=1"],
            &["_ga=\"1\\073 session=1\""],
            &["_ga_%3Bsession=1"],
            &["_ga_,session=1"],
            &["_ga session=1"],
            &["_ga_x session=1"],
            &["_ga=1%"],
        ] {
            assert!(!ignored(&known, lines), "{lines:?}");
        }
        assert!(!ignored(&[], &["_ga=1"]));
    }
}
