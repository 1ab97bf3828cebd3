//! Connections to an endpoint, kept and reused.

use std::path::Path;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http_body_util::{BodyExt, Collected, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::header::{
    AUTHORIZATION, CONTENT_TYPE, DATE, HeaderMap, HeaderName, HeaderValue, LOCATION, PROXY_AUTHORIZATION,
    RETRY_AFTER,
};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde_json::Value;
use tokio_rustls::rustls::ClientConfig;

use crate::connector::{Connector, is_loopback};
use crate::error::{CallError, ConnectError, MAX_MESSAGE};
use crate::error_body::{code_of, message_of};
use crate::secret::Secret;
use crate::tls;

/// Largest answer, bytes.
pub(crate) const MAX_ANSWER: usize = 64 << 20;

/// Idle connections are closed after this time. Servers on uvicorn (vLLM, `SGLang`, `MLServer`), llama.cpp and Node close theirs after
/// five seconds, and a request that meets such a close breaks off.
const IDLE: Duration = Duration::from_secs(4);

/// Longest time in which a connection is opened to one of an endpoint's addresses.
const CONNECT: Duration = Duration::from_secs(10);

/// When a peer that has vanished is noticed on a connection with calls under way.
#[derive(Debug, Clone, Copy)]
struct KeepAlive {
    /// Pause between two questions.
    interval: Duration,
    /// Longest time of an answer.
    timeout: Duration,
}

const KEEP_ALIVE: KeepAlive = KeepAlive {
    interval: Duration::from_secs(5),
    timeout: Duration::from_secs(3),
};

/// An HTTP client of one endpoint.
pub(crate) struct Http {
    client: Connections,
    base: String,
    key: Option<Secret>,
    authorization: Option<HeaderValue>,
    /// Credentials for a proxy that reads requests.
    proxy_authorization: Option<HeaderValue>,
    grpc: bool,
}

/// Connections, by what protects them.
enum Connections {
    Plain(Client<Connector, Full<Bytes>>),
    Tls(Client<HttpsConnector<Connector>, Full<Bytes>>),
}

impl Connections {
    /// Returns connections over a connector, protected if TLS has a configuration.
    fn by(connector: Connector, tls: Option<ClientConfig>, grpc: bool, alive: KeepAlive) -> Self {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_idle_timeout(IDLE).pool_timer(TokioTimer::new());
        builder
            .timer(TokioTimer::new())
            .http2_only(grpc)
            .http2_keep_alive_interval(alive.interval)
            .http2_keep_alive_timeout(alive.timeout);
        let Some(tls) = tls else {
            return Self::Plain(builder.build(connector));
        };
        let tls = HttpsConnectorBuilder::new().with_tls_config(tls).https_only();
        Self::Tls(builder.build(if grpc {
            tls.enable_http2().wrap_connector(connector)
        } else {
            tls.enable_http1().wrap_connector(connector)
        }))
    }
}

/// The address of an endpoint, as it is called.
struct Address {
    /// With `http` or `https`, without a `/` at its end.
    base: String,
    uri: Uri,
    secure: bool,
    grpc: bool,
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// [`ConnectError::Address`].
    fn read(base_url: &str) -> Result<Self, ConnectError> {
        const FORM: &str = "it must be like https://host/path or grpc://host:port";
        if base_url.contains('@') {
            // What stands before it is a password, which no error shows.
            return Err(ConnectError::Address {
                base_url: "[redacted]".to_owned(),
                reason: "it holds a name or password; only an `api_key` is sent".to_owned(),
            });
        }
        let bad = |reason: String| ConnectError::Address {
            base_url: base_url.to_owned(),
            reason,
        };
        let parse = |text: &str| {
            text.parse::<Uri>()
                .map_err(|error: hyper::http::uri::InvalidUri| bad(error.to_string()))
        };
        let uri = parse(base_url)?;
        let (secure, grpc) = match uri.scheme_str() {
            Some("http") => (false, false),
            Some("https") => (true, false),
            Some("grpc") => (false, true),
            Some("grpcs") => (true, true),
            _ => return Err(bad(FORM.to_owned())),
        };
        if uri.host().is_none() || uri.query().is_some() {
            return Err(bad(FORM.to_owned()));
        }
        if grpc && !matches!(uri.path(), "" | "/") {
            return Err(bad("an address for gRPC has no path".to_owned()));
        }
        let base = match base_url.trim_end_matches('/').split_once("://") {
            Some((_, rest)) if grpc => format!("http{}://{rest}", if secure { "s" } else { "" }),
            _ => base_url.trim_end_matches('/').to_owned(),
        };
        Ok(Self {
            uri: parse(&base)?,
            base,
            secure,
            grpc,
        })
    }
}

impl Http {
    /// Creates a client, which trusts the certificates of a file or those of the system. Opens no connection.
    ///
    /// # Errors
    /// [`ConnectError::Address`], [`ConnectError::Proxy`], or an error of certificates.
    pub(crate) fn new(base_url: &str, key: Option<Secret>, ca: Option<&Path>) -> Result<Self, ConnectError> {
        Self::by(base_url, key, ca, &Matcher::from_env(), KEEP_ALIVE)
    }

    /// As [`Http::new`], with these proxies and questions.
    fn by(
        base_url: &str,
        key: Option<Secret>,
        ca: Option<&Path>,
        proxies: &Matcher,
        alive: KeepAlive,
    ) -> Result<Self, ConnectError> {
        let Address {
            base,
            uri,
            secure,
            grpc,
        } = Address::read(base_url)?;
        if key.is_some() && !secure && !is_loopback(&uri) {
            tracing::warn!("the key for `{base_url}` is sent in clear text; use https or grpcs");
        }
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(alive.interval));
        tcp.set_connect_timeout(Some(CONNECT));
        let is_forwarded = !secure && !grpc;
        let (connector, proxy_authorization) =
            Connector::to(&uri, proxies, is_forwarded, tcp).map_err(|scheme| ConnectError::Proxy {
                base_url: base_url.to_owned(),
                scheme,
            })?;
        let tls = secure.then(|| tls::config(ca)).transpose()?;
        let mut authorization = key
            .as_ref()
            .and_then(|key| HeaderValue::try_from(key.bearer()).ok());
        if let Some(value) = &mut authorization {
            value.set_sensitive(true);
        }
        Ok(Self {
            client: Connections::by(connector, tls, grpc, alive),
            base,
            key,
            authorization,
            proxy_authorization,
            grpc,
        })
    }

    /// Returns the address of a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.base)
    }

    /// Returns whether the endpoint is spoken to over gRPC.
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
            .uri(self.url(path))
            .header(CONTENT_TYPE, content_type);
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if let Some(authorization) = &self.proxy_authorization {
            request = request.header(PROXY_AUTHORIZATION, authorization);
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
        Err(self.refusal(path, answer).await)
    }

    /// Reads an answer to its end.
    ///
    /// # Errors
    /// [`CallError::Broken`], or [`CallError::Malformed`] if it is larger than allowed.
    pub(crate) async fn read(&self, answer: Response<Incoming>) -> Result<Bytes, CallError> {
        let whole = self.collect(answer.into_body(), MAX_ANSWER).await?;
        Ok(whole.to_bytes())
    }

    /// Returns a text of the endpoint without the key.
    pub(crate) fn redact(&self, text: &str) -> String {
        self.key
            .as_ref()
            .map_or_else(|| text.to_owned(), |key| key.redact(text))
    }

    /// Reads a body to its end, trailers included.
    ///
    /// # Errors
    /// As [`Http::read`].
    pub(crate) async fn collect<B>(&self, body: B, limit: usize) -> Result<Collected<Bytes>, CallError>
    where
        B: Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Limited::new(body, limit).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                return CallError::Malformed {
                    reason: format!("it is longer than {limit} bytes"),
                };
            }
            CallError::Broken {
                reason: self.redact(&with_sources(error.as_ref())),
            }
        })
    }

    async fn refusal(&self, path: &str, answer: Response<Incoming>) -> CallError {
        let (head, body) = answer.into_parts();
        let retry_after = retry_after(&head.headers);
        let body = self.collect(body, 1 << 16).await;
        let body = body.map(Collected::to_bytes).unwrap_or_default();
        // Redacted before it is cut: a part of the key would not be found.
        let body = self.redact(&String::from_utf8_lossy(&body));
        let parsed: Option<Value> = serde_json::from_str(&body).ok();
        let mut message = message(head.status, &body, parsed.as_ref());
        let location = head.headers.get(LOCATION).and_then(|value| value.to_str().ok());
        if let Some(location) = location.filter(|_| head.status.is_redirection()) {
            message = format!("{message}; it says that the address is {location}");
        } else if matches!(
            head.status,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
        ) {
            // A `base_url` with a part too many or too few is refused so.
            message = format!("{message} (asked {})", self.url(path));
        }
        CallError::Status {
            status: head.status.as_u16(),
            code: parsed.as_ref().and_then(code_of),
            message: self.redact(&message),
            retry_after,
        }
    }
}

