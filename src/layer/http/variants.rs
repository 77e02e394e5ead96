//! Where a response is stored: under the key of its resource, or below a marker.
//!
//! A key may hold a marker in place of a response. A marker has a generation, and the names of the
//! headers by which the responses differ. Each response has a key of its own, which contains the
//! generation. So each way to a response leads through the marker. An invalidation removes the
//! marker, and the next marker has another generation. A response of the old generation is never
//! found again, even if its load began before the invalidation and ends after the invalidation.
//!
//! A response with a `Vary` writes the marker (RFC 9110, section 12.5.5). A response below a marker
//! may vary by more headers. Its own key then holds a further marker.
//!
//! In a layer with parts of the key, the resource has a marker before a load begins, because no
//! process knows which values of the parts there are. So requests with different parts share
//! nothing else: no flight, no failure, no mark and no `Vary`. Where no marker can be written, a
//! response is in a generation of this process. Such a response is shared between callers that wait
//! for it, and in an outage the process remembers it. The response is never stored, because an
//! invalidation in another process does not end this generation.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode,
    header::{ACCEPT_ENCODING, ETAG, VARY},
};
use sha2::{Digest, Sha256};
use tracing::debug;

use super::{
    CachedResponse, Http, cached::ResponseHead, fields::vary, key::hex, question::TERMS,
    status::Forward,
};
use crate::{
    cache::{
        Lead, Loaded,
        shared_load::{Alone, FlightResult, Produced, Sharing, Windows},
    },
    key::Key,
    random,
};

/// The status of a marker. No response has this status.
pub(super) const MARK: StatusCode = StatusCode::CONTINUE;

/// How long a marker is kept at least. With a marker, all responses below the marker are lost.
const MARKER_LIFE: Duration = Duration::from_secs(86_400);

/// The length of a key below a marker, in bytes.
pub(super) const KEY_LENGTH: usize = "VARY ".len() + 32 + " ".len() + 64;

/// How many markers may lead to a response. One more is not shared.
const MOST_MARKERS: u8 = 4;

/// The generations of one process begin with this text. The generations in the backend begin with a
/// hexadecimal digit.
const LOCAL: &str = "local ";

/// An entry that leads to the responses below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Marker {
    generation: String,
    names: Vec<HeaderName>,
}

impl Marker {
    /// Creates a marker of a new generation.
    fn new(names: Vec<HeaderName>) -> Self {
        Self { generation: random::id().simple().to_string(), names }
    }

    /// Returns the marker that an entry is, or `None` if the entry is a response.
    pub(super) fn of(entry: &CachedResponse) -> Option<Self> {
        if entry.status() != MARK {
            return None;
        }
        let headers = entry.headers();
        let generation = headers.get(ETAG)?.to_str().ok()?.to_owned();
        Some(Self { generation, names: vary(headers)? })
    }

    fn entry(&self) -> Option<CachedResponse> {
        let mut headers = HeaderMap::new();
        headers.insert(ETAG, HeaderValue::from_str(&self.generation).ok()?);
        for name in &self.names {
            headers.append(VARY, name.clone().into());
        }
        let head = Arc::new(ResponseHead { status: MARK, headers, only_validates: false });
        Some(CachedResponse { head, body: Bytes::new(), age: 0, late: 0 })
    }
}

/// The key of a flight, and the way to it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) key: Key,
    /// The part that the layer adds to the key, if the key does not have that part yet.
    pub(super) parts: Option<String>,
    /// The key that no invalidation changes, if headers do not select the place.
    pub(super) lasting: Key,
    /// The key is in a generation of this process alone.
    pub(super) is_local: bool,
    /// How many markers lead to the place.
    depth: u8,
    /// The headers that select the place.
    pub(super) names: Vec<HeaderName>,
    /// Why a request is sent to the service if nothing is stored here.
    pub(super) miss: Forward,
}

