//! gRPC's health protocol: the answer of `/ready`, for the server and its service.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use kaskade_oip::health::{
    Health, HealthCheckRequest, HealthCheckResponse, SERVICE as HEALTH, ServingStatus,
};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::health::not_ready;
use crate::state::GatewayState;

/// Time between two looks at the health of a service that a client watches.
const INTERVAL: Duration = Duration::from_secs(1);

/// Answers the requests of the service.
pub(super) struct HealthCheck {
    shared: Arc<GatewayState>,
}

impl HealthCheck {
    pub(super) fn new(shared: &Arc<GatewayState>) -> Self {
        Self {
            shared: Arc::clone(shared),
        }
    }
}

/// Returns whether a service is one of the gateway; an empty name is all of them.
fn is_known(service: &str) -> bool {
    ["", kaskade_oip::SERVICE, HEALTH].contains(&service)
}

fn status(shared: &GatewayState, service: &str) -> ServingStatus {
    if !is_known(service) {
        ServingStatus::ServiceUnknown
    } else if not_ready(shared).is_none() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse {
        status: status.into(),
    }
}

#[tonic::async_trait]
impl Health for HealthCheck {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match status(&self.shared, &service) {
            ServingStatus::ServiceUnknown => Err(Status::not_found(format!(
                "this gateway has no service `{service}`; leave the name out"
            ))),
            status => Ok(Response::new(response(status))),
        }
    }

    /// The stream ends when the gateway drains.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<BoxStream<HealthCheckResponse>>, Status> {
        let (shared, service) = (Arc::clone(&self.shared), request.into_inner().service);
        let stopping = shared.stopping.subscribe();
        let changes = stream::unfold((None, stopping), move |(said, mut stopping)| {
            let (shared, service) = (Arc::clone(&shared), service.clone());
            async move {
                loop {
                    let now = status(&shared, &service);
                    if said != Some(now) {
                        return Some((Ok(response(now)), (Some(now), stopping)));
                    }
                    tokio::select! {
                        () = tokio::time::sleep(INTERVAL) => {}
                        _ = stopping.wait_for(|stopping| *stopping) => return None,
                    }
                }
            }
        });
        Ok(Response::new(Box::pin(changes)))
    }
}