/// The pause that an endpoint asks for, by `retry-after-ms`, or by `retry-after` in seconds or as a date, which counts from the
/// date of the answer.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: HeaderName| headers.get(name)?.to_str().ok().map(str::trim);
    let number = |name: HeaderName| -> Option<f64> { text(name)?.parse().ok() };
    let date = |name: HeaderName| httpdate::parse_http_date(text(name)?).ok();
    let seconds = number(HeaderName::from_static("retry-after-ms"))
        .map(|ms| ms / 1e3)
        .or_else(|| number(RETRY_AFTER));
    if let Some(seconds) = seconds {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let now = date(DATE).unwrap_or_else(SystemTime::now);
    Some(date(RETRY_AFTER)?.duration_since(now).unwrap_or_default())
}

/// The message in the body of an error; `parsed` is its JSON.
fn message(status: StatusCode, body: &str, parsed: Option<&Value>) -> String {
    let named = parsed.and_then(message_of);
    let text = named.unwrap_or_else(|| body.to_owned());
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
        let said = |body: &str| {
            let parsed: Option<Value> = serde_json::from_str(body).ok();
            message(StatusCode::UNAUTHORIZED, body, parsed.as_ref())
        };
        assert_eq!(
            said(r#"{"error": {"message": "no  key", "type": "auth"}}"#),
            "no key"
        );
        assert_eq!(said(r#"{"error": "unknown model"}"#), "unknown model");
        assert_eq!(said(r#"{"detail": "Not Found"}"#), "Not Found");
        assert_eq!(
            said(r#"{"detail": [{"loc": ["body", "stop", 0], "msg": "field required"}]}"#),
            "body.stop.0: field required"
        );
        assert_eq!(
            said(
                r#"{"detail": [{"type": "extra_forbidden", "loc": ["body", "top_k"], "msg": "Extra inputs are not permitted"},
                {"loc": ["body", "min_p"], "msg": "too small"}, {"msg": "third"}, {"msg": "fourth"}]}"#
            ),
            "body.top_k: Extra inputs are not permitted; body.min_p: too small; third"
        );
        assert_eq!(
            said(r#"{"object": "error", "message": "too long", "code": 400}"#),
            "too long"
        );
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
        for bad in ["-1", "nan", "soon"] {
            assert_eq!(after("retry-after", bad), None);
        }
        assert_eq!(
            after("retry-after", "Wed, 21 Oct 2020 07:28:00 GMT"),
            Some(Duration::ZERO),
            "a date that is past"
        );
        let mut headers = HeaderMap::new();
        for (name, value) in [
            (DATE, "Wed, 21 Oct 2026 07:27:30 GMT"),
            (RETRY_AFTER, "Wed, 21 Oct 2026 07:28:00 GMT"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        assert_eq!(
            retry_after(&headers),
            Some(Duration::from_secs(30)),
            "by the endpoint's clock"
        );
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
                matches!(Http::new(bad, None, None), Err(ConnectError::Address { .. })),
                "{bad}"
            );
        }
        let shown = Http::new("http://me:secret@host/v1", None, None)
            .err()
            .map(|error| error.to_string());
        assert!(
            shown
                .as_ref()
                .is_some_and(|shown| shown.contains("password") && !shown.contains("secret")),
            "{shown:?}"
        );
    }

    /// The call waited for its own timeout, and the next one for the same connection.
    #[tokio::test]
    async fn a_peer_that_has_vanished_is_called_over_another_connection() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("grpc://{}", listener.local_addr().unwrap());
        let alive = KeepAlive {
            interval: Duration::from_millis(20),
            timeout: Duration::from_millis(20),
        };
        let nothing = Matcher::builder().build();
        let http = Http::by(&url, None, None, &nothing, alive).unwrap();
        for _ in 0..2 {
            let asking = http.send(Method::POST, "x", "application/grpc", &[], Bytes::new());
            // The peer never says anything.
            let (asked, accepted) = tokio::join!(asking, listener.accept());
            assert!(matches!(asked, Err(CallError::Broken { .. })), "{asked:?}");
            assert!(accepted.is_ok());
        }
    }

    /// Sends a request for `base_url` with these proxies to a server in the proxy's place; returns what arrives there.
    async fn seen_by_a_proxy(base_url: &str, of: impl Fn(&str) -> Matcher) -> String {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxies = of(&listener.local_addr().unwrap().to_string());
        let http = Http::by(base_url, None, None, &proxies, KEEP_ALIVE).unwrap();
        let asking = http.send(Method::GET, "models", "application/json", &[], Bytes::new());
        let proxy = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            while !seen.ends_with(b"\r\n\r\n") {
                seen.push(stream.read_u8().await.unwrap());
            }
            stream
                .write_all(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
                .await
                .unwrap();
            String::from_utf8(seen).unwrap()
        };
        let (answer, seen) = tokio::join!(asking, proxy);
        assert!(answer.is_err());
        seen
    }

    #[tokio::test]
    async fn proxies_of_the_environment_are_used_but_not_for_this_machine() {
        let all = |address: &str| {
            Matcher::builder()
                .all(format!("http://me:secret@{address}"))
                .no("near.test")
                .build()
        };
        let plain = seen_by_a_proxy("http://far.test/v1", all).await;
        assert!(
            plain.starts_with("GET http://far.test/v1/models HTTP/1.1\r\n"),
            "{plain}"
        );
        let secure = seen_by_a_proxy("https://far.test/v1", all).await;
        assert!(
            secure.starts_with("CONNECT far.test:443 HTTP/1.1\r\n"),
            "{secure}"
        );
        for seen in [plain, secure] {
            let credentials = "proxy-authorization: basic bwu6c2vjcmv0";
            assert!(seen.to_lowercase().contains(credentials), "{seen}");
        }
        let nowhere = Matcher::builder().all("http://127.0.0.1:9").build();
        let tcp = HttpConnector::new;
        for here in ["http://127.0.0.1:1/v1", "http://localhost:1", "http://[::1]:1"] {
            let way = Connector::to(&here.parse().unwrap(), &nowhere, true, tcp());
            assert!(matches!(way, Ok((Connector::Direct(_), None))), "{here}");
        }
        let way = Connector::to(
            &"http://near.test".parse().unwrap(),
            &all("127.0.0.1:9"),
            true,
            tcp(),
        );
        assert!(matches!(way, Ok((Connector::Direct(_), None))));
        let socks = Matcher::builder().all("socks5://127.0.0.1:9").build();
        let refused = Http::by("https://far.test", None, None, &socks, KEEP_ALIVE);
        assert!(matches!(refused, Err(ConnectError::Proxy { .. })));
    }
}
