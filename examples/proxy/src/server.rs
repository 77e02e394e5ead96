//! Accepts connections, and ends them gracefully.

use std::{sync::Arc, time::Duration};

use bellwether::BoxError;
use http::{Request, Response};
use hyper::body::{Body, Incoming};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::{conn::auto::Builder, graceful::GracefulShutdown},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    signal,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tower::Service;

/// How long a client may take to send the head of a request.
const HEAD_LIMIT: Duration = Duration::from_secs(10);

/// Serves HTTP/1.1 and HTTP/2 on one port.
pub(crate) struct Server {
    builder: Builder<TokioExecutor>,
    /// Beyond it, connections wait in the queue of the listener.
    connections: Arc<Semaphore>,
    grace: Duration,
}

impl Server {
    pub(crate) fn new(connections: usize, grace: Duration) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_LIMIT);
        builder.http2().timer(TokioTimer::new());
        let connections = Semaphore::new(connections.min(Semaphore::MAX_PERMITS));
        Self { builder, connections: Arc::new(connections), grace }
    }

    /// Serves until `end`, then waits for the running requests.
    pub(crate) async fn serve<S, B>(
        &self,
        listener: TcpListener,
        service: S,
        end: impl Future<Output = ()>,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
    {
        let graceful = GracefulShutdown::new();
        tokio::pin!(end);
        loop {
            tokio::select! {
                Some(accepted) = self.accept(&listener) => {
                    let (stream, permit) = accepted;
                    let service = TowerToHyperService::new(service.clone());
                    let connection = self.builder.serve_connection(TokioIo::new(stream), service);
                    let connection = graceful.watch(connection.into_owned());
                    tokio::spawn(async move {
                        // The client ended it, or broke it off.
                        let _ = connection.await;
                        drop(permit);
                    });
                }
                () = &mut end => break,
            }
        }
        drop(listener);
        if timeout(self.grace, graceful.shutdown()).await.is_err() {
            eprintln!("proxy: some requests did not end in time");
        }
    }

    /// Accepts a connection once there is room for it. Returns `None` if that failed.
    async fn accept(&self, listener: &TcpListener) -> Option<(TcpStream, impl Send + 'static)> {
        let permit = self.connections.clone().acquire_owned().await.ok()?;
        match listener.accept().await {
            Ok((stream, _)) => {
                // Without it, a small response may wait for an acknowledgement.
                let _ = stream.set_nodelay(true);
                Some((stream, permit))
            }
            Err(error) => {
                eprintln!("proxy: a connection could not be accepted: {error:#}");
                // There may be no file descriptor left for the moment.
                sleep(Duration::from_millis(50)).await;
                None
            }
        }
    }
}

/// Completes on Ctrl-C and on SIGTERM, the signal of a deployment.
pub(crate) async fn told_to_end() {
    #[cfg(unix)]
    let terminated = async {
        match signal::unix::signal(signal::unix::SignalKind::terminate()) {
            Ok(mut terminate) => terminate.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<Option<()>>();
    tokio::select! {
        Ok(()) = signal::ctrl_c() => {}
        _ = terminated => {}
    }
    eprintln!("proxy: ending");
}
