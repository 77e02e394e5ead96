//! Over TLS everything works as without it, and an untrusted server is refused with a reason.
//!
//! The trusted roots come from the environment, which must not change while a test process runs.
//! The client is therefore this test binary once more.

use std::{
    env, fs,
    io::Write,
    net::TcpListener,
    path::{Path, PathBuf},
    process::Stdio,
    thread,
};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tempfile::TempDir;
use testkit::Port;

use crate::prelude::*;

/// The environment variables with the task of a client and its URL.
const TASK: &str = "BELLWETHER_TLS_TASK";
const URL: &str = "BELLWETHER_TLS_URL";

/// A root that only the tests trust, and a certificate of a server under it.
struct Certificates {
    directory: TempDir,
}

impl Certificates {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let mut root = CertificateParams::default();
        root.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = CertifiedIssuer::self_signed(root, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let server = CertificateParams::new(names).unwrap().signed_by(&key, &root).unwrap();
        let here = Self { directory };
        fs::write(here.root(), root.pem()).unwrap();
        fs::write(here.file("server.pem"), server.pem()).unwrap();
        fs::write(here.file("server.key"), key.serialize_pem()).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut client = CertificateParams::default();
        // The server takes a subject that is its issuer for the root itself.
        client.distinguished_name.push(DnType::CommonName, "shop");
        let client = client.signed_by(&key, &root).unwrap();
        fs::write(here.file("client.pem"), client.pem()).unwrap();
        fs::write(here.file("client.key"), key.serialize_pem()).unwrap();
        here
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn root(&self) -> PathBuf {
        self.file("root.pem")
    }

    /// Returns the configuration of a client that trusts the root, with its certificate or not.
    fn config(&self, shows: bool) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.root()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        if !shows {
            return Arc::new(builder.with_no_client_auth());
        }
        let certificate = CertificateDer::from_pem_file(self.file("client.pem")).unwrap();
        let key = PrivateKeyDer::from_pem_file(self.file("client.key")).unwrap();
        Arc::new(builder.with_client_auth_cert(vec![certificate], key).unwrap())
    }

    /// Returns the arguments that make a server listen for TLS, and its port.
    fn arguments(&self) -> (Vec<String>, Port) {
        let port = Port::free();
        let path = |name| self.file(name).to_str().unwrap().to_owned();
        let settings = [
            ("--tls-port", port.number().to_string()),
            ("--tls-cert-file", path("server.pem")),
            ("--tls-key-file", path("server.key")),
            ("--tls-ca-cert-file", path("root.pem")),
            ("--tls-auth-clients", "no".to_owned()),
        ];
        let arguments =
            settings.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        (arguments, port)
    }
}

/// Runs a client that trusts only these roots.
async fn client(task: &str, port: u16, roots: &Path) {
    let client = testkit::rerun("tls::the_client")
        .env(TASK, task)
        .env(URL, format!("rediss://localhost:{port}/"))
        .env("SSL_CERT_FILE", roots)
        .env_remove("SSL_CERT_DIR")
        .stdin(Stdio::null())
        .output();
    let output = tokio::task::spawn_blocking(move || client.unwrap()).await.unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{told}", String::from_utf8_lossy(&output.stdout));
}

/// The client process. Returns at once unless this process was started as a client.
#[tokio::test]
async fn the_client() {
    let (Ok(task), Ok(url)) = (env::var(TASK), env::var(URL)) else { return };
    match task.as_str() {
        "server" => works(|| testkit::open(&url), Some(&url)).await,
        // The client library, which would cut the connections, does not pass over the root.
        "roots" => works(|| testkit::open(&url), None).await,
        "cluster" => works(|| testkit::builder().cluster([&url]).build().unwrap(), None).await,
        "refused" => {
            let error = RedisBackend::open(&url).unwrap().ping().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Backend);
            let told = format!("{error:?}");
            assert!(told.contains("invalid peer certificate"), "{told}");
            assert!(told.contains("SSL_CERT_FILE") && !told.contains("`redis:`"), "{told}");
        }
        "insecure" => {
            let error = RedisBackend::open(&format!("{url}#insecure")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidConfig);
        }
        other => panic!("{other}"),
    }
}

