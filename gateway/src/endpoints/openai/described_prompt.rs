//! Prompt tokens with their log probabilities, from a language model's outputs and in vLLM's format.

use kaskade_actors::wire::InferReply;
use kaskade_models::Tensor;
use serde_json::{Map, Value, json};

use crate::http::failure::Failure;

/// Tokens of a prompt with their texts and natural log probabilities.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct DescribedPrompt {
    /// Token ids.
    pub(super) ids: Vec<i64>,
    pub(super) tokens: Vec<String>,
    /// Text of all tokens, if the model returns it.
    pub(super) text: Option<String>,
    /// Log probabilities of all tokens except the first.
    pub(super) logprobs: Vec<f64>,
    /// Most probable tokens at each position except the first.
    pub(super) top: Vec<Vec<(String, f64)>>,
    /// Ids of the most probable tokens.
    pub(super) top_ids: Vec<Vec<i64>>,
}

impl DescribedPrompt {
    /// Reads the prompt tokens; `None` if the model does not return them.
    pub(super) fn read(reply: &InferReply) -> Option<Self> {
        let output = |name: &str| reply.outputs.iter().find(|output| output.name == name);
        let ids = |name: &str| output(name).and_then(|ids| ids.to_i64().ok()).unwrap_or_default();
        let tokens = output("prompt_token_texts").or_else(|| output("prompt_tokens"))?;
        let logprobs = output("prompt_logprobs").and_then(|logprobs| logprobs.to_f32().ok());
        let top_tokens = output("prompt_top_token_texts").or_else(|| output("prompt_top_tokens"));
        let top_tokens = top_tokens.zip(output("prompt_top_logprobs"));
        let top = top_tokens.map_or_else(Vec::new, |(tokens, logprobs)| top(tokens, logprobs));
        let each = top.first().map_or(1, Vec::len).max(1);
        Some(Self {
            ids: ids("prompt_tokens"),
            tokens: names(tokens),
            text: output("prompt_text").and_then(|text| Some(text.to_texts().ok()?.concat())),
            logprobs: logprobs.unwrap_or_default().into_iter().map(f64::from).collect(),
            top,
            top_ids: ids("prompt_top_tokens")
                .chunks(each)
                .map(<[i64]>::to_vec)
                .collect(),
        })
    }

    /// Keeps the `count` most probable tokens at each position.
    pub(super) fn keep_top(&mut self, count: u32) {
        let count = count as usize;
        self.top.iter_mut().for_each(|top| top.truncate(count));
        self.top_ids.iter_mut().for_each(|ids| ids.truncate(count));
    }

    /// Returns vLLM's field `prompt_logprobs`: null for the first token, and for each other position an object with the
    /// actual token and the `count` most probable ones, by id. The rank of an actual token that is not among them is
    /// null.
    pub(super) fn logprobs_by_id(&self, count: u32) -> Value {
        let describe = |logprob: f64, rank: Option<usize>, text: &str| json!({"logprob": finite(logprob), "rank": rank, "decoded_token": text});
        let later = self.ids.iter().zip(&self.tokens).skip(1).zip(&self.logprobs);
        let later = later.enumerate().map(|(place, ((id, token), logprob))| {
            let top_ids = self.top_ids.get(place).map_or(&[][..], Vec::as_slice);
            let top = self.top.get(place).map_or(&[][..], Vec::as_slice);
            let mut tokens = Map::new();
            tokens.insert(id.to_string(), describe(*logprob, None, token));
            for (rank, (id, (token, logprob))) in (1..).zip(top_ids.iter().zip(top)).take(count as usize) {
                tokens.insert(id.to_string(), describe(*logprob, Some(rank), token));
            }
            Value::Object(tokens)
        });
        let first = self.ids.first().map(|_| Value::Null);
        first.into_iter().chain(later).collect()
    }
}

/// Returns the failure of a request whose parameter `param` needs the prompt tokens, which the answering variant does
/// not return.
pub(super) fn undescribed(param: &'static str, remedy: &str, reply: &InferReply) -> Failure {
    let message = format!(
        "`{}`, which answered, does not describe the tokens of prompts; {remedy}",
        reply.variant
    );
    Failure::param(param, message)
}

/// Reads the most probable tokens, `[positions, tokens]` each.
pub(super) fn top(tokens: &Tensor, logprobs: &Tensor) -> Vec<Vec<(String, f64)>> {
    let values = logprobs.to_f32().unwrap_or_default();
    let each = tokens.shape.last().copied().unwrap_or(0).max(1);
    let names = names(tokens);
    let places = names.chunks(each).zip(values.chunks(each));
    places
        .map(|(names, values)| {
            names
                .iter()
                .cloned()
                .zip(values.iter().copied().map(f64::from))
                .collect()
        })
        .collect()
}

/// Returns the names of tokens: their texts, or their ids.
pub(super) fn names(tokens: &Tensor) -> Vec<String> {
    match (tokens.to_texts(), tokens.to_i64()) {
        (Ok(texts), _) => texts.into_iter().map(ToOwned::to_owned).collect(),
        (_, Ok(ids)) => ids.into_iter().map(|id| format!("token_id:{id}")).collect(),
        _ => Vec::new(),
    }
}

/// Replaces infinities, which JSON lacks; OpenAI's API uses -9999 for a probability of zero.
pub(super) fn finite(logprob: f64) -> f64 {
    if logprob.is_finite() { logprob } else { -9999.0 }
}
