//! The field that controls this cache: a targeted one (RFC 9213), else `Cache-Control`.

use http::{HeaderMap, HeaderName, HeaderValue};
use sfv::{BareItem, Dictionary, ListEntry, Parser};

use super::directives::{Directives, Element};

const CDN_CACHE_CONTROL: HeaderName = HeaderName::from_static("cdn-cache-control");
const SURROGATE_CONTROL: HeaderName = HeaderName::from_static("surrogate-control");

/// The name by which `Surrogate-Control` addresses this cache alone.
const TARGET: &str = "bellwether";

/// The directives that a response has for this cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Controls {
    pub(crate) directives: Directives,
    /// They come from a targeted field, so `Cache-Control` and `Expires` do not count.
    pub(crate) is_targeted: bool,
}

impl Controls {
    /// Reads `CDN-Cache-Control`, else `Surrogate-Control`, else `Cache-Control`.
    ///
    /// A targeted field counts if it says anything that this cache knows. Returns `None` if the
    /// field that counts is not readable.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Self> {
        let cdn = cdn(headers);
        let is_unreadable = cdn.is_none();
        let mut targeted = cdn.or_else(|| unreadable_cdn(headers)).filter(says_something);
        if targeted.is_none() {
            let lines = headers.get_all(&SURROGATE_CONTROL);
            let is_mine = |name: &str| name.eq_ignore_ascii_case(TARGET);
            targeted = Some(Directives::parse_lines(lines, Some(is_mine))?).filter(says_something);
        }
        let is_targeted = targeted.is_some();
        let mut directives = match targeted {
            Some(directives) => directives,
            None => Directives::parse(headers)?,
        };
        directives.malformed |= is_unreadable;
        Some(Self { directives, is_targeted })
    }
}

fn says_something(directives: &Directives) -> bool {
    *directives != Directives::default()
}

/// Reads `CDN-Cache-Control`. One that is not a dictionary is ignored (RFC 9213, section 2.1),
/// unless it restricts.
fn cdn(headers: &HeaderMap) -> Option<Directives> {
    let lines: Result<Vec<_>, _> =
        headers.get_all(&CDN_CACHE_CONTROL).iter().map(HeaderValue::to_str).collect();
    let members = Parser::new(&lines.ok()?.join(",")).parse().ok()?;
    Some(Directives::of_members(&members))
}

/// Reads `CDN-Cache-Control` that is not a dictionary, if it may mean that nothing is shared.
fn unreadable_cdn(headers: &HeaderMap) -> Option<Directives> {
    let directives = Directives::parse_lines(headers.get_all(&CDN_CACHE_CONTROL), None)?;
    directives.restricts().then_some(directives)
}

impl Directives {
    /// Takes the members of a dictionary for directives. A value of another type than the directive
    /// has is invalid.
    fn of_members(members: &Dictionary) -> Self {
        let mut directives = Self::default();
        for (name, member) in members {
            let name = name.as_str();
            let names_fields = matches!(name, "private" | "no-cache");
            let value = match member {
                ListEntry::Item(item) => match &item.bare_item {
                    BareItem::Boolean(false) => continue,
                    BareItem::Integer(number) if !names_fields => Some(number.to_string().into()),
                    BareItem::String(fields) if names_fields => Some(fields.as_str().into()),
                    _ => None,
                },
                ListEntry::InnerList(_) => None,
            };
            directives.set(&Element { name, value, target: None, is_clean: true });
        }
        directives
    }
}