impl Place {
    /// Returns the place of a resource, and what the layer adds to its key.
    pub(super) fn new(key: Key, parts: Option<String>) -> Self {
        let lasting = match &parts {
            Some(parts) => format!("{key}{parts}").into(),
            None => key.clone(),
        };
        Self {
            key,
            parts,
            lasting,
            is_local: false,
            depth: 0,
            names: Vec::new(),
            miss: Forward::Miss,
        }
    }

    /// Returns the place below a marker that a request selects.
    ///
    /// The key contains a digest of the headers and the parts, because headers and parts may be
    /// secret. No other key starts with `VARY`.
    pub(super) fn below(&self, marker: &Marker, request: &HeaderMap) -> Self {
        let digest = hex(self.digest(marker, request));
        let key = Key::from(format!("VARY {} {digest}", marker.generation));
        let selects = !marker.names.is_empty();
        let mut names = self.names.clone();
        names.extend_from_slice(&marker.names);
        Self {
            lasting: if selects { key.clone() } else { self.lasting.clone() },
            key,
            parts: None,
            is_local: self.is_local || marker.generation.starts_with(LOCAL),
            depth: self.depth.saturating_add(1),
            names,
            miss: if selects { Forward::VaryMiss } else { Forward::Miss },
        }
    }

    /// Returns the digest of what selects a place below a marker: the key above, the parts, and the
    /// lines of the headers.
    fn digest(&self, marker: &Marker, request: &HeaderMap) -> impl IntoIterator<Item = u8> {
        let mut digest = Sha256::new();
        add_field(&mut digest, self.key.text.as_bytes());
        if let Some(parts) = &self.parts {
            add_field(&mut digest, parts.as_bytes());
        }
        for name in &marker.names {
            // The service never sees a term, so that no response depends on it.
            if TERMS.contains(name) {
                continue;
            }
            let lines: Vec<&[u8]> =
                request.get_all(name).iter().map(HeaderValue::as_bytes).collect();
            if *name == ACCEPT_ENCODING && !lines.is_empty() {
                add_field(&mut digest, &encodings(&lines));
                continue;
            }
            add_field(&mut digest, &(lines.len() as u64).to_be_bytes());
            for line in lines {
                add_field(&mut digest, line);
            }
        }
        digest.finalize()
    }

    /// Returns the variant that a response of this place's flight is. `names` are the names in the
    /// `Vary` of the response that do not select this place.
    ///
    /// Returns `None` if the response belongs nowhere, because its `Vary` has no end, or a key is
    /// too long.
    pub(super) fn variant(
        &self,
        names: Vec<HeaderName>,
        request: &HeaderMap,
        key_limit: usize,
    ) -> Option<Variant> {
        if self.depth >= MOST_MARKERS || key_limit < KEY_LENGTH {
            return None;
        }
        let marker = Marker::new(names);
        let place = self.below(&marker, request);
        Some(Variant { marker, place })
    }
}

/// A response that belongs below a marker which is not stored yet.
pub(super) struct Variant {
    marker: Marker,
    place: Place,
}

impl Variant {
    /// Returns the marker, which is of the place above, if a request with these headers selects
    /// another response.
    pub(super) fn misses(&self, above: &Place, request: &HeaderMap) -> Option<&Marker> {
        let selected = above.below(&self.marker, request);
        if selected.key == self.place.key { None } else { Some(&self.marker) }
    }
}

