//! Keys and names as an operator writes them.

use std::time::Duration;

use bellwether::key::{Escaped, unescape};
use tokio::time::{Instant, timeout};

use crate::{Server, Usage, doctor};

/// How long a command looks for any key of the namespace.
const LOOK: Duration = Duration::from_secs(1);

/// Reads a name, or the form in which it is shown.
pub(crate) fn read_plain(text: &str, is_escaped: bool) -> Result<String, Usage> {
    if !is_escaped {
        return Ok(text.to_owned());
    }
    unescape(text).ok_or_else(|| {
        let forms = r"`\u{…}`, `\n` and `\\` are the escapes";
        Usage(format!("{} is no escaped name; {forms}", Escaped(text)))
    })
}

/// Reads a key, which may be the address of a stored response.
pub(crate) fn read(text: &str, is_escaped: bool) -> Result<String, Usage> {
    let key = read_plain(text, is_escaped)?;
    Ok(of_address(&key).unwrap_or(key))
}

/// Returns the key of a response, if this is its address. The HTTP layer has the scheme in the key
/// only if the target of a request names it, so two spaces stand behind the method.
fn of_address(address: &str) -> Option<String> {
    let (scheme, rest) = address.split_once("://")?;
    let port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return None,
    };
    let (host, path) = match rest.find(['/', '?']) {
        Some(at) if rest[at..].starts_with('/') => rest.split_at(at),
        _ => (rest, "/"),
    };
    // A fragment never reaches a server.
    let path = path.split('#').next().unwrap_or_default();
    let host = host.strip_suffix(port).unwrap_or(host).to_ascii_lowercase();
    Some(format!("GET  {host} {path}"))
}

/// Says why nothing may be known of a key.
pub(crate) async fn why_nothing(server: &Server, key: &str) -> String {
    let method = key.split(' ').next().unwrap_or_default();
    if matches!(method, "GET" | "HEAD") && !key.starts_with("GET  ") {
        return "  a key of the HTTP layer is `GET`, two spaces, host and path; give the \
                `https://` address in its place"
            .to_owned();
    }
    match has_keys(server).await {
        Some(true) => "  the namespace has other keys".to_owned(),
        Some(false) => "  the namespace has no key: is `--namespace` right?".to_owned(),
        None => "  whether the namespace has any key is not known".to_owned(),
    }
}

/// Looks for any key of the namespace. Returns `None` if that is not known: the user may not
/// search, there are several servers, or there are too many keys to look at.
pub(crate) async fn has_keys(server: &Server) -> Option<bool> {
    let urls = server.urls().ok()?;
    let [url] = urls.as_slice() else { return None };
    if server.cluster || server.master.is_some() {
        return None;
    }
    let mut connection = doctor::connect(url).await.ok()?;
    let pattern = format!("{}:*", server.namespace);
    let end = Instant::now() + LOOK;
    let mut cursor = "0".to_owned();
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(250);
        let step = scan.query_async::<(String, Vec<Vec<u8>>)>(&mut connection);
        let left = end.saturating_duration_since(Instant::now());
        let (next, found) = timeout(left, step).await.ok()?.ok()?;
        if !found.is_empty() {
            return Some(true);
        }
        if next == "0" {
            return Some(false);
        }
        cursor = next;
    }
}

/// Returns whether a cache with tags has stored anything in the namespace. `None` if that is not
/// known, as at several servers.
pub(crate) async fn has_tags(server: &Server) -> Option<bool> {
    let urls = server.urls().ok()?;
    let [url] = urls.as_slice() else { return None };
    if server.cluster || server.master.is_some() {
        return None;
    }
    let mut connection = doctor::connect(url).await.ok()?;
    let number = format!("{}:t:{{tags}}:n", server.namespace);
    redis::cmd("EXISTS").arg(number).query_async(&mut connection).await.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_key_of_its_response() {
        for (address, key) in [
            ("https://shop/products/1", "GET  shop /products/1"),
            ("http://Shop.example:80/a?b=c#d", "GET  shop.example /a?b=c"),
            ("https://shop:8443/a", "GET  shop:8443 /a"),
            ("https://shop", "GET  shop /"),
        ] {
            assert_eq!(of_address(address).as_deref(), Some(key), "{address}");
        }
        for other in ["product:1", "redis://shop/1", "GET  shop /products/1"] {
            assert_eq!(of_address(other), None, "{other}");
        }
    }
}
