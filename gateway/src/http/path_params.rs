//! Path parameters. A parameter that is not UTF-8 is refused with an error in the form of the path's API.

use axum::body::Body;
use axum::extract::FromRequestParts;
use axum::http::Response;
use axum::http::request::Parts;
use serde::de::DeserializeOwned;

use crate::http::api::Api;
use crate::http::failure::Failure;

/// The parameters in the path of a request, percent-decoded.
pub(crate) struct Path<T>(pub(crate) T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = Response<Body>;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Self::Rejection> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(names)) => Ok(Self(names)),
            Err(rejection) => {
                let reason = rejection.body_text();
                Err(Failure::malformed(reason).response(Api::from_path(parts.uri.path())))
            }
        }
    }
}
