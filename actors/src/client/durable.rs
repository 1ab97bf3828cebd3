//! The client's side of durable requests: submit now, fetch the result when it is there.

use std::time::{Duration, Instant};

use async_nats::{HeaderMap, RequestErrorKind, StatusCode, Subject, header};
use bytes::Bytes;
use futures::StreamExt;
use serde::Deserialize;

use super::{Client, read};
use crate::{
    error::{Code, Fault},
    ids, subjects,
    wire::headers,
    wire::{InferReply, InferRequest},
};

/// How long a stream may take to say that it has a request.
const PATIENCE: Duration = Duration::from_secs(5);

/// Pauses between two looks for a result, from the first to the longest.
const POLL_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// A request that was accepted for good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// What its result is fetched by.
    pub id: String,
    /// Whether the stream had it already, from an earlier attempt to submit it.
    pub duplicate: bool,
}

/// What a stream says to a message (the client library's own type is not built from a plain reply).
#[derive(Deserialize)]
struct PublishAck {
    #[serde(default)]
    duplicate: bool,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// "maximum bytes exceeded", "maximum messages exceeded", and the server's or the account's storage used up.
const FULL: [u64; 4] = [10_047, 10_023, 10_077, 10_028];

impl Client {
    /// Submits a request that is answered once, whatever is lost meanwhile. Its id is that of the headers, or of the request; one is
    /// made where neither has one. It may be submitted again under the same id if this fails: it is run for its first time, or not.
    ///
    /// # Errors
    /// `NotDurable` or `NeedsJetStream` where the app takes none; `Overloaded` where the stream is full; `UnknownApp` when nobody
    /// serves the app; `TooLarge`; `Malformed` for an id that is none; `Unavailable` when the stream has not said that it has it.
    pub async fn submit(&self, request: &InferRequest, mut headers: HeaderMap) -> Result<Accepted, Fault> {
        let payload = self.encode_checked(request)?;
        let named = headers::request_id(&headers)?.map(ToOwned::to_owned);
        let id = named
            .or_else(|| request.id.clone())
            .unwrap_or_else(ids::unique_token);
        headers::put_request_id(&mut headers, &id)?;
        headers.insert(header::NATS_MESSAGE_ID, id.as_str());
        let message = async_nats::Request::new()
            .headers(headers)
            .payload(payload)
            .timeout(Some(PATIENCE));
        let sent = self.nats.send_request(self.app.submit(), message).await;
        let reply = sent.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => self.no_responders(),
            _ => Fault::new(Code::Unavailable, format!("the stream has not answered: {error}")),
        })?;
        if let Some(fault) = headers::fault(reply.headers.as_ref()) {
            return Err(fault);
        }
        let ack: PublishAck = serde_json::from_slice(&reply.payload).map_err(|error| {
            let message = format!("what answers durable requests is no stream: {error}");
            Fault::new(Code::Internal, message)
        })?;
        match ack.error {
            None => Ok(Accepted {
                id,
                duplicate: ack.duplicate,
            }),
            Some(refusal) => Err(refused(&refusal)),
        }
    }

    /// The result of the durable request of that id; `None` while it has none, or when it is no longer kept.
    ///
    /// # Errors
    /// The outer one when the server could not be asked; the inner one is the request's own fault.
    pub async fn result(&self, id: &str) -> Result<Option<Result<InferReply, Fault>>, Fault> {
        headers::check_request_id(id)?;
        let message = async_nats::Request::new()
            .payload(Bytes::new())
            .timeout(Some(PATIENCE));
        let asked = self
            .nats
            .send_request(subjects::result_query(&self.app, id), message)
            .await;
        let found = asked.map_err(|error| match error.kind() {
            RequestErrorKind::NoResponders => {
                let app = self.app.name();
                let message =
                    format!("no results of app `{app}` are kept here; durable requests need `[durable]` in its file, and JetStream");
                Fault::new(Code::NotDurable, message)
            }
            _ => Fault::new(Code::Unavailable, format!("asking for a result: {error}")),
        })?;
        match found.status {
            Some(StatusCode::NOT_FOUND) => Ok(None),
            Some(status) => {
                let said = found.description.unwrap_or_default();
                Err(Fault::new(Code::Unavailable, format!("{status}: {said}")))
            }
            None => Ok(Some(read(&found))),
        }
    }

    /// Submits, and waits for the result at most so long; the result stays kept all the same. Being told of it is quicker than
    /// looking for it, and is not relied on.
    ///
    /// # Errors
    /// As [`Client::submit`] and [`Client::wait_for`].
    pub async fn submit_and_wait(
        &self,
        request: &InferRequest,
        mut headers: HeaderMap,
        patience: Duration,
    ) -> Result<InferReply, Fault> {
        let inbox: Subject = self.nats.new_inbox().into();
        let subscribed = self.nats.subscribe(inbox.clone()).await;
        let mut told = subscribed.map_err(|error| Fault::new(Code::Unavailable, error.to_string()))?;
        headers::put_push(&mut headers, &inbox);
        let accepted = self.submit(request, headers).await?;
        let until = Instant::now() + patience;
        match tokio::time::timeout(patience, told.next()).await {
            Ok(Some(message)) => read(&message),
            // Its push may have been lost with a connection.
            Ok(None) | Err(_) => {
                self.wait_for(&accepted.id, until.saturating_duration_since(Instant::now()))
                    .await
            }
        }
    }

    /// Waits for the result of the durable request of that id, at most so long; looks once in any case.
    ///
    /// # Errors
    /// The request's own fault; `Expired` when it has no result yet, and may be waited for again.
    pub async fn wait_for(&self, id: &str, patience: Duration) -> Result<InferReply, Fault> {
        let (mut pause, longest) = POLL_PAUSES;
        let until = Instant::now() + patience;
        loop {
            match self.result(id).await {
                Ok(Some(result)) => return result,
                Ok(None) => {}
                // The server may come back; the time is bounded anyway.
                Err(fault) if fault.code.retryable() => {}
                Err(fault) => return Err(fault),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!(
                    "request `{id}` has no result: it is still tried, or was never submitted, or its result is no longer kept"
                );
                return Err(Fault::new(Code::Expired, message));
            }
            tokio::time::sleep(pause.min(left)).await;
            pause = (pause * 3 / 2).min(longest);
        }
    }
}

fn refused(refusal: &Refusal) -> Fault {
    let code = if FULL.contains(&refusal.err_code) {
        Code::Overloaded
    } else {
        Code::Unavailable
    };
    Fault::new(
        code,
        format!("the stream does not accept it: {}", refusal.description),
    )
}
