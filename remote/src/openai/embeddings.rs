//! Embeddings: lists of floats, or base64 of little-endian FP32 from servers that ignore `encoding_format`.

use bytes::Bytes;
use kaskade_models::{Datatype, Extent, InputSpec, Inputs, ModelError, Signature, Tensor, images};
use serde::Deserialize;
use serde_json::json;

use super::prompt::{MAX_TOKENS, Prompt};
use super::{UsageField, malformed, or_default, usage};
use crate::error::CallError;
use crate::error_body::error_in;
use crate::prepared::{Answer, Prepared};

/// `text` BYTES `[1]` or `input_ids` INT64 `[tokens]`.
pub(crate) fn signature() -> Signature {
    let input = |name: &str, datatype, extent| InputSpec::optional(name, datatype, vec![extent]);
    Signature {
        inputs: vec![
            input("text", Datatype::Bytes, Extent::Exactly(1)),
            input("input_ids", Datatype::I64, Extent::UpTo(MAX_TOKENS)),
        ],
    }
}

/// Writes a request.
///
/// # Errors
/// [`ModelError`], naming the input.
pub(crate) fn prepare(model: &str, inputs: &Inputs) -> Result<Prepared, ModelError> {
    signature().check(inputs)?;
    let input = match Prompt::read(inputs)? {
        Prompt::Tokens(tokens) => json!([tokens]),
        asked => json!([asked.to_text()?]),
    };
    let body = json!({"model": model, "input": input, "encoding_format": "float"});
    Ok(Prepared {
        path: "embeddings".to_owned(),
        content_type: "application/json",
        headers: Vec::new(),
        body: body.to_string().into(),
        head: None,
        streamed: false,
        max_tokens: 0,
        top_logprobs: None,
        free_temperature: false,
    })
}

#[derive(Deserialize)]
struct Embeddings {
    #[serde(default, deserialize_with = "or_default")]
    data: Vec<Embedding>,
    #[serde(default, deserialize_with = "usage")]
    usage: Option<UsageField>,
}

#[derive(Deserialize)]
struct Embedding {
    embedding: Vector,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Vector {
    Floats(Vec<f32>),
    Base64(String),
}

impl Vector {
    fn floats(self) -> Result<Vec<f32>, CallError> {
        let text = match self {
            Self::Floats(floats) => return Ok(floats),
            Self::Base64(text) => text,
        };
        let bytes = images::base64(text.as_bytes()).filter(|bytes| bytes.len().is_multiple_of(4));
        let bytes = bytes.ok_or_else(|| malformed("the embedding is neither a list nor base64 of FP32"))?;
        let floats = bytes.chunks_exact(4).filter_map(|bytes| bytes.try_into().ok());
        Ok(floats.map(f32::from_le_bytes).collect())
    }
}

/// Reads an answer: `embedding` FP32 `[dimensions]`.
///
/// # Errors
/// [`CallError::Malformed`].
pub(crate) fn decode(body: &Bytes) -> Result<Answer, CallError> {
    let read: Embeddings = serde_json::from_slice(body).map_err(malformed)?;
    if read.data.is_empty()
        && let Some(error) = error_in(body)
    {
        return Err(error);
    }
    let one = <[Embedding; 1]>::try_from(read.data)
        .map_err(|several| malformed(format!("it has {} embeddings for one text", several.len())))?;
    let [Embedding { embedding }] = one;
    let floats = embedding.floats()?;
    if floats.is_empty() {
        return Err(malformed("the embedding is empty"));
    }
    let embedding = Tensor::from_f32("embedding", &[floats.len()], &floats).map_err(malformed)?;
    Ok(Answer {
        outputs: vec![embedding],
        usage: read.usage.and_then(UsageField::counted),
        calls: 1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_or_its_tokens_are_written() {
        let text = || Tensor::from_texts("text", &["fine"]).unwrap();
        let tokens = || Tensor::from_i64("input_ids", &[3], &[1, 2, 3]).unwrap();
        for (input, written) in [(text(), json!(["fine"])), (tokens(), json!([[1, 2, 3]]))] {
            let prepared = prepare("m", &vec![input]).unwrap();
            let body: serde_json::Value = serde_json::from_slice(&prepared.body).unwrap();
            assert_eq!(body["input"], written);
        }
        for wrong in [vec![], vec![text(), tokens()]] {
            assert!(prepare("m", &wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn one_embedding_is_read_and_anything_else_refused() {
        let read = |body: &'static str| decode(&Bytes::from_static(body.as_bytes()));
        let answer = read(r#"{"data": [{"embedding": [0.5, -1]}], "usage": {"prompt_tokens": 3}}"#).unwrap();
        assert_eq!(answer.outputs[0].to_f32().unwrap(), [0.5, -1.0]);
        assert_eq!(answer.usage.unwrap().input_tokens, 3);
        let encoded =
            read(r#"{"object": "list", "data": [{"index": 0, "embedding": "AAAAPwAAgL8="}], "usage": null}"#)
                .unwrap();
        assert_eq!(encoded.outputs[0].to_f32().unwrap(), [0.5, -1.0]);
        for bad in [
            r#"{"data": [{"embedding": "AAAA"}]}"#,
            r#"{"data": [{"embedding": "no!"}]}"#,
            r#"{"data": [{"embedding": []}]}"#,
            r#"{"data": []}"#,
            r#"{"data": [{"embedding": [null]}]}"#,
            "[]",
        ] {
            assert!(matches!(read(bad), Err(CallError::Malformed { .. })), "{bad}");
        }
    }
}
