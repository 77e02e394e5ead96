//! Sessions in a cookie. A real service keeps them in a store, and signs the cookie.

use axum::{
    extract::Request,
    http::{
        HeaderMap, HeaderValue,
        header::{CACHE_CONTROL, COOKIE, SET_COOKIE},
    },
    middleware::Next,
    response::Response,
};

/// The session of a request, as an extension.
#[derive(Clone)]
pub(crate) struct Session {
    pub(crate) user: String,
}

impl Session {
    /// Returns the plan of the user: the only property on which shared responses depend.
    pub(crate) fn plan(&self) -> &'static str {
        match &*self.user {
            "guest" => "guest",
            _ => "member",
        }
    }
}

/// Puts the session into the extensions of a request, in place of its cookies.
///
/// Without cookies the request takes part in sharing. The inner services read the extension, and so
/// does the `vary_by` of the layer.
pub(crate) async fn find(mut request: Request, next: Next) -> Response {
    let known = user(request.headers());
    request.headers_mut().remove(COOKIE);
    let is_new = known.is_none();
    let user = known.unwrap_or_else(|| "guest".to_owned());
    request.extensions_mut().insert(Session { user });
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    if is_new {
        headers.append(SET_COOKIE, HeaderValue::from_static("session=guest; HttpOnly"));
    }
    // The caches of others do not know the session. The layer has stored what it may share.
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private"));
    response
}

fn user(headers: &HeaderMap) -> Option<String> {
    let lines = headers.get_all(COOKIE).iter().filter_map(|line| line.to_str().ok());
    let mut cookies = lines.flat_map(|line| line.split(';'));
    cookies.find_map(|cookie| cookie.trim().strip_prefix("session=").map(str::to_owned))
}
