//! Samples of endpoints that ignore `n`, as Ollama's and llama.cpp's do: every missing sample is another call.

use std::time::Duration;

use bytes::Bytes;
use kaskade_policy::remote::price::Usage;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

use super::{UsageField, malformed};
use crate::endpoint::{Api, Confidence};
use crate::error::CallError;
use crate::error_body::error_in;
use crate::spending::Reserved;

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

/// The samples of an answer that have been read. They are kept while a further one is repeated.
#[derive(Default)]
pub(crate) struct Samples {
    /// The answers so far, joined; `None` before the first.
    whole: Option<Bytes>,
    /// Duration of their calls.
    pub took: Duration,
    /// Money for the samples that are missing.
    pub reserved: Option<Reserved>,
}

impl Samples {
    /// Returns how many samples are missing: all before the first call, and none after it unless their agreement is the confidence. An
    /// answer without choices, or that cannot be read, is refused later.
    pub(crate) fn missing(&self, api: &Api) -> u32 {
        let samples = wanted(api);
        match &self.whole {
            None => samples,
            Some(_) if samples < 2 => 0,
            Some(whole) => match choices(whole) {
                0 => 0,
                given => samples.saturating_sub(given),
            },
        }
    }

    /// Returns the body of the next call: that of the request, or one that asks for one more sample.
    pub(crate) fn next_body(&self, sent: &Bytes) -> Bytes {
        match &self.whole {
            None => sent.clone(),
            Some(whole) => another(sent, counted(whole).1),
        }
    }

    /// Adds an answer, and returns all so far.
    ///
    /// # Errors
    /// [`CallError`] that the answer states, or [`CallError::Malformed`], for one without a choice beside others.
    pub(crate) fn add(&mut self, answer: Bytes, took: Duration) -> Result<Bytes, CallError> {
        let whole = match &self.whole {
            None => answer,
            Some(whole) => joined(whole, &answer)?,
        };
        self.took += took;
        self.whole = Some(whole.clone());
        Ok(whole)
    }
}

/// Returns the number of choices of an answer.
fn choices(body: &Bytes) -> u32 {
    #[derive(Deserialize)]
    struct Choices {
        choices: Vec<IgnoredAny>,
    }

    let read = serde_json::from_slice::<Choices>(body);
    read.map_or(0, |read| u32::try_from(read.choices.len()).unwrap_or(u32::MAX))
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
fn another(sent: &Bytes, number: u32) -> Bytes {
    let Ok(mut body) = serde_json::from_slice::<Map<String, Value>>(sent) else {
        return sent.clone();
    };
    body.remove("n");
    if let Some(seed) = body.get("seed").and_then(Value::as_i64) {
        body.insert("seed".to_owned(), seed.wrapping_add(i64::from(number)).into());
    }
    Value::Object(body).to_string().into()
}

/// Joins an answer to others: the result has all choices, and the sums of the tokens if all count them.
fn joined(whole: &Bytes, answer: &Bytes) -> Result<Bytes, CallError> {
    let read = |body: &Bytes| serde_json::from_slice::<Map<String, Value>>(body).map_err(malformed);
    let calls = counted(whole).1 + 1;
    let (mut whole, other) = (read(whole)?, read(answer)?);
    let choice = other.get("choices").and_then(|choices| choices.get(0));
    let choice = choice.ok_or_else(|| error_in(answer).unwrap_or_else(|| malformed("it has no choices")))?;
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
    whole.insert(CALLS.to_owned(), calls.into());
    Ok(Value::Object(whole).to_string().into())
}
