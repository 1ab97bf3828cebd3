//! `/tokenize` and `/decode` in the form of text-embeddings-inference.

use axum::http::HeaderMap;
use axum::http::request::Parts;
use serde::{Deserialize, Serialize};

use super::{MAX_TEXTS, app_of};
use crate::http::failure::Failure;
use crate::state::GatewayState;
use crate::tokenizer::refused;

/// Most bytes of the texts of one request, together.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// Texts to tokenize.
#[derive(Deserialize)]
#[serde(expecting = "an object with the fields of a request for tokens")]
pub(crate) struct Tokenize {
    inputs: Texts,
    #[serde(default)]
    add_special_tokens: Option<bool>,
    #[serde(default)]
    prompt_name: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`inputs` must be a text or a list of texts")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

/// Tokens to turn into texts.
#[derive(Deserialize)]
#[serde(expecting = "an object with the fields of a request for texts")]
pub(crate) struct Decode {
    ids: Ids,
    #[serde(default)]
    skip_special_tokens: Option<bool>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "`ids` must be a list of tokens or several of them")]
enum Ids {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

#[derive(Serialize)]
struct Token {
    id: u32,
    text: String,
    special: bool,
    start: Option<usize>,
    stop: Option<usize>,
}

/// Answers `/tokenize`.
///
/// # Errors
/// `KSK0001` with the field, `no_tokenizer`.
pub(crate) async fn tokenize(
    shared: &GatewayState,
    parts: &Parts,
    asked: Tokenize,
) -> Result<(String, HeaderMap), Failure> {
    let app = app_of(shared, parts, None)?;
    let texts = match asked.inputs {
        Texts::One(text) => vec![text],
        Texts::Many(texts) => texts,
    };
    check_count("inputs", texts.len())?;
    if texts.iter().map(String::len).sum::<usize>() > MAX_BYTES {
        let message = format!("the texts have more than {MAX_BYTES} bytes together; send several requests");
        return Err(Failure::param("inputs", message));
    }
    let special = asked.add_special_tokens.unwrap_or(true);
    app.tokenizer
        .run(&shared.tokenizing, move |tokenizer| {
            let tokens = texts.iter().map(|text| {
                let tokens = tokenizer.tokens(text, special, asked.prompt_name.as_deref());
                let tokens = tokens.map_err(|error| refused(error, None))?.into_iter();
                Ok(tokens
                    .map(|token| Token {
                        id: token.id,
                        text: token.text,
                        special: token.span.is_none(),
                        start: token.span.map(|[start, _]| start),
                        stop: token.span.map(|[_, stop]| stop),
                    })
                    .collect())
            });
            tokens.collect::<Result<Vec<Vec<Token>>, Failure>>()
        })
        .await
}

/// Answers `/decode`.
///
/// # Errors
/// As [`tokenize`].
pub(crate) async fn decode(
    shared: &GatewayState,
    parts: &Parts,
    asked: Decode,
) -> Result<(String, HeaderMap), Failure> {
    let app = app_of(shared, parts, None)?;
    let ids = match asked.ids {
        Ids::One(ids) => vec![ids],
        Ids::Many(ids) => ids,
    };
    check_count("ids", ids.len())?;
    let skips = asked.skip_special_tokens.unwrap_or(true);
    app.tokenizer
        .run(&shared.tokenizing, move |tokenizer| {
            let texts = ids.iter().map(|ids| tokenizer.decode(ids, skips));
            let texts: Result<Vec<String>, _> = texts.collect();
            texts.map_err(|error| refused(error, Some("ids")))
        })
        .await
}

fn check_count(field: &'static str, count: usize) -> Result<(), Failure> {
    if (1..=MAX_TEXTS).contains(&count) {
        return Ok(());
    }
    Err(Failure::param(
        field,
        format!("`{field}` must have from 1 to {MAX_TEXTS} elements"),
    ))
}
