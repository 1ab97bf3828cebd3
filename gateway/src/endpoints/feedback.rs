//! `POST /v1/feedback`: delayed labels, that is, the correct answers to earlier requests.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Response, StatusCode};
use axum::routing::post;
use kaskade_actors::wire::{FeedbackLabel, FeedbackReply};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::endpoints::oip::json_response;
use crate::http::api::Api;
use crate::http::body;
use crate::http::failure::Failure;
use crate::http::json_body;
use crate::limits::permits::Permits;
use crate::requests::request_ids;
use crate::state::GatewayState;

/// Timeout for the reply of the ingress that answered the request; without a reply, no ingress remembers it.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the route.
pub(crate) fn routes() -> Router<Arc<GatewayState>> {
    Router::new().route("/v1/feedback", post(create))
}

#[derive(Deserialize)]
struct FeedbackBody {
    #[serde(default)]
    model: Option<String>,
    request_id: String,
    label: Value,
}

async fn create(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    match label(&shared, request).await {
        Ok(reply) => json_response(
            StatusCode::OK,
            json!({
                "object": "feedback",
                "request_id": reply.id,
                "right": reply.right,
                "variant": reply.variant,
                "audited": reply.audited,
                "unchecked": reply.unchecked,
            })
            .to_string(),
        ),
        Err(failure) => failure.response(Api::OpenAi),
    }
}

async fn label(shared: &GatewayState, request: Request) -> Result<FeedbackReply, Failure> {
    let (parts, body) = request.into_parts();
    let body = shared.read_body(&parts, body).await?;
    let asked: FeedbackBody = body::process(body, |body| json_body::read(body)).await?;
    let app = shared.app_or_only(asked.model.as_deref())?;
    let right = parse_label(asked.label)?;
    let permits = parts.extensions.get::<Permits>();
    let id = asked.request_id;
    if !request_ids::is_of(permits.and_then(Permits::tenant), &id) {
        return Err(Failure::unknown_request(&id));
    }
    let reply = app.client.feedback(&id, right, TIMEOUT).await?;
    let reply = reply.ok_or_else(|| Failure::unknown_request(&id))?;
    match reply.refused {
        Some(reason) => Err(Failure {
            param: Some("label".into()),
            ..Failure::wrong_kind(reason)
        }),
        None => Ok(reply),
    }
}

fn parse_label(label: Value) -> Result<FeedbackLabel, Failure> {
    let class = label.as_u64().map(FeedbackLabel::Class);
    let text = |label| match label {
        Value::String(text) => Some(FeedbackLabel::Text(text)),
        _ => None,
    };
    class.or_else(|| text(label)).ok_or_else(|| {
        Failure::param(
            "label",
            "the field `label` must be the number of a class from 0, or a text",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_a_number_or_a_text() {
        assert_eq!(parse_label(json!(7)).unwrap(), FeedbackLabel::Class(7));
        assert_eq!(
            parse_label(json!("yes")).unwrap(),
            FeedbackLabel::Text("yes".to_owned())
        );
        for wrong in [json!(-1), json!(0.5), json!(null), json!([1]), json!({})] {
            let failure = parse_label(wrong).unwrap_err();
            assert_eq!(failure.param.as_deref(), Some("label"));
        }
    }
}
