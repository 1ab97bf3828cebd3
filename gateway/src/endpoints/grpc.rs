//! The Open Inference Protocol v2 over gRPC, with Triton's extensions. It has the port of the REST interface: connections
//! that begin with HTTP/2 carry it. Keys, limits, budgets and failures are those of any request.

mod describe;
mod health_check;
mod infer;

use std::pin::Pin;
use std::sync::Arc;

use axum::Router;
use axum::http::StatusCode;
use futures::Stream;
use kaskade_oip::SERVICE;
use kaskade_oip::health::{self, HealthServer};
use kaskade_oip::proto::grpc_inference_service_server::{GrpcInferenceService, GrpcInferenceServiceServer};
use kaskade_oip::proto::{
    ModelConfigRequest, ModelConfigResponse, ModelInferRequest, ModelInferResponse, ModelMetadataRequest,
    ModelMetadataResponse, ModelReadyRequest, ModelReadyResponse, ModelStatisticsRequest,
    ModelStatisticsResponse, ModelStreamInferResponse, RepositoryIndexRequest, RepositoryIndexResponse,
    ServerLiveRequest, ServerLiveResponse, ServerMetadataRequest, ServerMetadataResponse, ServerReadyRequest,
    ServerReadyResponse,
};
use tonic::codec::CompressionEncoding;
use tonic::{Request, Response, Status, Streaming};

use crate::endpoints::health::{not_live, not_ready};
use crate::endpoints::oip::EXTENSIONS;
use crate::http::failure::Failure;
use crate::http::grpc_status;
use crate::state::GatewayState;

/// The methods of the service.
const METHODS: [&str; 10] = [
    "ServerLive",
    "ServerReady",
    "ServerMetadata",
    "ModelReady",
    "ModelMetadata",
    "ModelConfig",
    "ModelStatistics",
    "ModelInfer",
    "ModelStreamInfer",
    "RepositoryIndex",
];

/// Metadata of the answer of `ModelReady` with the reason, if the model is not ready.
const NOT_READY_REASON: &str = "kaskade-reason";

/// Returns the routes.
pub(crate) fn routes(shared: &Arc<GatewayState>) -> Router<Arc<GatewayState>> {
    let service = GrpcInferenceServiceServer::new(Service {
        shared: Arc::clone(shared),
    });
    let service = service
        .max_decoding_message_size(shared.limits.max_body)
        .accept_compressed(CompressionEncoding::Gzip)
        .accept_compressed(CompressionEncoding::Deflate)
        .send_compressed(CompressionEncoding::Gzip)
        .send_compressed(CompressionEncoding::Deflate);
    let health = HealthServer::new(health_check::HealthCheck::new(shared));
    // Each by its name: the service answers one that it does not have without a message.
    METHODS
        .into_iter()
        .fold(Router::new(), |router, method| {
            router.route_service(&format!("/{SERVICE}/{method}"), service.clone())
        })
        .route_service(&format!("/{}/{{method}}", health::SERVICE), health)
}

/// The service.
struct Service {
    shared: Arc<GatewayState>,
}

fn answer<T>(result: Result<T, Failure>) -> Result<Response<T>, Status> {
    result
        .map(Response::new)
        .map_err(|failure| grpc_status::of(&failure))
}

/// Returns a version, if the request names one.
fn named(version: &str) -> Option<&str> {
    Some(version).filter(|version| !version.is_empty())
}

#[tonic::async_trait]
impl GrpcInferenceService for Service {
    async fn server_live(
        &self,
        _: Request<ServerLiveRequest>,
    ) -> Result<Response<ServerLiveResponse>, Status> {
        let live = not_live(&self.shared).await.is_none();
        answer(Ok(ServerLiveResponse { live }))
    }

    async fn server_ready(
        &self,
        _: Request<ServerReadyRequest>,
    ) -> Result<Response<ServerReadyResponse>, Status> {
        let ready = not_ready(&self.shared).is_none();
        answer(Ok(ServerReadyResponse { ready }))
    }

    async fn model_ready(
        &self,
        request: Request<ModelReadyRequest>,
    ) -> Result<Response<ModelReadyResponse>, Status> {
        let asked = request.into_inner();
        let reason = describe::not_ready(&self.shared, &asked.name, named(&asked.version));
        let reason = match reason {
            Ok(reason) => reason,
            // As Triton answers for a model or a version that it does not have.
            Err(failure) if failure.status == StatusCode::NOT_FOUND => Some(failure.to_string()),
            Err(failure) => return Err(grpc_status::of(&failure)),
        };
        let mut response = Response::new(ModelReadyResponse {
            ready: reason.is_none(),
        });
        // The message has no field for it.
        if let Some(reason) = reason.and_then(|reason| reason.parse().ok()) {
            response.metadata_mut().insert(NOT_READY_REASON, reason);
        }
        Ok(response)
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        answer(Ok(ServerMetadataResponse {
            name: "kaskade".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            extensions: EXTENSIONS.map(ToOwned::to_owned).to_vec(),
        }))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let asked = request.into_inner();
        let metadata = describe::metadata(&self.shared, &asked.name, named(&asked.version));
        answer(metadata.await)
    }

    async fn model_infer(
        &self,
        request: Request<ModelInferRequest>,
    ) -> Result<Response<ModelInferResponse>, Status> {
        infer::one(&self.shared, request).await
    }

    type ModelStreamInferStream =
        Pin<Box<dyn Stream<Item = Result<ModelStreamInferResponse, Status>> + Send>>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        Ok(Response::new(infer::many(Arc::clone(&self.shared), request)))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        let asked = request.into_inner();
        answer(describe::config(&self.shared, &asked.name, named(&asked.version)).await)
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        let asked = request.into_inner();
        answer(describe::statistics(
            &self.shared,
            named(&asked.name),
            named(&asked.version),
        ))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        answer(Ok(describe::index(&self.shared, request.into_inner().ready)))
    }
}
