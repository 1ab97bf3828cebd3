//! Samples of endpoints that ignore `n`, as Ollama's and llama.cpp's do: every missing sample is another call.

use bytes::Bytes;
use kaskade_policy::remote::price::Usage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::{UsageField, malformed};
use crate::endpoint::{Api, Confidence};
use crate::error::CallError;

/// The field of a joined answer that counts its calls.
const CALLS: &str = "kaskade_calls";

/// Returns how many samples a model is asked for: one, unless their agreement is the confidence.
pub(crate) fn wanted(api: &Api) -> u32 {
    match api {
        Api::Chat(chat) => match chat.confidence {
            Confidence::Agreement { samples, .. } => samples,
            _ => 1,
        },
        _ => 1,
    }
}

/// Returns how many samples an answer lacks; none unless their agreement is the confidence. An answer without choices, or that
/// cannot be read, is refused later.
pub(crate) fn missing(api: &Api, body: &Bytes) -> u32 {
    #[derive(Deserialize)]
    struct Choices {
        choices: Vec<IgnoredAny>,
    }

    let samples = wanted(api);
    if samples < 2 {
        return 0;
    }
    let given = serde_json::from_slice::<Choices>(body).map_or(0, |read| read.choices.len());
    match u32::try_from(given) {
        Ok(0) | Err(_) => 0,
        Ok(given) => samples.saturating_sub(given),
    }
}

/// Returns the tokens of an answer, if they are counted, and its calls.
pub(crate) fn counted(answer: &Bytes) -> (Option<Usage>, u32) {
    #[derive(Deserialize)]
    struct Counts {
        #[serde(default, deserialize_with = "super::usage")]
        usage: Option<UsageField>,
        #[serde(rename = "kaskade_calls", default = "one")]
        calls: u32,
    }

    const fn one() -> u32 {
        1
    }

    let read = serde_json::from_slice::<Counts>(answer);
    read.map_or((None, 1), |read| {
        (read.usage.and_then(UsageField::counted), read.calls)
    })
}

/// Returns the body that asks for one more sample. A stated seed is increased by `number`, or all samples would be the same.
pub(crate) fn another(sent: &Bytes, number: u32) -> Bytes {
    let Ok(mut body) = serde_json::from_slice::<Map<String, Value>>(sent) else {
        return sent.clone();
    };
    body.remove("n");
    if let Some(seed) = body.get("seed").and_then(Value::as_i64) {
        body.insert("seed".to_owned(), seed.wrapping_add(i64::from(number)).into());
    }
    Value::Object(body).to_string().into()
}

/// Joins answers to one with all of their choices and the sums of their tokens, if all of them count.
///
/// # Errors
/// [`CallError::Malformed`] for one without a choice.
pub(crate) fn joined(first: &Bytes, others: &[Bytes]) -> Result<Bytes, CallError> {
    let read = |body: &Bytes| serde_json::from_slice::<Map<String, Value>>(body).map_err(malformed);
    let mut whole = read(first)?;
    for body in others {
        let other = read(body)?;
        let choice = other.get("choices").and_then(|choices| choices.get(0));
        let choice = choice.ok_or_else(|| malformed("it has no choices"))?;
        if let Some(choices) = whole.get_mut("choices").and_then(Value::as_array_mut) {
            choices.push(choice.clone());
        }
        let usage = ["prompt_tokens", "completion_tokens"].into_iter().map(|name| {
            let count = |answer: &Map<String, Value>| answer.get("usage")?.get(name)?.as_u64();
            let sum = count(&whole)?.checked_add(count(&other)?)?;
            Some((name.to_owned(), Value::from(sum)))
        });
        let usage: Option<Map<String, Value>> = usage.collect();
        whole.insert("usage".to_owned(), usage.map_or(Value::Null, Value::Object));
    }
    whole.insert(CALLS.to_owned(), (others.len() + 1).into());
    Ok(Value::Object(whole).to_string().into())
}
