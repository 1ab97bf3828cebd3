//! `/v1/completions`: prompts as texts or tokens.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::Response;
use kaskade_actors::wire::{InferReply, InferRequest};
use kaskade_models::Tensor;
use kaskade_models::language::request::PROMPT_LOGPROBS;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::choice::{Choice, Usage, fingerprint, unix_seconds};
use super::described_prompt::undescribed;
use super::refused_fields::{Requests, refusal};
use super::sampling::{Common, MAX_TOP};
use super::sse::{self, ApiKind, ChoiceRequest, Head};
use super::text_offsets::Offsets;
use crate::answer_kind::AnswerKind;
use crate::endpoints::oip::json_response;
use crate::http::api::Api;
use crate::http::body;
use crate::http::failure::Failure;
use crate::http::json_body;
use crate::http::json_body::set_field;
use crate::requests::call::Call;
use crate::state::GatewayState;

/// Kinds of apps that complete no texts.
pub(super) const NOT_TEXT: [AnswerKind; 4] = [
    AnswerKind::Embedding,
    AnswerKind::Classes,
    AnswerKind::Relevance,
    AnswerKind::Span,
];

/// Largest number of prompts times choices, and of texts, of one request.
pub(super) const MAX_REQUESTS: usize = 2_048;

#[derive(Deserialize)]
#[serde(expecting = "an object with the fields of a completion")]
struct Completion {
    prompt: Prompts,
    #[serde(default)]
    logprobs: Option<u32>,
    #[serde(default)]
    echo: Option<bool>,
    #[serde(default)]
    best_of: Option<u32>,
    #[serde(flatten)]
    common: Common,
}

impl Completion {
    /// Refuses fields that would be answered wrongly.
    fn check(&self, top: u32) -> Result<(), Failure> {
        if top > MAX_TOP {
            return Err(Failure::param(
                "logprobs",
                format!("`logprobs` must be at most {MAX_TOP}"),
            ));
        }
        if self.best_of.is_some_and(|best| best > self.common.choices()) {
            return Err(refusal(Requests::Completions, "best_of"));
        }
        if self
            .common
            .structured
            .tools
            .as_ref()
            .is_some_and(|tools| !tools.is_empty())
        {
            return Err(refusal(Requests::Completions, "tools"));
        }
        Ok(())
    }
}

/// Prompts, or the inputs of embeddings.
#[derive(Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "a prompt or input must be a text, a list of texts, a list of tokens, or several lists of tokens"
)]
pub(super) enum Prompts {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<i64>),
    ManyTokens(Vec<Vec<i64>>),
}

/// A prompt: a text or tokens.
pub(super) enum Prompt {
    Text(String),
    Tokens(Vec<i64>),
}

impl Prompts {
    /// Returns each prompt.
    ///
    /// # Errors
    /// `KSK0001` for none or too many.
    pub(super) fn each(self, param: &'static str) -> Result<Vec<Prompt>, Failure> {
        let prompts: Vec<Prompt> = match self {
            Self::Text(text) => vec![Prompt::Text(text)],
            Self::Texts(texts) => texts.into_iter().map(Prompt::Text).collect(),
            Self::Tokens(tokens) => vec![Prompt::Tokens(tokens)],
            Self::ManyTokens(prompts) => prompts.into_iter().map(Prompt::Tokens).collect(),
        };
        if prompts.is_empty() || prompts.len() > MAX_REQUESTS {
            return Err(Failure::param(
                param,
                format!("`{param}` must be a text or from 1 to {MAX_REQUESTS} of them"),
            ));
        }
        Ok(prompts)
    }
}

impl Prompt {
    /// Returns the input tensor.
    pub(super) fn input(&self) -> Result<Tensor, Failure> {
        Ok(match self {
            Self::Text(text) => Tensor::from_texts("text", &[text])?,
            Self::Tokens(tokens) => Tensor::from_i64("input_ids", &[tokens.len()], tokens)?,
        })
    }

