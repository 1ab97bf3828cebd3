//! Processing of every request before and after its handler: id, key, limits, compression, log line.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, Version, header};
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use kaskade_actors::ids;
use kaskade_actors::wire::headers::check_request_id;
use tokio::time::timeout;

use crate::endpoints::dashboard;
use crate::http::api::{Api, is_grpc_probe, is_grpc_stream};
use crate::http::body::{Coding, compressed};
use crate::http::cors;
use crate::http::failure::Failure;
use crate::http::grpc_status;
use crate::http::header_names;
use crate::http::other_paths::without_empty_parts;
use crate::limits::limited_body::LimitedBody;
use crate::limits::permits::Permits;
use crate::limits::tenant::Tenant;
use crate::requests::trace::{self, HttpSpan};
use crate::state::GatewayState;

/// Returns the tenant with the key of the request.
fn tenant<'a>(shared: &'a GatewayState, headers: &HeaderMap) -> Result<Option<&'a Arc<Tenant>>, Failure> {
    if shared.tenants.is_empty() {
        return Ok(None);
    }
    let key = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok());
    // Scheme names are case-insensitive (RFC 9110, section 11.1).
    let key = key
        .and_then(|value| value.split_once(' '))
        .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
        .map_or("", |(_, key)| key.trim_start());
    // Compare every key, so that the time reveals nothing about a nearly matching one.
    let mut found = None;
    for tenant in &shared.tenants {
        if tenant.has_key(key) {
            found = Some(tenant);
        }
    }
    found.map(Some).ok_or_else(Failure::unauthorised)
}

/// Returns whether a path is a probe, which needs neither a key nor a permit.
fn is_open(path: &str) -> bool {
    matches!(
        path,
        "/health" | "/live" | "/ready" | "/metrics" | "/v2/health/live" | "/v2/health/ready"
    ) || is_grpc_probe(path)
}

/// The routes with the processing around them.
pub(crate) struct Guarded {
    pub(crate) shared: Arc<GatewayState>,
    pub(crate) routes: TowerToHyperService<Router>,
}

impl Guarded {
    /// Answers a request.
    pub(crate) async fn answer(self: Arc<Self>, mut request: Request) -> Result<Response<Body>, Infallible> {
        let shared = &self.shared;
        let begun = Instant::now();
        if let Some(path) = without_empty_parts(request.uri().path()) {
            set_path(&mut request, path);
        }
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let path = uri.path();
        let is_http1 = request.version() == Version::HTTP_11;
        let coding = Coding::accepted(request.headers());
        let origin = cors::allowed(&shared.limits.cors, request.headers());
        let crosses = !shared.limits.cors.is_empty();
        if origin.is_some() && cors::is_preflight(&method, request.headers()) {
            let mut response = cors::preflight(request.headers());
            if let Some(origin) = origin {
                cors::share(&mut response, origin);
            }
            cors::vary(&mut response);
            return Ok(response);
        }
        let id = request_id(request.headers());
        let (mut of_tenant, mut counted) = (None, None);
        let admitted = if is_open(path) {
            Ok(())
        } else {
            admit(shared, request.headers(), path, &method).map(|(permits, tenant)| {
                of_tenant = tenant;
                request.extensions_mut().insert(permits.clone());
                counted = Some(permits);
            })
        };
        let api = if grpc_status::is_grpc(request.headers()) {
            Api::Grpc
        } else {
            Api::from_path(path)
        };
        let is_stranger = admitted
            .as_ref()
            .is_err_and(|failure| failure.status == StatusCode::UNAUTHORIZED);
        let span = HttpSpan::begin(request.headers(), is_stranger);
        request.extensions_mut().insert(span.trace);
        if let Some(permits) = counted.filter(|_| !request.body().is_end_stream()) {
            request = count(shared, request, permits);
        }
        let mut response = match admitted {
            Ok(()) if is_grpc_probe(path) => self.probe(request, api).await?,
            Ok(()) => self.routes.call(request).await?,
            Err(failure) => trace::unrouted(failure.response(api)),
        };
        if let Some(origin) = origin {
            cors::share(&mut response, origin);
        }
        if crosses {
            cors::vary(&mut response);
        }
        // Do not log probes: balancers and metric collectors send them every few seconds.
        if !is_open(path) {
            span.end(&method, path, &response);
        }
        tracing::info!(
            request_id = id,
            trace_id = format_args!("{:032x}", span.trace.trace_id),
            method = %method,
            path,
            tenant = of_tenant,
            status = response.status().as_u16(),
            seconds = begun.elapsed().as_secs_f64(),
            "http request"
        );
        if is_http1 && shared.is_leaving() {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        if let Ok(id) = HeaderValue::try_from(id) {
            response.headers_mut().insert(&header_names::REQUEST_ID, id);
        }
        Ok(match coding {
            Some(coding) => compressed(response, coding, shared.limits.compress_from).await,
            None => response,
        })
    }

    /// Answers a gRPC probe, which holds no permit; its body must arrive in time.
    async fn probe(&self, request: Request, api: Api) -> Result<Response<Body>, Infallible> {
        let pause = self.shared.limits.body_pause;
        match timeout(pause, self.routes.call(request)).await {
            Ok(response) => response,
            Err(_) => Ok(trace::unrouted(Failure::stalled(pause).response(api))),
        }
    }
}

/// Sets the path of a request; keeps the query.
fn set_path(request: &mut Request, path: String) {
    let path_and_query = match request.uri().query() {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = path_and_query.parse().ok();
    if let Ok(uri) = Uri::from_parts(parts) {
        *request.uri_mut() = uri;
    }
}

/// Counts the bytes of a request's body as they arrive. In a stream, each message counts separately until it is
/// answered.
fn count(shared: &GatewayState, request: Request, permits: Permits) -> Request {
    let path = request.uri().path();
    if is_grpc_stream(path) {
        return request;
    }
    let pause = (Api::from_path(path) == Api::Grpc).then_some(shared.limits.body_pause);
    request.map(|body| Body::new(LimitedBody::new(body, Arc::clone(&shared.bodies), permits, pause)))
}

/// Returns the client's request id, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    let given = headers
        .get(&header_names::REQUEST_ID)
        .and_then(|id| id.to_str().ok());
    let given = given.filter(|id| check_request_id(id).is_ok());
    given.map_or_else(ids::unique_token, ToOwned::to_owned)
}

fn admit(
    shared: &GatewayState,
    headers: &HeaderMap,
    path: &str,
    method: &Method,
) -> Result<(Permits, Option<String>), Failure> {
    // The page and the document are the same for every tenant and contain no data.
    let tenant = if matches!(path, "/" | "/openapi.json") && method == Method::GET {
        None
    } else {
        tenant(shared, headers)?
    };
    if path.starts_with(dashboard::EVENTS) && tenant.is_some_and(|tenant| !tenant.is_operator()) {
        return Err(Failure::operators_only());
    }
    let permits = Permits::take(&shared.in_progress, tenant)?;
    Ok((permits, tenant.map(|tenant| tenant.name().to_owned())))
}
