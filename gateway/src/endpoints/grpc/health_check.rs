//! gRPC health checking protocol: the result of `/ready`, for the server and its service.

use std::sync::Arc;
use std::time::Duration;

use futures::stream;
use kaskade_oip::health::{
    Health, HealthCheckRequest, HealthCheckResponse, SERVICE as HEALTH, ServingStatus,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use crate::endpoints::health::not_ready;
use crate::http::failure::{Failure, shortened};
use crate::http::grpc_status;
use crate::state::GatewayState;

/// Poll interval for the health of a watched service.
const INTERVAL: Duration = Duration::from_secs(1);

/// Largest number of concurrent watch streams. They end only with the gateway and need no key, so they have separate
/// permits.
const MAX_WATCHES: usize = 1_024;

/// Implementation of the health service.
pub(super) struct HealthCheck {
    shared: Arc<GatewayState>,
    watches: Arc<Semaphore>,
}

impl HealthCheck {
    pub(super) fn new(shared: &Arc<GatewayState>) -> Self {
        let max_watches = shared.limits.max_in_flight.min(MAX_WATCHES);
        Self {
            shared: Arc::clone(shared),
            watches: Arc::new(Semaphore::new(max_watches)),
        }
    }
}

/// Returns whether the gateway has a service of that name; the empty name means the whole server.
fn is_known(service: &str) -> bool {
    ["", kaskade_oip::SERVICE, HEALTH].contains(&service)
}

fn status(shared: &GatewayState, is_known: bool) -> ServingStatus {
    if !is_known {
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
        match status(&self.shared, is_known(&service)) {
            ServingStatus::ServiceUnknown => Err(Status::not_found(format!(
                "this gateway has no service `{}`; leave the name out",
                shortened(&service)
            ))),
            status => Ok(Response::new(response(status))),
        }
    }

    /// Streams the health. The stream ends when the gateway drains.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<BoxStream<HealthCheckResponse>>, Status> {
        let Ok(permit) = Arc::clone(&self.watches).try_acquire_owned() else {
            return Err(grpc_status::of(&Failure::full(
                "the gateway has its maximum of streams of its health; ask with `Check`",
            )));
        };
        let watch = Watch {
            stopping: self.shared.stopping.subscribe(),
            shared: Arc::clone(&self.shared),
            is_known: is_known(&request.into_inner().service),
            said: None,
            _permit: permit,
        };
        let changes = stream::unfold(watch, |mut watch| async move {
            let changed = watch.change().await?;
            Some((Ok(response(changed)), watch))
        });
        Ok(Response::new(Box::pin(changes)))
    }
}

/// A watch stream of a service's health.
struct Watch {
    shared: Arc<GatewayState>,
    stopping: watch::Receiver<bool>,
    is_known: bool,
    /// Last status sent to the client.
    said: Option<ServingStatus>,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    /// Waits until the status differs from the last one sent; `None` once the gateway drains.
    async fn change(&mut self) -> Option<ServingStatus> {
        loop {
            let now = status(&self.shared, self.is_known);
            if self.said.replace(now) != Some(now) {
                return Some(now);
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                _ = self.stopping.wait_for(|stopping| *stopping) => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use futures::StreamExt as _;

    use super::*;
    use crate::config::Limits;

    /// Regression: their number was unlimited, without a key.
    #[tokio::test(start_paused = true)]
    async fn streams_are_limited_and_end_when_the_gateway_drains() {
        let shared = Arc::new(GatewayState::new(Limits {
            max_in_flight: 2,
            ..Limits::default()
        }));
        let service = HealthCheck::new(&shared);
        let asked = |service: &str| {
            Request::new(HealthCheckRequest {
                service: service.to_owned(),
            })
        };
        let mut first = service.watch(asked("")).await.unwrap().into_inner();
        let mut second = service.watch(asked("x")).await.unwrap().into_inner();
        let third = service.watch(asked("")).await.err().unwrap();
        assert_eq!(third.code(), tonic::Code::ResourceExhausted);
        let checked = service.check(asked("")).await.unwrap().into_inner();
        assert_eq!(checked.status(), ServingStatus::NotServing);
        let unknown = service.check(asked(&"x".repeat(1 << 20))).await.unwrap_err();
        assert!(unknown.message().len() < 300, "{}", unknown.message().len());
        for (watched, expected) in [
            (&mut first, ServingStatus::NotServing),
            (&mut second, ServingStatus::ServiceUnknown),
        ] {
            let status = watched.next().await.unwrap().unwrap().status();
            assert_eq!(status, expected);
        }
        drop(second);
        assert!(service.watch(asked("")).await.is_ok(), "its permit is free");
        shared.leaving.store(true, Relaxed);
        shared.stopping.send_replace(true);
        assert!(first.next().await.is_none());
    }
}
