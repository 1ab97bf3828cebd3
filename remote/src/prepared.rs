//! A request as it is written for an endpoint, and the answer as it is read.

use bytes::Bytes;
use hyper::header::HeaderName;
use kaskade_models::Outputs;
use kaskade_policy::remote::price::Usage;

/// A request, written for the endpoint's protocol.
#[derive(Debug, Clone)]
pub(crate) struct Prepared {
    /// Path after the base address.
    pub path: String,
    /// Type of the body.
    pub content_type: &'static str,
    /// Headers of the protocol.
    pub headers: Vec<(HeaderName, String)>,
    /// The body.
    pub body: Bytes,
    /// The header of the answer that reading it takes.
    pub head: Option<HeaderName>,
    /// Whether the answer comes in parts.
    pub streamed: bool,
    /// Most tokens of the answer.
    pub max_tokens: u32,
    /// Most probable tokens that the request wants to see beside the log-probabilities of its tokens; `None` without these.
    pub top_logprobs: Option<usize>,
    /// Whether the temperature may be left out, because the request states none.
    pub free_temperature: bool,
}

/// An answer that has been read.
#[derive(Debug, Clone)]
pub(crate) struct Answer {
    pub outputs: Outputs,
    /// Tokens, if the endpoint counts them.
    pub usage: Option<Usage>,
    /// Calls that it took: one, and one for every sample of an endpoint that gives one at a time.
    pub calls: u32,
}

/// Receives the parts of a streamed answer.
pub(crate) type Parts<'a> = &'a mut (dyn FnMut(Outputs) + Send);
