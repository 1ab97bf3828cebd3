//! Health of an endpoint as the availability of its model.
//!
//! While the circuit breaker is open, the model says that it cannot answer, so that its replica gets no requests. When the pause
//! is over, the endpoint is asked for its list of models, which costs nothing. If it answers, the replica gets requests again, and
//! the first one is the probe of the breaker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use kaskade_models::Availability;
use tokio::time::timeout;

use crate::call::Caller;
use crate::endpoint::Api;
use crate::error::CallError;

/// Longest time of a question about the endpoint's health.
const QUESTION: Duration = Duration::from_secs(5);

/// Follows the circuit breaker until it is dropped.
pub(crate) async fn follow(caller: Arc<Caller>, availability: Availability) {
    loop {
        let Some(pause) = caller.until_probe() else {
            if availability.set(true) {
                tracing::info!("the endpoint answers again");
            }
            caller.breaker_changed.notified().await;
            continue;
        };
        availability.set(false);
        tokio::time::sleep(pause).await;
        // A request that was sent before may probe already.
        let Ok(probe) = caller.admit() else {
            caller.breaker_changed.notified().await;
            continue;
        };
        match ask(&caller).await {
            Err(error) if error.is_endpoint_failure() => probe.ended::<()>(&Err(error), 0),
            _ => {
                // The probe is left to a request.
                probe.leave();
                availability.set(true);
                caller.breaker_changed.notified().await;
            }
        }
    }
}

async fn ask(caller: &Caller) -> Result<(), CallError> {
    let path = match caller.model.api {
        Api::Chat(_) | Api::Embeddings { .. } => "models",
        Api::Oip { .. } => "v2/health/ready",
    };
    let asking = caller
        .model
        .http
        .send(Method::GET, path, "application/json", &[], Bytes::new());
    let answered = timeout(QUESTION, asking).await;
    answered
        .unwrap_or(Err(CallError::Timeout { after: QUESTION }))
        .map(drop)
}
