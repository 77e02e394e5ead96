//! Credentials that a callback provides at each connect.

use std::{io, sync::Mutex};

use crate::prelude::*;

/// The password that the callback provides, and how often it was asked.
#[derive(Clone, Default)]
struct Vault {
    password: Arc<Mutex<Option<String>>>,
    asked: Arc<AtomicUsize>,
}

impl Vault {
    fn set(&self, password: &str) {
        *self.password.lock().unwrap() = Some(password.to_owned());
    }

    async fn credentials(self) -> Result<(String, String), io::Error> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let password = self.password.lock().unwrap().clone();
        let password = password.ok_or_else(|| io::Error::other("the vault is sealed"))?;
        Ok(("shop".to_owned(), password))
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

async fn set_password(raw: &mut Raw, password: &str) {
    let rule = format!(">{password}");
    raw.run::<()>(&["ACL", "SETUSER", "shop", "reset", "on", &rule, "~*", "&*", "+@all"]).await;
}

/// A password is rotated while the service runs. Its connections stay, and new ones use the new
/// password.
#[tokio::test]
async fn a_rotated_password_needs_no_restart() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let vault = Vault::default();
    set_password(&mut raw, "one").await;
    vault.set("one");
    let provider = vault.clone();
    let backend = testkit::builder()
        .server(format!("redis://unknown:wrong@127.0.0.1:{}/", server.port()))
        .credentials(move || provider.clone().credentials())
        .build()
        .unwrap();
    backend.ping().await.unwrap();
    let locks = Locks::new(backend.clone(), "bellwether");
    let guard = locks.mutex("m").lock().await.unwrap();
    set_password(&mut raw, "two").await;
    vault.set("two");
    let before = vault.asked();
    for kind in ["normal", "pubsub"] {
        raw.kill_clients(kind).await;
    }
    assert!(comes_true(LIMIT, async || backend.ping().await.is_ok()).await);
    assert!(vault.asked() > before);
    guard.unlock().await.unwrap();
}

#[tokio::test]
async fn credentials_that_cannot_be_had_are_asked_for_again() {
    let server = RedisServer::start().await;
    let mut raw = server.raw().await;
    let vault = Vault::default();
    set_password(&mut raw, "one").await;
    let provider = vault.clone();
    let backend = RedisBackend::builder()
        .server(server.url())
        .credentials(move || provider.clone().credentials())
        .command_timeout(Duration::from_secs(1))
        .build()
        .unwrap();
    let error = format!("{:#}", backend.ping().await.unwrap_err());
    assert!(error.contains("credentials") && error.contains("the vault is sealed"), "{error}");
    vault.set("one");
    assert!(comes_true(LIMIT, async || backend.ping().await.is_ok()).await);
}

/// A panic ended the task of the connection. The next command started it again, which made hundreds
/// of attempts in a second, and each caller waited for the connect time-out.
#[tokio::test]
async fn a_panic_of_the_callback_is_a_failed_attempt() {
    for is_early in [true, false] {
        let server = RedisServer::start().await;
        set_password(&mut server.raw().await, "one").await;
        let asked = Arc::new(AtomicUsize::new(0));
        let is_well = Arc::new(AtomicBool::new(false));
        let counted = asked.clone();
        let well = is_well.clone();
        let backend = testkit::builder()
            .server(server.url())
            .credentials(move || {
                counted.fetch_add(1, Ordering::SeqCst);
                let panics = !well.load(Ordering::SeqCst);
                assert!(!(is_early && panics), "no early credentials");
                async move {
                    assert!(!panics, "no late credentials");
                    Ok::<_, io::Error>(("shop".to_owned(), "one".to_owned()))
                }
            })
            .connect_timeout(10 * LIMIT)
            .build()
            .unwrap();
        // The first call waits for the first attempt, and not for the connect time-out.
        let ping = timeout(LIMIT, backend.ping()).await.expect("the call waits for a connection");
        let error = format!("{:#}", ping.unwrap_err());
        let said = ["the callback for credentials panicked", "credentials", "127.0.0.1"];
        assert!(said.iter().all(|said| error.contains(said)), "{error}");
        assert!(error.contains(if is_early { "no early" } else { "no late" }), "{error}");
        let mutex = Locks::new(backend.clone(), "bellwether")
            .mutex("m")
            .wait_limit(Duration::from_millis(300));
        let locked = timeout(LIMIT, mutex.lock()).await.expect("the call outlasts its limit");
        assert!(format!("{:#}", locked.unwrap_err()).contains("panicked"));
        let before = asked.load(Ordering::SeqCst);
        let second = tokio::time::Instant::now() + Duration::from_secs(1);
        while tokio::time::Instant::now() < second {
            backend.ping().await.unwrap_err();
            tokio::task::yield_now().await;
        }
        let attempts = asked.load(Ordering::SeqCst) - before;
        assert!(attempts < 50, "{attempts} attempts in a second");
        is_well.store(true, Ordering::SeqCst);
        assert!(comes_true(LIMIT, async || backend.ping().await.is_ok()).await);
    }
}

#[tokio::test]
async fn each_node_of_a_cluster_is_logged_in_to() {
    let cluster = Cluster::start(2, 0).await;
    let vault = Vault::default();
    vault.set("one");
    for node in &cluster.nodes {
        let mut raw = node.raw().await;
        set_password(&mut raw, "one").await;
        raw.run::<()>(&["ACL", "SETUSER", "default", "off"]).await;
    }
    let provider = vault.clone();
    let backend = testkit::builder()
        .cluster(cluster.urls())
        .credentials(move || provider.clone().credentials())
        .build()
        .unwrap();
    backend.ping().await.unwrap();
}
