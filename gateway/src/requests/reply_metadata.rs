//! Metadata that describes how a request was answered, for headers and bodies.

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use kaskade_actors::wire::InferReply;
use kaskade_policy::remote::price::Cost;
use serde::Serialize;
use serde_json::{Value, json};

use crate::apps::app_state::Joules;
use crate::http::header_names;

/// Metadata of a reply.
pub(crate) struct ReplyMetadata<'a> {
    reply: &'a InferReply,
    /// Names of the stages passed, in order: `small>large`.
    hops: String,
    joules: Option<Joules>,
    /// Total cost over all hops; `None` if one is unknown.
    cost: Option<Cost>,
}

/// The parameters of a response of the Open Inference Protocol.
#[derive(Serialize)]
pub(crate) struct Parameters<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    confidence: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_source: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    degraded: bool,
    hops: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    joules: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    joules_source: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    stage: &'a str,
}

impl<'a> ReplyMetadata<'a> {
    /// Creates the metadata of a reply; `joules` is `None` if unknown.
    pub(crate) fn new(reply: &'a InferReply, joules: Option<Joules>) -> Self {
        let hops: Vec<&str> = reply.hops.iter().map(|hop| hop.stage.as_str()).collect();
        Self {
            reply,
            hops: hops.join(">"),
            joules,
            cost: Cost::total(reply.hops.iter().map(|hop| hop.cost)),
        }
    }

    /// Sets the metadata headers. Some are not known yet for a part of a streamed answer.
    pub(crate) fn headers(&self, headers: &mut HeaderMap) {
        let mut put = |name: &'static HeaderName, value: Result<HeaderValue, _>| {
            if let Ok(value) = value
                && !value.is_empty()
            {
                headers.insert(name, value);
            }
        };
        let text = HeaderValue::from_str;
        if let Some(id) = &self.reply.id {
            put(&header_names::KASKADE_REQUEST_ID, text(id));
        }
        put(&header_names::VARIANT, text(&self.reply.variant));
        put(&header_names::STAGE, text(&self.reply.stage));
        put(&header_names::HOPS, text(&self.hops));
        if let Some(confidence) = self.reply.confidence {
            put(&header_names::CONFIDENCE, text(&confidence.to_string()));
        }
        if self.reply.degraded {
            put(&header_names::DEGRADED, Ok(HeaderValue::from_static("true")));
        }
        if let Some(joules) = &self.joules {
            put(&header_names::JOULES, text(&joules.joules.to_string()));
            put(&header_names::JOULES_SOURCE, text(&joules.source));
        }
        if let Some(cost) = self.cost {
            put(&header_names::COST, text(&cost.amount.to_string()));
            put(&header_names::COST_SOURCE, text(cost.source.name()));
        }
    }

    /// Returns the parameters of a response of the Open Inference Protocol.
    pub(crate) fn parameters(&self) -> Parameters<'_> {
        Parameters {
            confidence: self.reply.confidence,
            cost: self.cost.map(|cost| cost.amount),
            cost_source: self.cost.map(|cost| cost.source.name()),
            degraded: self.reply.degraded,
            hops: &self.hops,
            joules: self.joules.as_ref().map(|joules| joules.joules),
            joules_source: self.joules.as_ref().map(|joules| joules.source.as_str()),
            request_id: self.reply.id.as_deref(),
            stage: &self.reply.stage,
        }
    }

    /// Returns the metadata for a body of the OpenAI API: id over NATS, variant, stage, confidence, hops, energy and
    /// money with their sources.
    pub(crate) fn json(&self) -> Value {
        let hops = self.reply.hops.iter().map(|hop| {
            json!({
                "stage": hop.stage, "wait_us": hop.wait_us, "run_us": hop.run_us, "batch": hop.batch,
                "cost": hop.cost.filter(Cost::is_sound).map(|cost| cost.amount),
            })
        });
        let parameters = self.parameters();
        json!({
            "request_id": self.reply.id,
            "variant": self.reply.variant,
            "stage": self.reply.stage,
            "confidence": self.reply.confidence,
            "degraded": self.reply.degraded,
            "hops": hops.collect::<Vec<_>>(),
            "joules": parameters.joules,
            "joules_source": parameters.joules_source,
            "cost": parameters.cost,
            "cost_source": parameters.cost_source,
        })
    }
}
