//! The URLs of servers, and the parts of a URL that may be shown. A password is never shown.

use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::Usage;

/// Shown in place of a URL that cannot be read, because any part of such a text may be a password.
const UNREADABLE: &str = "a URL that cannot be read";

/// Splits texts at commas into URLs.
///
/// Each URL has a scheme. So a comma in a password does not make a second URL, of which a part of
/// the password would be shown.
pub(crate) fn split(texts: &[String]) -> Result<Vec<String>, Usage> {
    let mut urls = Vec::new();
    for text in texts {
        urls.extend(text.split(',').map(str::to_owned));
    }
    match urls.iter().position(|url| !url.contains("://")) {
        None => Ok(urls),
        Some(_) if urls.len() == 1 => Err(Usage(
            "the URL has no scheme; put `redis://` in front of it, or `rediss://` for TLS".into(),
        )),
        Some(at) => Err(Usage(format!(
            "URL {} of {} has no scheme, such as `redis://`; within a URL, such as in a password, \
             write a comma as `%2C`",
            at + 1,
            urls.len()
        ))),
    }
}

/// Returns the scheme, the host, the port and the database of a URL, if it can be read.
pub(crate) fn shown(url: &str) -> String {
    let Ok(info) = url.into_connection_info() else { return UNREADABLE.to_owned() };
    let (scheme, host, port) = match info.addr() {
        ConnectionAddr::Tcp(host, port) => ("redis", host, port),
        ConnectionAddr::TcpTls { host, port, .. } => ("rediss", host, port),
        ConnectionAddr::Unix(path) => return format!("redis+unix://{}", path.display()),
        _ => return UNREADABLE.to_owned(),
    };
    let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
    format!("{scheme}://{host}:{port}/{}", info.redis_settings().db())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_never_shown() {
        for (url, expected) in [
            ("redis://shop:secret@10.0.0.1:6379/3", "redis://10.0.0.1:6379/3"),
            ("redis://:secret@localhost", "redis://localhost:6379/0"),
            ("redis://:secret@[::1]:7000", "redis://[::1]:7000/0"),
            ("redis+unix:///s.sock?pass=secret", "redis+unix:///s.sock"),
            ("unix:///s.sock?user=shop&pass=secret&db=2", "redis+unix:///s.sock"),
            ("redis://:sec@ret@10.0.0.1:x", UNREADABLE),
            ("redis://:12/secret@10.0.0.1", UNREADABLE),
            ("shop:secret@10.0.0.1", UNREADABLE),
            ("http://:secret@10.0.0.1", UNREADABLE),
        ] {
            assert_eq!(shown(url), expected, "{url}");
        }
    }

    #[test]
    fn a_comma_in_a_password_makes_no_second_url() {
        let urls = split(&["redis://a,redis://b".to_owned()]).unwrap();
        assert_eq!(urls.len(), 2);
        for url in ["redis://shop:12,secret@10.0.0.1", "redis://:pa,ss@10.0.0.1", "redis://a,b"] {
            let error = split(&[url.to_owned()]).unwrap_err().to_string();
            assert!(error.contains("%2C") && !error.contains("secret"), "{url}: {error}");
        }
        let error = split(&["localhost".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("put `redis://` in front") && !error.contains("localhost"));
    }
}
