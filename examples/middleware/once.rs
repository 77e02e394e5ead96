//! Shows what reaches a handler, and what a client receives.

use std::net::SocketAddr;

use bellwether::BoxError;
use reqwest::{Client, Response};

use crate::service::{PAGE, Shop};

/// A request to show, with what is expected of it.
struct Shown {
    what: &'static str,
    path: &'static str,
    headers: &'static [(&'static str, &'static str)],
    /// How many requests of this kind are sent at once.
    at_once: usize,
    /// How many of them reach a handler.
    calls: u64,
}

const GUEST: (&str, &str) = ("cookie", "session=guest");
const ANN: (&str, &str) = ("cookie", "session=ann");
const BEN: (&str, &str) = ("cookie", "session=ben");
const GZIP: (&str, &str) = ("accept-encoding", "gzip");

/// Returns the requests to show. All but the first kind are sent alone.
fn requests() -> [Shown; 8] {
    let shown = |what, path, headers, calls| Shown { what, path, headers, at_once: 1, calls };
    [
        Shown { at_once: 20, ..shown("20 guests at once", "/catalog", &[GUEST], 1) },
        shown("a first visit: a cookie", "/catalog", &[], 0),
        shown("in gzip: the same entry", "/catalog", &[GUEST, GZIP], 0),
        shown("from a web page: CORS", "/catalog", &[GUEST, ("origin", PAGE)], 0),
        shown("a member: other prices", "/catalog", &[ANN], 1),
        shown("another member, in gzip", "/catalog", &[BEN, GZIP], 0),
        shown("the basket of a member", "/basket", &[ANN], 1),
        shown("the basket of another", "/basket", &[BEN], 1),
    ]
}

/// Sends the requests, and prints what came. Returns an error if another number reached a handler.
pub(crate) async fn show(address: SocketAddr, shop: &Shop) -> Result<(), BoxError> {
    let client = Client::builder().no_proxy().build()?;
    println!("request                   calls  what came");
    for shown in requests() {
        let before = shop.calls();
        let answer = shown.send(&client, address).await?;
        let calls = shop.calls() - before;
        println!("{:<25} {calls:>5}  {}", shown.what, told(&answer));
        if calls != shown.calls {
            return Err(format!("{} calls were expected", shown.calls).into());
        }
    }
    Ok(())
}

impl Shown {
    /// Sends the requests, and returns the answer to the last one.
    async fn send(&self, client: &Client, address: SocketAddr) -> Result<Response, BoxError> {
        let request = || {
            let request = client.get(format!("http://{address}{}", self.path));
            let headers = self.headers.iter();
            headers.fold(request, |request, (name, value)| request.header(*name, *value))
        };
        let others: Vec<_> = (1..self.at_once).map(|_| tokio::spawn(request().send())).collect();
        let answer = request().send().await?.error_for_status()?;
        for other in others {
            other.await??.error_for_status()?;
        }
        Ok(answer)
    }
}

/// Returns the headers that the middlewares and the layer have added.
fn told(answer: &Response) -> String {
    let names = ["cache-status", "content-encoding", "access-control-allow-origin", "set-cookie"];
    let values = names.iter().filter_map(|name| answer.headers().get(*name)?.to_str().ok());
    values.collect::<Vec<_>>().join(" | ")
}
