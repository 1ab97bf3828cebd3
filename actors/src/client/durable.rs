//! The client side of durable requests: submit now, fetch the result later.

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

/// Timeout of the acknowledgement by the stream.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// First and longest pause between two polls for a result.
const POLL_PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));

/// Pause between two polls while a pushed result is awaited.
const PUSH_POLL_PAUSE: Duration = Duration::from_secs(1);

/// A request that the stream has stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The id under which the result is stored.
    pub id: String,
    /// Whether the stream already had the request from an earlier submission.
    pub duplicate: bool,
}

/// Acknowledgement of a publication by a stream. The client library's type cannot be built from a plain reply.
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

/// JetStream error codes: maximum bytes exceeded, maximum messages exceeded, storage of the server or account used up.
const FULL: [u64; 4] = [10_047, 10_023, 10_077, 10_028];

impl Client {
    /// Submits a durable request, which gets exactly one result even if processes are lost meanwhile. The id comes
    /// from the headers or the request; otherwise the client generates one. After an error the request may be
    /// submitted again under the same id without being stored twice.
    ///
    /// # Errors
    /// `NotDurable` or `NeedsJetStream` if the app accepts no durable requests; `Overloaded` if the stream is full;
    /// `UnknownApp` if no process serves the app; `TooLarge`; `Malformed` for an invalid id; `Unavailable` if the
    /// stream has not acknowledged the request.
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
            .timeout(Some(REQUEST_TIMEOUT));
        let subject = self.app.submit();
        let sent = async {
            let sent = self.nats.send_request(subject.clone(), message).await;
            sent.map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => self.no_responders(),
                _ => Fault::new(
                    Code::Unavailable,
                    format!("the stream has not acknowledged the request: {error}"),
                ),
            })
        };
        let reply = self.permitted(&subject, sent).await?;
        if let Some(fault) = headers::fault(reply.headers.as_ref()) {
            return Err(fault);
        }
        let ack: PublishAck = serde_json::from_slice(&reply.payload).map_err(|error| {
            let message = format!("the reply to a durable request is not a stream acknowledgement: {error}");
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

    /// Returns the result of a durable request; `None` if it has none yet, or if its result has expired.
    ///
    /// # Errors
    /// The outer error if the server could not be queried; the inner error is the fault of the request itself.
    pub async fn result(&self, id: &str) -> Result<Option<Result<InferReply, Fault>>, Fault> {
        headers::check_request_id(id)?;
        let message = async_nats::Request::new()
            .payload(Bytes::new())
            .timeout(Some(REQUEST_TIMEOUT));
        let subject = subjects::result_query(&self.app, id);
        let asked = async {
            let asked = self.nats.send_request(subject.clone(), message).await;
            asked.map_err(|error| match error.kind() {
                RequestErrorKind::NoResponders => {
                    let app = self.app.name();
                    let message = format!(
                        "app `{app}` stores no results here; durable requests require `[durable]` in its file, and JetStream"
                    );
                    Fault::new(Code::NotDurable, message)
                }
                _ => Fault::new(Code::Unavailable, format!("fetching a result: {error}")),
            })
        };
        let found = self.permitted(&subject, asked).await?;
        match found.status {
            Some(StatusCode::NOT_FOUND) => Ok(None),
            Some(status) => {
                let said = found.description.unwrap_or_default();
                Err(Fault::new(Code::Unavailable, format!("{status}: {said}")))
            }
            None => Ok(Some(read(&found))),
        }
    }

    /// Submits a request and waits at most `timeout` for its result, which stays stored in any case. The client
    /// subscribes to the pushed result and also polls, because a push may be lost. For a duplicate, the client polls
    /// immediately: only the first submission gets the push, if any does.
    ///
    /// # Errors
    /// As [`Client::submit`] and [`Client::wait_for`].
    pub async fn submit_and_wait(
        &self,
        request: &InferRequest,
        mut headers: HeaderMap,
        timeout: Duration,
    ) -> Result<InferReply, Fault> {
        let inbox: Subject = self.nats.new_inbox().into();
        let subscribed = self.nats.subscribe(inbox.clone()).await;
        let mut pushed = subscribed.map_err(|error| Fault::new(Code::Unavailable, error.to_string()))?;
        headers::put_push(&mut headers, &inbox);
        let accepted = self.submit(request, headers).await?;
        let until = Instant::now() + timeout;
        if accepted.duplicate {
            return self.wait_for(&accepted.id, timeout).await;
        }
        let polled = async {
            loop {
                let left = until.saturating_duration_since(Instant::now());
                tokio::time::sleep(PUSH_POLL_PAUSE.min(left)).await;
                if left <= PUSH_POLL_PAUSE {
                    return self.wait_for(&accepted.id, Duration::ZERO).await;
                }
                // After an error the result may still be pushed; the timeout bounds the wait.
                if let Ok(Some(result)) = self.result(&accepted.id).await {
                    return result;
                }
            }
        };
        tokio::select! {
            // Without a subscription the client only polls.
            Some(message) = pushed.next() => read(&message),
            result = polled => result,
        }
    }

    /// Waits at most `timeout` for the result of a durable request; polls at least once.
    ///
    /// # Errors
    /// The fault of the request; `NoReply` if it has no result yet, after which the caller may wait again.
    pub async fn wait_for(&self, id: &str, timeout: Duration) -> Result<InferReply, Fault> {
        let (mut pause, longest) = POLL_PAUSES;
        let until = Instant::now() + timeout;
        loop {
            match self.result(id).await {
                Ok(Some(result)) => return result,
                Ok(None) => {}
                // The server may recover; the timeout bounds the wait.
                Err(fault) if fault.code.retryable() => {}
                Err(fault) => return Err(fault),
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let message = format!(
                    "request `{id}` has no result: it is in progress, was never submitted, or its result has expired; wait longer (`--wait 30s`), or \
                     submit it again"
                );
                return Err(Fault::new(Code::NoReply, message));
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
        format!("the stream refused the request: {}", refusal.description),
    )
}
