//! Health of endpoints as the availability of the model that calls them.
//!
//! While the circuit breaker of an endpoint is open, the model says that it cannot answer, so that its replica gets no requests. When
//! the pause is over, the endpoint is asked whether it can answer, which costs nothing: for its list of models, or by the Open
//! Inference Protocol whether the model is ready. If so, the replica gets requests again, and the first one is the probe of the breaker.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use kaskade_models::Availability;
use tokio::time::timeout;

use crate::call::EndpointCall;
use crate::endpoint::Api;
use crate::error::CallError;
use crate::{lock, oip};

/// Longest time of a question about the endpoint's health.
const QUESTION: Duration = Duration::from_secs(5);

/// Availability of a model that calls several endpoints: it is available if all of them are.
pub(crate) struct JointAvailability {
    are_up: Mutex<Vec<bool>>,
    availability: Availability,
}

impl JointAvailability {
    pub(crate) fn new(endpoints: usize, availability: Availability) -> Self {
        Self {
            are_up: Mutex::new(vec![true; endpoints]),
            availability,
        }
    }

    /// Sets whether the endpoint of a number is up. Returns whether that changes the model's availability.
    fn set(&self, number: usize, is_up: bool) -> bool {
        let mut are_up = lock(&self.are_up);
        if let Some(endpoint) = are_up.get_mut(number) {
            *endpoint = is_up;
        }
        self.availability.set(are_up.iter().all(|is_up| *is_up))
    }
}

/// Follows the circuit breaker of the endpoint of a number until it is dropped.
pub(crate) async fn follow(called: Arc<EndpointCall>, number: usize, availability: Arc<JointAvailability>) {
    let circuit = &called.circuit;
    loop {
        let Some(pause) = circuit.until_probe() else {
            if availability.set(number, true) {
                tracing::info!("the endpoint answers again");
            }
            circuit.changed.notified().await;
            continue;
        };
        availability.set(number, false);
        tokio::time::sleep(pause).await;
        // A request that was sent before may probe already.
        let Ok(probe) = circuit.admit() else {
            circuit.changed.notified().await;
            continue;
        };
        match timeout(QUESTION, ask(&called)).await {
            Ok(Ok(())) => {
                // The probe is left to a request.
                probe.leave();
                availability.set(number, true);
                circuit.changed.notified().await;
            }
            Ok(Err(error)) => drop(probe.failed(&error)),
            Err(_) => drop(probe.failed(&CallError::Timeout { after: QUESTION })),
        }
    }
}

/// Asks an endpoint whether it can answer.
///
/// # Errors
/// Why it cannot.
async fn ask(called: &EndpointCall) -> Result<(), CallError> {
    if let Api::Oip { model, version } = &called.api {
        return oip::ask_whether_ready(&called.http, model, version.as_deref()).await;
    }
    let listed = called
        .http
        .send(Method::GET, "models", "application/json", &[], Bytes::new())
        .await;
    match listed {
        // Not every endpoint has a list of models, and the failure of a request is not one of the list.
        Err(error) if error.is_endpoint_failure() && !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
