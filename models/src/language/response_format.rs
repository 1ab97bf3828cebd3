//! Response formats: constraints on the answer, in the form of `response_format` of the `OpenAI` API.

use serde::Deserialize;
use serde_json::{Value, json};

use super::inputs::{bad_input, only_text};
use crate::generation::Grammar;
use crate::generation::sampling::grammar::{strict, take_strict};
use crate::runtime::model::{Inputs, ModelError};

/// Name of the input.
pub const RESPONSE_FORMAT: &str = "response_format";

/// Maximum length of a grammar, bytes. The compile time grows with the square of the length.
const MAX_GRAMMAR_BYTES: usize = 64 << 10;

/// A response format as requests state it; `regex`, `choice` and `grammar` are those of vLLM's `structured_outputs`.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Format {
    Text,
    JsonObject,
    JsonSchema {
        #[serde(default)]
        json_schema: Option<Schema>,
        /// Location of the schema in the `OpenAI` Responses API.
        #[serde(default)]
        schema: Option<Value>,
        #[serde(default)]
        strict: Option<bool>,
    },
    Regex {
        regex: String,
    },
    Choice {
        choice: Vec<String>,
    },
    Grammar {
        grammar: String,
    },
}

#[derive(Deserialize)]
struct Schema {
    #[serde(default)]
    schema: Option<Value>,
    #[serde(default)]
    strict: Option<bool>,
}

/// Returns the grammar of a request's response format; `None` for unconstrained text.
///
/// # Errors
/// [`ModelError::BadInput`] for an unknown format.
pub fn response_format(inputs: &Inputs) -> Result<Option<Grammar>, ModelError> {
    let Some(input) = inputs.iter().find(|input| input.name == RESPONSE_FORMAT) else {
        return Ok(None);
    };
    let rejected = |reason: String| bad_input(RESPONSE_FORMAT, reason);
    let format = serde_json::from_str(only_text(input)?);
    let format: Value = format.map_err(|error| rejected(format!("it is not JSON: {error}")))?;
    grammar(&format).map_err(rejected)
}

/// Converts a response format to a grammar; `None` for unconstrained text.
///
/// # Errors
/// The reason, for an unknown format.
pub fn grammar(format: &Value) -> Result<Option<Grammar>, String> {
    if !format.is_object() {
        return Err("it is not an object with a `type`".to_owned());
    }
    let format = Format::deserialize(format).map_err(|error| {
        format!("it is not a format of the types `text`, `json_object`, `json_schema`, `regex`, `choice` or `grammar`: {error}")
    })?;
    Ok(match format {
        Format::Text => None,
        Format::JsonObject => Some(Grammar::JsonSchema(json!({"type": "object"}))),
        Format::JsonSchema {
            json_schema,
            schema,
            strict: own,
        } => {
            let is_strict = json_schema.as_ref().map_or(own, |json_schema| json_schema.strict);
            let schema = json_schema.and_then(|json_schema| json_schema.schema).or(schema);
            let schema = schema.ok_or("its `schema` is missing")?;
            Some(Grammar::JsonSchema(if is_strict == Some(true) {
                strict(schema)
            } else {
                schema
            }))
        }
        Format::Regex { regex } => Some(Grammar::Regex(regex)),
        Format::Choice { choice } => Some(Grammar::Choice(choice)),
        Format::Grammar { grammar } if grammar.len() > MAX_GRAMMAR_BYTES => {
            return Err(format!("its grammar is longer than {MAX_GRAMMAR_BYTES} bytes"));
        }
        Format::Grammar { grammar } => Some(Grammar::Lark(grammar)),
    })
}

/// Converts a grammar to a response format; of a format beside calls, the format alone.
pub fn format_of(grammar: &Grammar) -> Value {
    match grammar {
        Grammar::JsonSchema(schema) => {
            let mut schema = schema.clone();
            if take_strict(&mut schema) {
                json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}})
            } else {
                json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
            }
        }
        Grammar::Regex(regex) => json!({"type": "regex", "regex": regex}),
        Grammar::Choice(choice) => json!({"type": "choice", "choice": choice}),
        Grammar::Lark(grammar) => json!({"type": "grammar", "grammar": grammar}),
        Grammar::FormatOrCalls { format, .. } => format_of(format),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::tensor::Tensor;

    fn read(json: &str) -> Result<Option<Grammar>, ModelError> {
        response_format(&vec![Tensor::from_texts(RESPONSE_FORMAT, &[json]).unwrap()])
    }

    #[test]
    fn formats_become_grammars() {
        assert_eq!(response_format(&Inputs::new()).unwrap(), None);
        assert_eq!(read(r#"{"type": "text"}"#).unwrap(), None);
        let schema = Some(Grammar::JsonSchema(json!({"type": "string"})));
        for json in [
            r#"{"type": "json_schema", "json_schema": {"name": "x", "strict": false, "schema": {"type": "string"}}}"#,
            r#"{"type": "json_schema", "name": "x", "schema": {"type": "string"}}"#,
        ] {
            assert_eq!(read(json).unwrap(), schema);
        }
        let strict = Some(Grammar::JsonSchema(strict(json!({"type": "string"}))));
        for json in [
            r#"{"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": {"type": "string"}}}"#,
            r#"{"type": "json_schema", "name": "x", "strict": true, "schema": {"type": "string"}}"#,
        ] {
            assert_eq!(read(json).unwrap(), strict);
        }
        let choice = read(r#"{"type": "choice", "choice": ["good", "bad"]}"#).unwrap();
        assert_eq!(choice, Some(Grammar::Choice(vec!["good".into(), "bad".into()])));
        for found in [schema, strict, choice] {
            assert_eq!(grammar(&format_of(found.as_ref().unwrap())).unwrap(), found);
        }
        let long = json!({"type": "grammar", "grammar": " ".repeat(MAX_GRAMMAR_BYTES + 1)}).to_string();
        for json in [
            &long,
            "",
            "7",
            r#"{"type": "xml"}"#,
            r#"{"type": "json_schema"}"#,
            r#"{"type": "regex"}"#,
        ] {
            assert!(matches!(read(json), Err(ModelError::BadInput { .. })), "{json}");
        }
    }
}