    /// Number of tokens, if it was sent as tokens.
    pub(super) fn tokens(&self) -> Option<i64> {
        match self {
            Self::Text(_) => None,
            Self::Tokens(tokens) => i64::try_from(tokens.len()).ok(),
        }
    }
}

/// Reads a body and finds its app.
pub(super) async fn begin<T: DeserializeOwned + Send + 'static>(
    shared: &GatewayState,
    request: Request,
    model: impl FnOnce(&T) -> Option<&str>,
) -> Result<(Call, T), Failure> {
    let (parts, body) = request.into_parts();
    let body = shared.read_body(&parts, body).await?;
    let asked: T = body::process(body, |body| json_body::read(body)).await?;
    let app = shared.app_or_only(model(&asked))?;
    let fallback = app.options.max_budget;
    let call = Call::new(app, &parts.headers, &parts.extensions, fallback)?;
    Ok((call, asked))
}

/// Sends the requests together and waits for all answers; the first failure cancels the others.
pub(super) async fn answers(call: &Call, asked: &mut [ChoiceRequest]) -> Result<Vec<InferReply>, Failure> {
    let requests = asked.iter_mut().map(|asked| std::mem::take(&mut asked.request));
    call.ask_all(requests.collect()).await
}

pub(super) async fn create(State(shared): State<Arc<GatewayState>>, request: Request) -> Response<Body> {
    let answered = complete(&shared, request).await;
    answered.unwrap_or_else(|failure| failure.response(Api::OpenAi))
}

/// Returns a request for each choice of each prompt. `described` is the number of the most probable tokens at each place of the
/// prompt, if the model describes it.
fn requests(
    common: &Common,
    prompts: &[Prompt],
    (echo, logprobs, described): (bool, Option<u32>, Option<u32>),
) -> Result<Vec<ChoiceRequest>, Failure> {
    let mut requests = Vec::new();
    let sampling = common.inputs(logprobs)?;
    for prompt in prompts {
        let mut inputs = vec![prompt.input()?];
        inputs.extend_from_slice(&sampling);
        if let Some(count) = described {
            inputs.push(Tensor::from_i64(PROMPT_LOGPROBS, &[1], &[count.into()])?);
        }
        for choice in 0..common.choices() {
            let text = match prompt {
                Prompt::Text(text) if echo => text.clone(),
                _ => String::new(),
            };
            requests.push(ChoiceRequest {
                request: InferRequest {
                    inputs: common.of_choice(&inputs, choice)?,
                    ..InferRequest::default()
                },
                prompt_tokens: prompt.tokens(),
                first: choice == 0,
                echo: text,
            });
        }
    }
    Ok(requests)
}

/// What a choice reports beside the text of the model.
struct Reported {
    /// Whether the answer is left out.
    prompt_only: bool,
    logprobs: bool,
    /// Number of the most probable tokens at each place of a prompt whose tokens are echoed.
    echoed_top: Option<u32>,
    prompt_logprobs: Option<u32>,
}

impl Reported {
    /// Reads a choice, and writes it without its index. `echo` is the text of an echo, if the prompt is one.
    ///
    /// # Errors
    /// `KSK0001` if the model does not describe the prompt although the request needs it; those of [`Choice::read`].
    fn choice(&self, reply: &InferReply, echo: &str) -> Result<(Choice, Value), Failure> {
        let mut choice = Choice::read(reply)?;
        if self.prompt_only {
            choice.leave_answer_out();
        }
        let mut prompt = choice.prompt.take();
        let by_id = prompt.as_ref().zip(self.prompt_logprobs);
        let by_id = by_id.map(|(prompt, count)| prompt.logprobs_by_id(count));
        let mut echo = echo.to_owned();
        if let Some(top) = self.echoed_top {
            let Some(prompt) = &mut prompt else {
                return Err(undescribed("echo", "send a text without `logprobs`", reply));
            };
            // Characters of several tokens are not in the texts of these.
            if echo.is_empty() {
                echo = prompt.text.clone().unwrap_or_else(|| prompt.tokens.concat());
            }
            prompt.keep_top(top);
            choice.prompt = Some(std::mem::take(prompt));
        }
        let text = format!("{echo}{}", choice.text);
        // The tokens of an echo without them are not listed.
        let from = if choice.prompt.is_some() {
            0
        } else {
            echo.chars().count()
        };
        let logprobs = self
            .logprobs
            .then(|| choice.completion_logprobs(&Offsets::of(&text, from)));
        let mut written = json!({
            "text": text,
            "logprobs": logprobs,
            "finish_reason": choice.finish,
        });
        if self.prompt_logprobs.is_some() {
            let by_id =
                by_id.ok_or_else(|| undescribed("prompt_logprobs", "leave `prompt_logprobs` out", reply))?;
            set_field(&mut written, "prompt_logprobs", by_id);
        }
        Ok((choice, written))
    }
}

