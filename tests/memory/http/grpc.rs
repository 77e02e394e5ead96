//! gRPC passes through, with its trailers, over HTTP/2.

use std::convert::Infallible;

use bytes::{Buf, BufMut};
use futures_util::{StreamExt, future::join_all, stream::BoxStream};
use http::uri::PathAndQuery;
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::{
    Code, Status, Streaming,
    body::Body,
    client::{Grpc, GrpcService},
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    server,
};

use super::prelude::*;

const LIMIT: Duration = Duration::from_secs(10);

/// Messages that are plain text.
#[derive(Clone, Copy, Default)]
struct Text;

impl Codec for Text {
    type Encode = String;
    type Decode = String;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Text {
    type Item = String;
    type Error = Status;

    fn encode(&mut self, item: String, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(item.as_bytes());
        Ok(())
    }
}

impl Decoder for Text {
    type Item = String;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<String>, Status> {
        let bytes = from.copy_to_bytes(from.remaining());
        Ok(Some(String::from_utf8(bytes.to_vec()).unwrap()))
    }
}

/// Answers each message at once. The message `end` is an error, which is in the trailers.
async fn stream(
    request: tonic::Request<Streaming<String>>,
) -> Result<tonic::Response<BoxStream<'static, Result<String, Status>>>, Status> {
    let answers = request.into_inner().map(|message| match message?.as_str() {
        "end" => {
            let mut status = Status::not_found("the end");
            status.metadata_mut().insert("x-trailer", "told".parse().unwrap());
            Err(status)
        }
        message => Ok(format!("got {message}")),
    });
    let mut response = tonic::Response::new(answers.boxed());
    // It may say that it is for all.
    response.metadata_mut().insert("cache-control", "public, max-age=60".parse().unwrap());
    Ok(response)
}

/// Returns a connection to the service under the layer.
async fn connect(
    layer: &BellwetherLayer<Http>,
) -> Grpc<impl GrpcService<Body, ResponseBody = Incoming> + Clone> {
    let inner = service_fn(|request: Request<Incoming>| async move {
        let mut grpc = server::Grpc::new(Text);
        Ok::<_, Infallible>(match request.uri().path() {
            "/shop.Shop/Stream" => grpc.streaming(service_fn(stream), request).await,
            _ => Response::new(Body::empty()),
        })
    });
    let service = TowerToHyperService::new(layer.layer(inner));
    let (here, there) = tokio::io::duplex(4096);
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    tokio::spawn(server.serve_connection(TokioIo::new(there), service));
    let client = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(here));
    let (sender, connection) = client.await.unwrap();
    tokio::spawn(connection);
    let service = service_fn(move |request: Request<Body>| sender.clone().send_request(request));
    Grpc::with_origin(service, "http://shop.example".parse().unwrap())
}

fn layers() -> [(BellwetherLayer<Http>, Cache<CachedResponse>); 2] {
    [Policy::default(), Policy::rfc9111()].map(|policy| {
        let cache = cache(&MemoryBackend::new());
        (http_layer(cache.clone()).policy(policy), cache)
    })
}

#[tokio::test]
async fn a_grpc_stream_flows_both_ways_to_its_trailers() {
    for (layer, cache) in layers() {
        let client = connect(&layer).await;
        let streams = (0..5).map(|_| {
            let mut client = client.clone();
            async move {
                let (sender, messages) = mpsc::unbounded_channel();
                let request = tonic::Request::new(UnboundedReceiverStream::new(messages));
                client.ready().await.map_err(|_| "not ready").unwrap();
                let path = PathAndQuery::from_static("/shop.Shop/Stream");
                let answer = timeout(LIMIT, client.streaming(request, path, Text)).await.unwrap();
                let mut answers = answer.unwrap().into_inner();
                // Each message is answered before the next is sent, so none is held back.
                for round in 0..20 {
                    sender.send(format!("message {round}")).unwrap();
                    let answer = timeout(LIMIT, answers.message()).await.unwrap().unwrap();
                    assert_eq!(answer.unwrap(), format!("got message {round}"));
                }
                sender.send("end".to_owned()).unwrap();
                let status = timeout(LIMIT, answers.message()).await.unwrap().unwrap_err();
                assert_eq!((status.code(), status.message()), (Code::NotFound, "the end"));
                assert_eq!(status.metadata().get("x-trailer").unwrap(), "told");
            }
        });
        join_all(streams).await;
        let stats = cache.stats();
        assert_eq!((stats.passed, stats.loads, stats.stored), (5, 0, 0), "{stats:?}");
    }
}
