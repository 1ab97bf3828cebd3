//! gRPC's health protocol: the answer of `/ready`, for the server and its service.

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

/// Time between two looks at the health of a service that a client watches.
const INTERVAL: Duration = Duration::from_secs(1);

/// Most streams of health at once. They end with the gateway alone and need no key, so that they have permits of their own.
const MAX_WATCHES: usize = 1_024;

/// Answers the requests of the service.
pub(super) struct HealthCheck {
    shared: Arc<GatewayState>,
    watches: Arc<Semaphore>,
}

impl HealthCheck {
    pub(super) fn new(shared: &Arc<GatewayState>) -> Self {
        let most = shared.limits.max_in_flight.min(MAX_WATCHES);
        Self {
            shared: Arc::clone(shared),
            watches: Arc::new(Semaphore::new(most)),
        }
    }
}

/// Returns whether a service is one of the gateway; an empty name is all of them.
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

    /// The stream ends when the gateway drains.
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

/// A stream of the health of a service.
struct Watch {
    shared: Arc<GatewayState>,
    stopping: watch::Receiver<bool>,
    is_known: bool,
    /// What the client knows.
    said: Option<ServingStatus>,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    /// Waits until the status differs from what the client knows; `None` once the gateway drains.
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

    /// They were unlimited, without a key.
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
