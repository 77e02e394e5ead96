//! The command line.

use std::{ffi::OsString, fmt::Display, net::SocketAddr, process, str::FromStr, time::Duration};

use bellwether::BoxError;
use http::{Uri, uri::Scheme};
use lexopt::Arg::{Long, Short};

const HELP: &str = "\
A reverse proxy that shares the responses of an origin, also with other proxies over one Redis.

Usage: proxy --upstream <URL> [OPTIONS]

Options:
      --upstream <URL>     The origin, such as http://127.0.0.1:8080
      --upstream-http2     Speak HTTP/2 to the origin, without TLS
      --listen <ADDRESS>   Where to listen, for HTTP/1.1 and HTTP/2 [default: 127.0.0.1:3000]
      --metrics <ADDRESS>  Where to serve /metrics [default: 127.0.0.1:3001]
      --redis <URL>        Share responses through this server [default: the memory of the process]
      --namespace <NAME>   The name of the origin in that server [default: proxy]
      --policy <POLICY>    What is shared: careful, rfc9111, or off [default: careful]
      --directives <MODE>  No-cache and the like of clients: ignore, pass [default: ignore]
      --lifetime <SECONDS> The lifetime of responses that name none [default: not shared]
      --ttl <SECONDS>      The longest lifetime of any response [default: 86400]
      --stale <SECONDS>    How long after it a response stands in for a failure [default: 600]
      --purge-key <KEY>    Let PURGE requests with this X-Purge-Key end a page, or the groups in
                           their Cache-Groups and Surrogate-Key
      --max-body <BYTES>   The largest response that is shared [default: 1048576]
      --loads <N>          How many shared requests go to the origin at once [default: 1024]
      --connections <N>    How many connections are served at once [default: 4096]
      --timeout <SECONDS>  How long the origin may take to answer [default: 30]
      --grace <SECONDS>    How long requests may take once the proxy ends [default: 10]
      --quiet              Write no access log
      --once               Start an origin, ask it twice through the proxy, and exit
  -h, --help               Print this help
";

/// What is shared.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Policy {
    Careful,
    Rfc9111,
    /// Nothing.
    Off,
}

#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) upstream: Uri,
    pub(crate) upstream_http2: bool,
    pub(crate) listen: SocketAddr,
    pub(crate) metrics: SocketAddr,
    pub(crate) redis: Option<String>,
    pub(crate) namespace: String,
    pub(crate) policy: Policy,
    pub(crate) ignores_reloads: bool,
    pub(crate) lifetime: Option<Duration>,
    pub(crate) ttl: Duration,
    pub(crate) stale: Duration,
    pub(crate) purge_key: Option<String>,
    pub(crate) max_body: usize,
    pub(crate) loads: usize,
    pub(crate) connections: usize,
    pub(crate) timeout: Duration,
    pub(crate) grace: Duration,
    pub(crate) quiet: bool,
    pub(crate) once: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            upstream: Uri::default(),
            upstream_http2: false,
            listen: ([127, 0, 0, 1], 3000).into(),
            metrics: ([127, 0, 0, 1], 3001).into(),
            redis: None,
            namespace: "proxy".to_owned(),
            policy: Policy::Careful,
            // They are advisory (RFC 9111, section 5.2.1), and each client could make the origin
            // work as often as it likes.
            ignores_reloads: true,
            lifetime: None,
            ttl: Duration::from_secs(86_400),
            stale: Duration::from_secs(600),
            purge_key: None,
            max_body: 1 << 20,
            loads: 1024,
            connections: 4096,
            timeout: Duration::from_secs(30),
            grace: Duration::from_secs(10),
            quiet: false,
            once: false,
        }
    }
}

impl Options {
    /// Reads the command line. `--help` is printed, and ends the process.
    pub(crate) fn read() -> Result<Self, BoxError> {
        let mut parser = lexopt::Parser::from_env();
        let mut options = Self::default();
        while let Some(argument) = parser.next()? {
            let name = match argument {
                Long(name) => name.to_owned(),
                Short('h') => "help".to_owned(),
                other => return Err(other.unexpected().into()),
            };
            match name.as_str() {
                "upstream-http2" => options.upstream_http2 = true,
                "quiet" => options.quiet = true,
                "once" => options.once = true,
                "help" => {
                    print!("{HELP}");
                    process::exit(0);
                }
                _ => options.set(&name, || Ok(parser.value()?))?,
            }
        }
        if !options.once && options.upstream.scheme() != Some(&Scheme::HTTP) {
            return Err("--upstream takes the address of an origin, such as http://host:80".into());
        }
        Ok(options)
    }

    fn set(
        &mut self,
        name: &str,
        value: impl FnOnce() -> Result<OsString, BoxError>,
    ) -> Result<(), BoxError> {
        match name {
            "upstream" => self.upstream = parsed(name, value()?)?,
            "listen" => self.listen = parsed(name, value()?)?,
            "metrics" => self.metrics = parsed(name, value()?)?,
            "redis" => self.redis = Some(parsed(name, value()?)?),
            "namespace" => self.namespace = parsed(name, value()?)?,
            "policy" => self.policy = parsed(name, value()?)?,
            "directives" => self.ignores_reloads = ignores(&parsed::<String>(name, value()?)?)?,
            "lifetime" => self.lifetime = Some(seconds(name, value()?)?),
            "ttl" => self.ttl = seconds(name, value()?)?,
            "stale" => self.stale = seconds(name, value()?)?,
            "purge-key" => self.purge_key = Some(parsed(name, value()?)?),
            "max-body" => self.max_body = parsed(name, value()?)?,
            "loads" => self.loads = parsed(name, value()?)?,
            "connections" => self.connections = parsed(name, value()?)?,
            "timeout" => self.timeout = seconds(name, value()?)?,
            "grace" => self.grace = seconds(name, value()?)?,
            _ => return Err(format!("there is no option --{name}; see --help").into()),
        }
        Ok(())
    }
}

impl FromStr for Policy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "careful" => Ok(Self::Careful),
            "rfc9111" => Ok(Self::Rfc9111),
            "off" => Ok(Self::Off),
            _ => Err("careful, rfc9111 and off are the policies"),
        }
    }
}

fn ignores(text: &str) -> Result<bool, BoxError> {
    match text {
        "ignore" => Ok(true),
        "pass" => Ok(false),
        _ => Err("--directives: ignore and pass are the modes".into()),
    }
}

fn parsed<T>(name: &str, value: OsString) -> Result<T, BoxError>
where
    T: FromStr<Err: Display>,
{
    let text = value.into_string().map_err(|value| format!("--{name}: {value:?} is not text"))?;
    text.parse().map_err(|error| format!("--{name}: {error}").into())
}

fn seconds(name: &str, value: OsString) -> Result<Duration, BoxError> {
    parsed::<f64>(name, value).and_then(|seconds| Ok(Duration::try_from_secs_f64(seconds)?))
}
