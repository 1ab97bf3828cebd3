//! Messages and service of gRPC's health protocol, `grpc.health.v1.Health`, which balancers and Kubernetes ask.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::body::Body;
use tonic::codegen::{BoxFuture, BoxStream, Service, http};
use tonic::server::{Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};

use crate::codec::CappedCodec;

/// Package and name of the service: the first part of its methods' paths.
pub const SERVICE: &str = "grpc.health.v1.Health";

/// Asks for the health of a service; an empty name is the server.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub struct HealthCheckRequest {
    /// Name of the service.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// The health of a service.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct HealthCheckResponse {
    /// One of [`ServingStatus`].
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// Whether a service takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    /// The health of the service is not known.
    Unknown = 0,
    /// The service takes requests.
    Serving = 1,
    /// The service takes no requests.
    NotServing = 2,
    /// There is no such service; only [`Health::watch`] says so.
    ServiceUnknown = 3,
}

/// Handles the requests of the health service.
#[tonic::async_trait]
pub trait Health: Send + Sync + 'static {
    /// Returns the health of a service.
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status>;

    /// Returns the health of a service, now and whenever it changes.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<BoxStream<HealthCheckResponse>>, Status>;
}

/// The service.
#[derive(Debug)]
pub struct HealthServer<T>(Arc<T>);

impl<T> HealthServer<T> {
    /// Creates it.
    pub fn new(inner: T) -> Self {
        Self(Arc::new(inner))
    }
}

impl<T> Clone for HealthServer<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> NamedService for HealthServer<T> {
    const NAME: &'static str = SERVICE;
}

impl<T: Health> UnaryService<HealthCheckRequest> for HealthServer<T> {
    type Response = HealthCheckResponse;
    type Future = BoxFuture<Response<HealthCheckResponse>, Status>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.check(request).await })
    }
}

impl<T: Health> ServerStreamingService<HealthCheckRequest> for HealthServer<T> {
    type Response = HealthCheckResponse;
    type ResponseStream = BoxStream<HealthCheckResponse>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { inner.watch(request).await })
    }
}

impl<T: Health, B> Service<http::Request<B>> for HealthServer<T>
where
    B: tonic::codegen::Body + Send + 'static,
    B::Error: Into<tonic::codegen::StdError> + Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let own = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(CappedCodec::default());
            let method = request.uri().path().rsplit('/').next();
            Ok(match method {
                Some("Check") => grpc.unary(own, request).await,
                Some("Watch") => grpc.server_streaming(own, request).await,
                _ => Status::unimplemented("the service has the methods Check and Watch").into_http(),
            })
        })
    }
}