async fn complete(shared: &GatewayState, request: Request) -> Result<Response<Body>, Failure> {
    let (call, mut asked): (_, Completion) = begin(shared, request, |asked: &Completion| {
        asked.common.model.as_deref()
    })
    .await?;
    call.app.check_answer_kind(&NOT_TEXT)?;
    let (echo, top) = (asked.echo.unwrap_or(false), asked.logprobs.unwrap_or(0));
    // A prompt alone is scored so. A model generates at least one token, which is left out.
    let prompt_only = echo && asked.common.takes_no_token();
    if prompt_only {
        asked.common.set_max_tokens(Some(1));
    }
    asked.common.check(Requests::Completions)?;
    asked.check(top)?;
    let logprobs = asked.logprobs.is_some();
    let prompt_logprobs = asked.common.prompt_logprobs()?;
    let prompts = asked.prompt.each("prompt")?;
    // The model describes the tokens of the prompt.
    let echoes_tokens =
        echo && (logprobs || prompts.iter().any(|prompt| matches!(prompt, Prompt::Tokens(_))));
    if (echoes_tokens || prompt_only) && asked.common.stream.unwrap_or(false) {
        return Err(Failure::param(
            "stream",
            "an echo of tokens, with `logprobs` or without an answer is not streamed; leave `stream` or `echo` out",
        ));
    }
    if prompts.len().saturating_mul(asked.common.choices() as usize) > MAX_REQUESTS {
        return Err(Failure::param(
            "n",
            format!("prompts times `n` must be at most {MAX_REQUESTS}"),
        ));
    }
    let reported = Reported {
        prompt_only,
        logprobs,
        echoed_top: echoes_tokens.then_some(top),
        prompt_logprobs,
    };
    let described = reported.echoed_top.max(prompt_logprobs);
    let mut requests = requests(&asked.common, &prompts, (echo, asked.logprobs, described))?;
    let head = Head {
        api: ApiKind::Completion,
        id: format!("cmpl-{}", kaskade_actors::ids::unique_token()),
        created: unix_seconds(),
        model: call.app.options.name.clone(),
        logprobs,
        include_usage: asked.common.include_usage(),
        parallel_calls: true,
    };
    let with_field = |failure| asked.common.structured.with_field(failure);
    if asked.common.stream.unwrap_or(false) {
        return sse::respond(call, head, requests).await.map_err(with_field);
    }
    let replies = answers(&call, &mut requests).await.map_err(with_field)?;
    let mut usage = Usage::default();
    let mut choices = Vec::new();
    for (index, (asked, reply)) in requests.iter().zip(&replies).enumerate() {
        let (choice, mut written) = reported.choice(reply, &asked.echo)?;
        usage.add(&call, reply, &choice, asked.prompt_tokens, asked.first);
        set_field(&mut written, "index", index.into());
        choices.push(written);
    }
    let mut body = json!({
        "id": head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "system_fingerprint": fingerprint(&call),
    });
    usage.write(&mut body);
    let mut response = json_response(axum::http::StatusCode::OK, body.to_string());
    if let Some(reply) = replies.first() {
        call.describe(reply, response.headers_mut());
    }
    Ok(response)
}
