//! Connections to an endpoint, kept and reused.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

use crate::error::{CallError, ConnectError};
use crate::oip::grpc;
use crate::secret::Secret;

/// Largest answer, bytes.
const MAX_ANSWER: usize = 64 << 20;

/// Longest message of an endpoint that an error repeats, characters.
const MAX_MESSAGE: usize = 400;

/// Idle connections are closed after this time: most servers keep them somewhat longer.
const IDLE: Duration = Duration::from_secs(20);

/// An HTTP client of one endpoint.
pub(crate) struct Http {
    client: Connections,
    base: String,
    key: Option<Secret>,
    authorization: Option<HeaderValue>,
    grpc: bool,
}

/// Connections, by what protects them.
enum Connections {
    Plain(Client<HttpConnector, Full<Bytes>>),
    Tls(Client<HttpsConnector<HttpConnector>, Full<Bytes>>),
}

impl Http {
    /// Creates a client. Opens no connection.
    ///
    /// # Errors
    /// [`ConnectError::Address`] or [`ConnectError::Certificates`].
    pub(crate) fn new(base_url: &str, key: Option<Secret>) -> Result<Self, ConnectError> {
        let bad = |reason: String| ConnectError::Address {
            base_url: base_url.to_owned(),
            reason,
        };
        let uri: Uri = base_url
            .parse()
            .map_err(|error: hyper::http::uri::InvalidUri| bad(error.to_string()))?;
        let (secure, grpc) = match uri.scheme_str() {
            Some("http") => (false, false),
            Some("https") => (true, false),
            Some("grpc") => (false, true),
            Some("grpcs") => (true, true),
            _ => {
                return Err(bad(
                    "it must be like https://host/path or grpc://host:port".to_owned()
                ));
            }
        };
        if uri.host().is_none() || uri.query().is_some() {
            return Err(bad(
                "it must be like https://host/path or grpc://host:port".to_owned()
            ));
        }
        if grpc && !matches!(uri.path(), "" | "/") {
            return Err(bad("an address for gRPC has no path".to_owned()));
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_idle_timeout(IDLE).pool_timer(TokioTimer::new());
        builder.http2_only(grpc);
        let client = if secure {
            let tls = HttpsConnectorBuilder::new()
                .with_native_roots()
                .map_err(ConnectError::Certificates)?;
            let tls = tls.https_only();
            Connections::Tls(builder.build(if grpc {
                tls.enable_http2().wrap_connector(tcp)
            } else {
                tls.enable_http1().wrap_connector(tcp)
            }))
        } else {
            Connections::Plain(builder.build(tcp))
        };
        let mut authorization = key
            .as_ref()
            .and_then(|key| HeaderValue::try_from(key.bearer()).ok());
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Ok(Self {
            client,
            base: match base_url.trim_end_matches('/').split_once("://") {
                Some((_, rest)) if grpc => format!("http{}://{rest}", if secure { "s" } else { "" }),
                _ => base_url.trim_end_matches('/').to_owned(),
            },
            key,
            authorization,
            grpc,
        })
    }

    /// Whether the endpoint is spoken to over gRPC.
    pub(crate) const fn is_grpc(&self) -> bool {
        self.grpc
    }

    /// Sends a request and returns the answer once its head has arrived with a status of success.
    ///
    /// # Errors
    /// [`CallError`]; of another status, with the endpoint's message.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        content_type: &'static str,
        headers: &[(HeaderName, String)],
        body: Bytes,
    ) -> Result<Response<Incoming>, CallError> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/{path}", self.base))
            .header(CONTENT_TYPE, content_type);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| CallError::Connect {
                reason: self.redact(&error.to_string()),
            })?;
        let answer = match &self.client {
            Connections::Plain(client) => client.request(request),
            Connections::Tls(client) => client.request(request),
        };
        let answer = answer.await.map_err(|error| {
            let reason = self.redact(&with_sources(&error));
            if error.is_connect() {
                CallError::Connect { reason }
            } else {
                CallError::Broken { reason }
            }
        })?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        Err(self.refusal(answer).await)
    }

    /// Reads an answer to its end; over gRPC, the message in it.
    ///
    /// # Errors
    /// [`CallError::Broken`], or [`CallError::Malformed`] if it is larger than allowed; [`CallError::Grpc`].
    pub(crate) async fn read(&self, answer: Response<Incoming>) -> Result<Bytes, CallError> {
        if self.grpc {
            return grpc::read(self, answer, MAX_ANSWER).await;
        }
        self.read_body(answer.into_body(), MAX_ANSWER).await
    }

    /// Returns a text of the endpoint without the key.
    pub(crate) fn redact(&self, text: &str) -> String {
        self.key
            .as_ref()
            .map_or_else(|| text.to_owned(), |key| key.redact(text))
    }

    async fn read_body<B>(&self, body: B, limit: usize) -> Result<Bytes, CallError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let whole = Limited::new(body, limit).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return CallError::Malformed {
                    reason: format!("it is longer than {limit} bytes"),
                };
            }
            CallError::Broken {
                reason: self.redact(&with_sources(error.as_ref())),
            }
        })?;
        Ok(whole.to_bytes())
    }

    async fn refusal(&self, answer: Response<Incoming>) -> CallError {
        let (head, body) = answer.into_parts();
        let retry_after = retry_after(&head.headers);
        let body = self.read_body(body, 1 << 16).await.unwrap_or_default();
        CallError::Status {
            status: head.status.as_u16(),
            message: self.redact(&message(head.status, &body)),
            retry_after,
        }
    }
}

