//! Groups of responses (RFC 9875), which are tags of the cache.
//!
//! A group belongs to its origin, so its tag begins with that: `<scheme> <host> <group>`. Neither
//! of the first two has a space. A surrogate key is a group by another name.

use http::{HeaderMap, HeaderName, Uri, Version, request::Parts};
use sfv::{BareItem, List, ListEntry, Parser};

use super::{requests::key, settings::HttpSettings};

const GROUPS: HeaderName = HeaderName::from_static("cache-groups");
const INVALIDATION: HeaderName = HeaderName::from_static("cache-group-invalidation");
const SURROGATES: HeaderName = HeaderName::from_static("surrogate-key");

impl HttpSettings {
    /// Returns the origin of a request, if its cache has tags and the host is clear.
    pub(super) fn group_origin(
        &self,
        (version, uri, headers): (Version, &Uri, &HeaderMap),
    ) -> Option<String> {
        let is_of_use = self.cache.has_tags() && !self.policy.coalesces;
        is_of_use.then(|| key::origin(version, uri, headers)).flatten()
    }

    /// Returns the tags of the groups of an origin that some headers name.
    pub(super) fn groups(&self, origin: Option<&str>, headers: &HeaderMap) -> Vec<String> {
        let mut groups = listed(headers, &GROUPS);
        if self.surrogate_keys {
            let lines = headers.get_all(&SURROGATES).iter().filter_map(|line| line.to_str().ok());
            groups.extend(lines.flat_map(str::split_ascii_whitespace).map(str::to_owned));
        }
        tags(origin, groups)
    }

    /// Returns whether a request names groups by a header, well or badly.
    pub(super) fn names_groups(headers: &HeaderMap) -> bool {
        headers.contains_key(GROUPS) || headers.contains_key(SURROGATES)
    }

    /// Returns the tags of the groups that the answer to an unsafe request ends.
    pub(super) fn ended_groups(&self, parts: &Parts, answer: &HeaderMap) -> Vec<String> {
        let origin = self.group_origin((parts.version, &parts.uri, &parts.headers));
        tags(origin.as_deref(), listed(answer, &INVALIDATION))
    }
}

/// Returns the tags of some groups of an origin.
fn tags(origin: Option<&str>, groups: Vec<String>) -> Vec<String> {
    let tag = |origin| groups.iter().map(|group| format!("{origin} {group}")).collect();
    origin.map(tag).unwrap_or_default()
}

/// Returns the strings of a list. Other members are ignored, and so is a field that is no list.
fn listed(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let lines = headers.get_all(name).iter().map(|line| line.to_str().ok());
    let lines: Option<Vec<_>> = lines.collect();
    let list = lines.and_then(|lines| Parser::new(&lines.join(", ")).parse::<List>().ok());
    let text = |member| match member {
        ListEntry::Item(item) => match item.bare_item {
            BareItem::String(text) => Some(text.as_str().to_owned()),
            _ => None,
        },
        ListEntry::InnerList(_) => None,
    };
    list.unwrap_or_default().into_iter().filter_map(text).collect()
}