impl Http {
    /// Returns the marker of a resource with parts.
    pub(super) async fn generation(&self, place: &Place) -> Marker {
        // The generation is of this process alone, until the process invalidates a resource.
        let generation = format!("{LOCAL}{}", self.0.cache.invalidations(&place.key));
        let local = Marker { generation, names: Vec::new() };
        let http = self.clone();
        let without_lease = local.clone();
        // The load of a marker makes no call, so its callers share it as the callers of a loader.
        let sharing = Sharing { never_queues: true, is_uncounted: true, ..Sharing::default() };
        let request = self.0.cache.request(place.key.clone()).sharing(sharing, Duration::MAX);
        let flown = request.fly(move |lead| async move {
            let marker = http.marker_entry(&lead, &without_lease);
            Ok(marker.map_or(Produced::alone(Alone::Uncacheable), Produced::value))
        });
        match flown.await {
            Ok(FlightResult::Loaded(loaded)) => Marker::of(&loaded.value).unwrap_or(local),
            Ok(_) | Err(_) => local,
        }
    }

    /// Returns the marker that a load of a resource with parts makes, as an entry.
    fn marker_entry(
        &self,
        lead: &Lead<CachedResponse>,
        without_lease: &Marker,
    ) -> Option<CachedResponse> {
        if let Some(stale) = lead.stale()
            && let Some(renewed) = self.renewed_marker(lead, &stale)
        {
            return Some(renewed);
        }
        self.keep_marker(lead);
        // Without a lease, the marker is not stored.
        if lead.fence().is_none() {
            return without_lease.entry();
        }
        Marker::new(Vec::new()).entry()
    }

    /// Stores a response below a new marker. Returns what the flight of the place above lands with:
    /// the marker, by which each follower finds its own response.
    ///
    /// The response is stored before its marker, so that the followers find it.
    pub(super) async fn store_below(
        &self,
        variant: &Variant,
        response: &CachedResponse,
        windows: Windows,
        lead: &Lead<CachedResponse>,
    ) -> Produced<CachedResponse> {
        let Variant { marker, place } = variant;
        let Some(entry) = marker.entry() else { return Produced::alone(Alone::Uncacheable) };
        // All responses below the marker share the marker, and each response may be of other
        // groups.
        let tagged = lead.take_tags();
        // Without a lease, the marker is not stored.
        if lead.fence().is_some() && !windows.fresh.is_zero() {
            let request = self.0.cache.request(place.key.clone()).kept(windows, tagged);
            if let Err(error) = request.insert(response).await {
                debug!(%error, "a variant is not stored");
            }
        }
        self.keep_marker(lead);
        Produced::value(entry)
    }

    /// Renews a marker that is refreshed early, without a call of the service.
    pub(super) fn renewed_marker(
        &self,
        lead: &Lead<CachedResponse>,
        stale: &Loaded<CachedResponse>,
    ) -> Option<CachedResponse> {
        Marker::of(&stale.value)?;
        self.keep_marker(lead);
        Some(lead.unchanged(stale.clone()))
    }

    /// Sets how long a marker is kept: longer than what is stored below it. A process remembers a
    /// marker for an outage, because a marker has a window for failures.
    fn keep_marker(&self, lead: &Lead<CachedResponse>) {
        let kept = self.0.terms.windows.fresh.saturating_add(self.0.max_stale);
        lead.keep(Windows::fresh(MARKER_LIFE.max(kept)).error(Duration::from_secs(1)));
    }
}

/// Adds a field to a digest, behind its length, so that no two lists of fields look the same.
fn add_field(digest: &mut Sha256, bytes: &[u8]) {
    digest.update((bytes.len() as u64).to_be_bytes());
    digest.update(bytes);
}

/// Normalises `Accept-Encoding`: case, spaces, empty elements, and the order of codings that are
/// equally welcome. Two requests of one form accept the same codings, with the same preferences.
fn encodings(lines: &[&[u8]]) -> Vec<u8> {
    let mut codings: Vec<Vec<u8>> = Vec::new();
    for line in lines {
        for coding in line.split(|byte| *byte == b',') {
            let mut coding = coding.to_ascii_lowercase();
            coding.retain(|byte| !matches!(byte, b' ' | b'\t'));
            if !coding.is_empty() {
                codings.push(coding);
            }
        }
    }
    codings.sort_unstable();
    codings.dedup();
    codings.join(&b","[..])
}