/// The pause that an endpoint asks for, by `retry-after-ms` or `retry-after` in seconds. A date is not read: it would need
/// the endpoint's clock.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let number = |name: HeaderName| -> Option<f64> {
        let text = headers.get(name)?.to_str().ok()?;
        text.trim().parse().ok()
    };
    let seconds = number(HeaderName::from_static("retry-after-ms"))
        .map(|ms| ms / 1e3)
        .or_else(|| number(RETRY_AFTER))?;
    Duration::try_from_secs_f64(seconds).ok()
}

/// The message in the body of an error: `error.message` of the OpenAI API, `error` of the Open Inference Protocol, or the
/// text itself.
fn message(status: StatusCode, body: &[u8]) -> String {
    let parsed: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let error = parsed.as_ref().and_then(|body| body.get("error"));
    let named = error.and_then(|error| error.get("message").unwrap_or(error).as_str().map(str::to_owned));
    let text = named.unwrap_or_else(|| String::from_utf8_lossy(body).into_owned());
    let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        return status.canonical_reason().unwrap_or("no message").to_owned();
    }
    text.chars().take(MAX_MESSAGE).collect()
}

/// An error with what caused it, in one line.
fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_every_kind_of_server_are_found() {
        let said = |body: &str| message(StatusCode::UNAUTHORIZED, body.as_bytes());
        assert_eq!(
            said(r#"{"error": {"message": "no  key", "type": "auth"}}"#),
            "no key"
        );
        assert_eq!(said(r#"{"error": "unknown model"}"#), "unknown model");
        assert_eq!(said("<html>\n down</html>"), "<html> down</html>");
        assert_eq!(said(""), "Unauthorized");
        assert_eq!(said(&"x".repeat(1000)).len(), MAX_MESSAGE);
    }

    #[test]
    fn pauses_are_read_in_both_units() {
        let after = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            retry_after(&headers)
        };
        assert_eq!(after("retry-after-ms", "250"), Some(Duration::from_millis(250)));
        assert_eq!(after("retry-after", "2"), Some(Duration::from_secs(2)));
        for bad in ["-1", "nan", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(after("retry-after", bad), None);
        }
    }

    #[test]
    fn addresses_are_checked() {
        for bad in [
            "",
            "127.0.0.1:80",
            "ftp://host",
            "http://",
            "https://host/v1?key=1",
            "grpc://host:1/v2",
        ] {
            assert!(
                matches!(Http::new(bad, None), Err(ConnectError::Address { .. })),
                "{bad}"
            );
        }
    }
}