/// Checks rules that hold for all header lines. The fuzz target `directives` calls it.
#[cfg(any(fuzzing, test))]
pub(crate) fn check_any_lines(lines: &[u8]) {
    use http::header::{CACHE_CONTROL, CONNECTION};

    let values = |lines: &[u8]| -> Vec<HeaderValue> {
        let lines = lines.split(|byte| *byte == b'\n');
        lines.filter_map(|line| HeaderValue::from_bytes(line).ok()).collect()
    };
    let parse = |values: &[HeaderValue]| {
        let mut headers = HeaderMap::new();
        for value in values {
            for name in [CACHE_CONTROL, CONNECTION, SURROGATE_CONTROL, CDN_CACHE_CONTROL] {
                headers.append(name, value.clone());
            }
        }
        let _ = (super::connection(&headers), Controls::of(&headers));
        // A dictionary that restricts is never overruled by `Cache-Control`.
        if cdn(&headers).is_some_and(|directives| directives.no_store) {
            let controls = Controls::of(&headers);
            assert!(controls.is_some_and(|controls| controls.directives.no_store));
        }
        Directives::parse(&headers)
    };

    let mut values_of_lines = values(lines);
    let parsed = parse(&values_of_lines);
    assert_eq!(parse(&values(&lines.to_ascii_uppercase())), parsed, "case matters");
    if let Some(directives) = parsed {
        let joined = values_of_lines.iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
        let joined = joined.join(&b", "[..]);
        assert_eq!(parse(&values(&joined)).as_ref(), Some(&directives), "several lines differ");
        values_of_lines.push(HeaderValue::from_static("no-store"));
        let restricted = Directives { no_store: true, ..directives };
        assert_eq!(parse(&values_of_lines), Some(restricted), "a restriction is lost");
    }
}

#[cfg(test)]
mod tests {
    use super::{super::directives::Scope, *};

    fn controls(headers: &[(&'static str, &'static str)]) -> Option<Controls> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        Controls::of(&map)
    }

    /// RFC 9213, section 2.2.
    #[test]
    fn the_first_readable_field_controls() {
        let general = ("cache-control", "max-age=1");
        for (headers, max_age, is_targeted) in [
            (&[general][..], Some(1), false),
            (&[general, ("cdn-cache-control", "max-age=2")], Some(2), true),
            (&[general, ("cdn-cache-control", "max-age=2;a, foo")], Some(2), true),
            (&[general, ("cdn-cache-control", "max-age=\"2\"")], Some(0), true),
            (&[general, ("cdn-cache-control", "max-age=-2")], Some(0), true),
            (&[general, ("cdn-cache-control", "no-store")], None, true),
            (&[general, ("cdn-cache-control", "no-store=?0")], Some(1), false),
            (
                &[general, ("cdn-cache-control", "max-age=2, a"), ("cdn-cache-control", "b")],
                Some(2),
                true,
            ),
            (&[general, ("cdn-cache-control", "")], Some(1), false),
            (&[general, ("cdn-cache-control", "foo")], Some(1), false),
            (&[general, ("cdn-cache-control", "Max-Age=2")], Some(1), false),
            (&[general, ("cdn-cache-control", "max-age = 2")], Some(1), false),
            (&[general, ("surrogate-control", "MAX-age=3")], Some(3), true),
            (&[general, ("surrogate-control", "max-age=3;Bellwether")], Some(3), true),
            (&[general, ("surrogate-control", "max-age=3;other")], Some(1), false),
            (&[general, ("surrogate-control", "content=\"ESI/1.0\"")], Some(1), false),
            (
                &[("surrogate-control", "max-age=3"), ("cdn-cache-control", "max-age=2")],
                Some(2),
                true,
            ),
        ] {
            let found = controls(headers).unwrap();
            assert_eq!(
                (found.directives.max_age, found.is_targeted),
                (max_age, is_targeted),
                "{headers:?}"
            );
        }
        assert_eq!(controls(&[general, ("surrogate-control", "x=\"")]), None);
    }

    #[test]
    fn members_of_a_dictionary_are_directives() {
        let found = controls(&[(
            "cdn-cache-control",
            "private=\"x-user\", no-cache, must-revalidate, s-maxage=4, stale-if-error=5",
        )]);
        let directives = found.unwrap().directives;
        assert_eq!(directives.private, Scope::Fields(vec!["x-user".to_owned()]));
        assert_eq!((directives.no_cache, directives.must_revalidate), (Scope::All, true));
        assert_eq!((directives.s_maxage, directives.stale_if_error), (Some(4), Some(5)));
    }
}
