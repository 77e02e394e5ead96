//! Unsafe requests end the responses that they may have outdated (RFC 9111, section 4.4), and a
//! `PURGE` ends the responses that it names.
//!
//! Groups of responses (RFC 9875) are tags of the cache. A group belongs to its host, so its tag
//! begins with that: `<host> <group>`. A surrogate key is a group by another name.

use bytes::Bytes;
use futures_util::future::join_all;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode,
    header::{CONTENT_LOCATION, CONTENT_TYPE, LOCATION},
    request::Parts,
};
use sfv::{BareItem, Item, List, ListEntry, Parser};
use tokio::task::JoinHandle;
use tracing::{Instrument, debug};

use super::{
    CachedResponse, Http,
    body::LayerBody,
    fields::sole,
    key::{Located, Paths, Target, host, located, normal, without_query},
};
use crate::{cache::Cache, error::Error, key::Key};

pub(super) const GROUPS: HeaderName = HeaderName::from_static("cache-groups");
const INVALIDATION: HeaderName = HeaderName::from_static("cache-group-invalidation");
const SURROGATES: HeaderName = HeaderName::from_static("surrogate-key");

/// Returns a path before and behind the routers that removed a prefix from the path of a request.
fn nested(target: &Target<'_>, path: String) -> Option<Paths<'static>> {
    let [all, routed] = target.spelled.map(without_query);
    let prefix = match all.strip_suffix(routed) {
        Some(prefix) => prefix,
        // The route `/` is the prefix itself, without a slash behind it.
        None if routed == "/" => all,
        None => return None,
    };
    let rest = path.strip_prefix(&*normal(prefix))?;
    let routed = match rest.as_bytes().first() {
        Some(b'/') => rest.to_owned(),
        None | Some(b'?') => format!("/{rest}"),
        Some(_) => return None,
    };
    Some([path.into(), routed.into()])
}

/// Returns whether a method changes nothing at the service, by the registry of HTTP methods (RFC
/// 9110, section 16.1.1). An unknown method may change something.
pub(super) fn is_safe(method: &Method) -> bool {
    method.is_safe()
        || matches!(method.as_str(), "PRI" | "PROPFIND" | "QUERY" | "REPORT" | "SEARCH")
}

/// Returns whether an answer is the answer to a gRPC call. The path of a call names a procedure,
/// which no `GET` asks for, so nothing is stored under that path.
fn is_grpc(answer: &HeaderMap) -> bool {
    let content_type = answer.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    content_type.is_some_and(|name| name.starts_with(b"application/grpc"))
}

/// What a `PURGE` ends.
pub(super) struct Purged {
    keys: Vec<Key>,
    tags: Vec<String>,
}

impl Http {
    /// Begins to end the responses that an unsafe request outdates, if its answer is no error. The
    /// caller gets its answer after the task, and then finds none of these responses.
    pub(super) fn invalidate(
        &self,
        target: &Parts,
        status: StatusCode,
        answer: &HeaderMap,
    ) -> Option<JoinHandle<()>> {
        let is_good = status.is_success() || status.is_redirection();
        let mut keys = Vec::new();
        if is_good && !self.0.policy.coalesces && !is_grpc(answer) {
            keys = self.outdated(target, &locations(answer));
        }
        let tags = self.tags(target, answer, &INVALIDATION);
        if keys.is_empty() && tags.is_empty() {
            return None;
        }
        let cache = self.0.cache.clone();
        let end = async move {
            if let Err(error) = end_all(&cache, keys, tags).await {
                debug!(%error, "an unsafe request does not end what it outdates");
            }
        };
        // The task goes on if the caller goes away, because the service has changed the resources.
        Some(tokio::spawn(end.instrument(tracing::Span::current())))
    }

    /// Returns what a request is to purge, if the user of the layer permits that: the groups in its
    /// headers, or else the keys of its URI.
    pub(super) fn purged(&self, parts: &Parts) -> Option<Purged> {
        let check = self.0.purge.as_ref()?;
        if parts.method.as_str() != "PURGE" || !check(parts) {
            return None;
        }
        let tags = self.tags(parts, &parts.headers, &GROUPS);
        let names_groups =
            parts.headers.contains_key(GROUPS) || parts.headers.contains_key(SURROGATES);
        // A `PURGE` whose groups cannot be ended is not taken for a `PURGE` of the URI.
        let keys = if names_groups { Vec::new() } else { self.outdated(parts, &[]) };
        if keys.is_empty() && tags.is_empty() { None } else { Some(Purged { keys, tags }) }
    }

    /// Ends what a request is to purge. Returns its answer.
    pub(super) async fn purge(&self, purged: Purged) -> Response<LayerBody> {
        let mut response = match end_all(&self.0.cache, purged.keys, purged.tags).await {
            Ok(()) => Response::new(Bytes::new()),
            Err(error) => (self.0.on_error)(&error),
        };
        if response.status() == StatusCode::OK {
            *response.status_mut() = StatusCode::NO_CONTENT;
        }
        response.map(LayerBody::Whole)
    }

    /// Returns the keys of a resource and of locations on its host. If its path has segments of
    /// dots, the service may take the path for the path without such segments, whose keys are among
    /// the returned ones.
    fn outdated(&self, parts: &Parts, locations: &[&str]) -> Vec<Key> {
        let Some(target) = Target::of(parts) else { return Vec::new() };
        let mut locations = locations.to_vec();
        if target.is_respelled {
            locations.push(&target.paths[0]);
        }
        let mut resources = vec![target.paths.clone()];
        for location in locations {
            if let Located::OwnHost(path) = located(parts, location) {
                resources.extend(nested(&target, path));
            }
        }
        let mut keys = Vec::new();
        for paths in &resources {
            // Another request for the resource may name its scheme or not.
            for scheme in ["", "http", "https", target.scheme] {
                keys.extend(self.key(parts, scheme, paths));
            }
        }
        keys.sort_unstable();
        keys.dedup();
        keys
    }

    /// Returns the tags of the groups that a field names, of the host of a request. There are
    /// none if the cache has no tags, or if the host is not clear.
    pub(super) fn tags(
        &self,
        parts: &Parts,
        headers: &HeaderMap,
        field: &HeaderName,
    ) -> Vec<String> {
        if !self.0.terms.has_tags || self.0.policy.coalesces {
            return Vec::new();
        }
        let scheme = Target::of(parts).map_or("", |target| target.scheme);
        let Some(host) = host(parts, scheme).map(str::to_ascii_lowercase) else {
            return Vec::new();
        };
        let mut groups = listed_strings(headers, field);
        if *field == GROUPS && self.0.surrogate_keys {
            for line in headers.get_all(&SURROGATES) {
                let Ok(words) = line.to_str() else { continue };
                groups.extend(words.split_ascii_whitespace().map(str::to_owned));
            }
        }
        groups.iter().map(|group| format!("{host} {group}")).collect()
    }
}

/// Ends the responses of these keys and tags, at once. An error keeps no other response.
async fn end_all(
    cache: &Cache<CachedResponse>,
    keys: Vec<Key>,
    tags: Vec<String>,
) -> Result<(), Error> {
    let keys = join_all(keys.into_iter().map(|key| cache.invalidate(key)));
    let tags = join_all(tags.into_iter().map(|tag| cache.invalidate_tag(tag)));
    let (keys, tags) = futures_util::join!(keys, tags);
    for ended in keys {
        ended?;
    }
    for ended in tags {
        ended?;
    }
    Ok(())
}

/// Returns the texts of the fields that name what an answer has changed (RFC 9111, section 4.4).
fn locations(answer: &HeaderMap) -> Vec<&str> {
    let mut locations = Vec::new();
    for name in [LOCATION, CONTENT_LOCATION] {
        if let Some(location) = sole(answer, name) {
            locations.extend(location.to_str());
        }
    }
    locations
}

/// Returns the strings of a list. Other members are ignored, and so is a field that is no list.
fn listed_strings(headers: &HeaderMap, name: &HeaderName) -> Vec<String> {
    let mut lines = Vec::new();
    for line in headers.get_all(name) {
        let Ok(line) = line.to_str() else { return Vec::new() };
        lines.push(line);
    }
    let text = lines.join(", ");
    let list: List = Parser::new(&text).parse().unwrap_or_default();
    let mut strings = Vec::new();
    for member in list {
        if let ListEntry::Item(Item { bare_item: BareItem::String(text), .. }) = member {
            strings.push(text.as_str().to_owned());
        }
    }
    strings
}