/// Checks entries, locks, pushes and reconnects.
async fn works(open: impl Fn() -> RedisBackend, url: Option<&str>) {
    let [here, there] = [open(), open()];
    let name = Name::new(&Namespace::standard(), Family::Lock, &"pushed".into(), 512).unwrap();
    let claim = Claim::new(name.clone(), Mode::Exclusive, LIMIT, LIMIT);
    let next = Claim::new(name, Mode::Exclusive, LIMIT, LIMIT);
    let mut changes = testkit::changes_for(&there, &next).await.unwrap();
    here.acquire(&claim).await.unwrap();
    held(&there, &next).await;
    assert!(here.release(&claim).await.unwrap());
    let change = timeout(LIMIT, changes.next()).await.unwrap();
    assert!(matches!(&change, Change::Granted(_)) && change.addressee() == Some(next.owner));
    there.release(&next).await.unwrap();
    let cache = Cache::<String>::builder(here.clone(), "bellwether").build().unwrap();
    for expected in [Source::Led, Source::Hit] {
        let load = |_| async { Ok::<_, std::io::Error>("x".to_owned()) };
        assert_eq!(cache.request("k").load(load).await.unwrap().source, expected);
    }
    let [here, there] = [Locks::new(here, "bellwether"), Locks::new(there, "bellwether")];
    let held = here.mutex("m").lock().await.unwrap();
    let waiting = tokio::spawn(async move { there.mutex("m").lock().await.unwrap().fence() });
    if let Some(url) = url {
        let mut raw = testkit::patient(url).await.unwrap();
        for kind in ["normal", "pubsub"] {
            let mut kill = redis::cmd("CLIENT");
            let _: u64 = kill
                .arg(&["KILL", "TYPE", kind, "SKIPME", "yes"])
                .query_async(&mut raw)
                .await
                .unwrap();
        }
        assert!(comes_true(LIMIT, async || here.mutex("n").try_lock().await.is_ok()).await);
    }
    let fence = held.fence();
    held.unlock().await.unwrap();
    assert!(timeout(LIMIT, waiting).await.unwrap().unwrap() > fence);
}

#[tokio::test]
async fn a_server_works_over_tls() {
    let certificates = Certificates::new();
    let (arguments, port) = certificates.arguments();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let _server = RedisServer::start_with(&arguments).await;
    client("server", port.number(), &certificates.root()).await;
    client("insecure", port.number(), &certificates.root()).await;
    client("refused", port.number(), &Certificates::new().root()).await;
}

/// One root of the system that could not be read failed each connection.
#[tokio::test]
async fn a_root_that_cannot_be_read_is_passed_over() {
    let certificates = Certificates::new();
    let (arguments, port) = certificates.arguments();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let _server = RedisServer::start_with(&arguments).await;
    let unreadable = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    let roots = certificates.file("roots.pem");
    let readable = fs::read_to_string(certificates.root()).unwrap();
    fs::write(&roots, [unreadable, &readable].concat()).unwrap();
    client("roots", port.number(), &roots).await;
}

#[tokio::test]
async fn the_nodes_of_a_cluster_work_over_tls_like_the_first() {
    let certificates = Certificates::new();
    let (arguments, port) = certificates.arguments();
    let mut arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    // Without this argument, the nodes announce only the plain port to each other and to clients.
    arguments.extend(["--tls-cluster", "yes"]);
    let _cluster = Cluster::start_with(1, 0, &arguments).await;
    client("cluster", port.number(), &certificates.root()).await;
}

/// A server that asks for certificates refused each backend.
#[tokio::test]
async fn a_client_certificate_is_shown() {
    let certificates = Certificates::new();
    let (mut arguments, port) = certificates.arguments();
    *arguments.last_mut().unwrap() = "yes".to_owned();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let _server = RedisServer::start_with(&arguments).await;
    let url = format!("rediss://localhost:{}/", port.number());
    let open = |shows| {
        let builder = testkit::builder().server(&url);
        builder.tls_config(certificates.config(shows)).build().unwrap()
    };
    works(|| open(true), None).await;
    let error = open(false).ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
}

/// The error was "deadline has elapsed", which names neither the phase nor the port. That of a
/// sentinel was "no sentinel replied in time", and that of a node "Connection reset by peer".
#[tokio::test]
async fn a_port_of_the_other_kind_is_named_in_the_error() {
    let certificates = Certificates::new();
    let (arguments, tls) = certificates.arguments();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let server = RedisServer::start_with(&arguments).await;
    let [port, tls_port] = [server.port(), tls.number()];
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let answering = plain.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in plain.incoming() {
            // As Redis answers a greeting with the byte of a new line.
            let _ = stream.unwrap().write_all(b"-ERR unknown command\r\n");
        }
    });
    let builder = RedisBackend::builder;
    for (builder, said) in [
        (builder().server(format!("rediss://127.0.0.1:{port}/")), "without TLS"),
        (builder().server(format!("rediss://127.0.0.1:{answering}/")), "without TLS"),
        (builder().server(format!("redis://127.0.0.1:{tls_port}/")), "for TLS"),
        (builder().cluster([format!("rediss://127.0.0.1:{port}/")]), "without TLS"),
        (builder().cluster([format!("redis://127.0.0.1:{tls_port}/")]), "for TLS"),
        (builder().sentinels([format!("rediss://127.0.0.1:{port}/")], "m"), "without TLS"),
        (builder().sentinels([format!("redis://127.0.0.1:{tls_port}/")], "m"), "for TLS"),
    ] {
        let builder = builder.connect_timeout(Duration::from_secs(1)).command_timeout(LIMIT);
        let error = builder.build().unwrap().ping().await.unwrap_err();
        let error = format!("{error:#}");
        assert!(error.contains(said) && error.contains("127.0.0.1:"), "{said}: {error}");
    }
}
