//! Cross-origin requests of browsers (Fetch standard). Without allowed origins, browsers keep other sites from reading
//! answers; other clients are not affected.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

/// Response headers that a page of another origin may read.
const EXPOSED: &str = "retry-after, retry-after-ms, x-request-id, x-should-retry, x-kaskade-confidence, x-kaskade-cost, \
                       x-kaskade-cost-source, x-kaskade-degraded, x-kaskade-fault, x-kaskade-hops, x-kaskade-joules, \
                       x-kaskade-joules-source, x-kaskade-request-id, x-kaskade-stage, x-kaskade-variant";

/// Time for which a browser may cache the answer to a preflight request, seconds.
const MAX_AGE: &str = "600";

/// Returns the origin of a request, if it is allowed. `*` allows every origin.
pub(crate) fn allowed(origins: &[String], headers: &HeaderMap) -> Option<HeaderValue> {
    let origin = headers.get(header::ORIGIN)?;
    let text = origin.to_str().ok()?;
    let allowed = origins.iter().any(|known| known == "*" || known == text);
    allowed.then(|| origin.clone())
}

/// Returns whether a request is a CORS preflight request.
pub(crate) fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    method == Method::OPTIONS && headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
}

/// Returns the answer to a preflight request of an allowed origin.
pub(crate) fn preflight(headers: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    let answer = response.headers_mut();
    answer.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("GET, POST"),
    );
    answer.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
    // The key provides the protection, so any request header is allowed.
    if let Some(asked) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        answer.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    response
}

/// Allows pages of this origin to read an answer.
pub(crate) fn share(response: &mut Response<Body>, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(EXPOSED),
    );
}

/// Tells caches that answers differ by origin, including answers that no other origin may read.
pub(crate) fn vary(response: &mut Response<Body>) {
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("origin"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_origins_are_allowed() {
        let of =
            |origin: &'static str| HeaderMap::from_iter([(header::ORIGIN, HeaderValue::from_static(origin))]);
        let listed = ["https://a.example".to_owned()];
        assert!(allowed(&listed, &of("https://a.example")).is_some());
        for other in ["https://a.example.org", "http://a.example", "null"] {
            assert!(allowed(&listed, &of(other)).is_none(), "{other}");
        }
        assert!(allowed(&[], &of("https://a.example")).is_none());
        assert!(allowed(&["*".to_owned()], &of("https://b.example")).is_some());
        assert!(allowed(&listed, &HeaderMap::new()).is_none());
    }
}
