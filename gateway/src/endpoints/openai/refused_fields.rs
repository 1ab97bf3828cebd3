//! Request fields that are refused because ignoring them would change the answer. Unknown fields are ignored.

use std::collections::BTreeMap;

use serde::de::{IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::http::failure::Failure;

/// Kinds of requests, by path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Requests {
    Chat,
    Completions,
    Responses,
    /// `/tokenize`.
    Tokens,
}

/// Refused values of a field; null is never refused.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Values {
    All,
    /// All values except an empty text or list.
    NotEmpty,
    Is(bool),
    /// All values except this text or a list of it.
    OtherThan(&'static str),
    /// All values except this number.
    OtherThanNumber(u32),
    /// Numbers above this one.
    Above(u64),
    /// Lists that contain this text.
    With(&'static str),
    /// Values that the code reading the field refuses; the text describes them and follows the field's name.
    Computed(&'static str),
}

/// A field with refused values.
#[derive(Debug)]
struct RefusedField {
    name: &'static str,
    of: &'static [Requests],
    values: Values,
    /// Remedy.
    remedy: &'static str,
}

const GENERATION: &[Requests] = &[Requests::Chat, Requests::Completions, Requests::Responses];
const COMPLETIONS: &[Requests] = &[Requests::Completions];
const RESPONSES: &[Requests] = &[Requests::Responses];
const ALL: &[Requests] = &[
    Requests::Chat,
    Requests::Completions,
    Requests::Responses,
    Requests::Tokens,
];

const LEAVE_OUT: &str = "leave it out";
const NO_LOGPROBS: &str = "responses have no log-probabilities here; send a chat completion";
const NOT_STORED: &str = "responses are not stored here; send the whole conversation as `input`";

/// Refused fields of OpenAI, vLLM and Hugging Face, by name. The table in docs/reference/http.md lists them.
const FIELDS: &[RefusedField] = &[
    field("add_generation_prompt", GENERATION, Values::Is(false), LEAVE_OUT),
    field(
        "allowed_token_ids",
        GENERATION,
        Values::NotEmpty,
        "send a `response_format` of the type `choice` or `regex`",
    ),
    field(
        "background",
        RESPONSES,
        Values::Is(true),
        "wait for the answer, or submit a durable request over NATS",
    ),
    field(
        "bad_words",
        GENERATION,
        Values::NotEmpty,
        "send a `logit_bias` of their tokens",
    ),
    field(
        "best_of",
        COMPLETIONS,
        Values::Computed("above `n`"),
        "ask for more choices with `n`",
    ),
    field(
        "chat_template",
        ALL,
        Values::All,
        "the template is that of the checkpoint",
    ),
    field(
        "continue_final_message",
        ALL,
        Values::Is(true),
        "send a prompt as a completion",
    ),
    field("conversation", RESPONSES, Values::All, NOT_STORED),
    field(
        "documents",
        GENERATION,
        Values::NotEmpty,
        "put them into a message",
    ),
    field(
        "dry_multiplier",
        GENERATION,
        Values::OtherThanNumber(0),
        "send a `repetition_penalty` or `frequency_penalty`",
    ),
    field(
        "ebnf",
        GENERATION,
        Values::NotEmpty,
        "send a `response_format` of the type `grammar`",
    ),
    field("functions", GENERATION, Values::NotEmpty, "send them as `tools`"),
    field(
        "grammar",
        GENERATION,
        Values::NotEmpty,
        "send a `response_format` of the type `grammar`",
    ),
    field(
        "include",
        RESPONSES,
        Values::With("message.output_text.logprobs"),
        NO_LOGPROBS,
    ),
    field(
        "include_stop_str_in_output",
        GENERATION,
        Values::Is(true),
        LEAVE_OUT,
    ),
    field(
        "json_schema",
        GENERATION,
        Values::NotEmpty,
        "send a `response_format` of the type `json_schema`",
    ),
    field(
        "logits_processors",
        GENERATION,
        Values::NotEmpty,
        "send a `response_format` or a `logit_bias`",
    ),
    field(
        "mirostat",
        GENERATION,
        Values::OtherThanNumber(0),
        "send `top_p` or `min_p`",
    ),
    field(
        "modalities",
        GENERATION,
        Values::OtherThan("text"),
        "answers are texts",
    ),
    field(
        "n",
        RESPONSES,
        Values::Computed("other than 1"),
        "a response has one output",
    ),
    field("previous_response_id", RESPONSES, Values::All, NOT_STORED),
    field(
        "prompt",
        RESPONSES,
        Values::All,
        "stored prompts do not exist here; send `input`",
    ),
    field("prompt_logprobs", RESPONSES, Values::Computed(""), NO_LOGPROBS),
    field(
        "regex",
        GENERATION,
        Values::NotEmpty,
        "send a `response_format` of the type `regex`",
    ),
    field(
        "return_token_ids",
        GENERATION,
        Values::Is(true),
        "send the texts to `/tokenize`",
    ),
    field(
        "return_tokens_as_token_ids",
        GENERATION,
        Values::Is(true),
        "send the texts to `/tokenize`",
    ),
    field("skip_special_tokens", GENERATION, Values::Is(false), LEAVE_OUT),
    field(
        "stop_token_ids",
        GENERATION,
        Values::NotEmpty,
        "send `stop` texts",
    ),
    field(
        "suffix",
        COMPLETIONS,
        Values::NotEmpty,
        "put it into the prompt, as the model expects it",
    ),
    field(
        "tools",
        COMPLETIONS,
        Values::Computed(""),
        "send a chat completion",
    ),
    field("top_logprobs", RESPONSES, Values::Above(0), NO_LOGPROBS),
    field(
        "truncate_prompt_tokens",
        GENERATION,
        Values::All,
        "shorten the prompt",
    ),
    field(
        "truncation",
        RESPONSES,
        Values::OtherThan("disabled"),
        "conversations are not truncated here; shorten `input`",
    ),
    field(
        "typical_p",
        GENERATION,
        Values::OtherThanNumber(1),
        "send `top_p` or `min_p`",
    ),
    field(
        "use_beam_search",
        GENERATION,
        Values::Is(true),
        "send `num_beams`",
    ),
    field(
        "xtc_probability",
        GENERATION,
        Values::OtherThanNumber(0),
        "send `top_p` or `min_p`",
    ),
];

const fn field(
    name: &'static str,
    of: &'static [Requests],
    values: Values,
    remedy: &'static str,
) -> RefusedField {
    RefusedField {
        name,
        of,
        values,
        remedy,
    }
}

impl Values {
    /// Returns whether a value is refused. Computed values are checked elsewhere.
    fn refuse(self, value: &Value) -> bool {
        match self {
            Self::All => !value.is_null(),
            Self::NotEmpty => match value {
                Value::Null => false,
                Value::String(text) => !text.is_empty(),
                Value::Array(list) => !list.is_empty(),
                _ => true,
            },
            Self::Is(refused) => *value == Value::Bool(refused),
            Self::OtherThan(allowed) => match value {
                Value::Null => false,
                Value::Array(list) => list.iter().any(|item| item != allowed),
                value => value != allowed,
            },
            Self::OtherThanNumber(allowed) => !value.is_null() && value.as_f64() != Some(f64::from(allowed)),
            Self::Above(most) => value.as_u64().is_some_and(|value| value > most),
            Self::With(refused) => {
                let mut items = value.as_array().into_iter().flatten();
                items.any(|item| item == refused)
            }
            Self::Computed(_) => false,
        }
    }

    /// Describes the refused values in words that follow the field's name; empty if all values are refused.
    fn words(self) -> String {
        match self {
            Self::All | Self::NotEmpty => String::new(),
            Self::Is(value) => value.to_string(),
            Self::OtherThan(value) => format!("other than `{value}`"),
            Self::OtherThanNumber(value) => format!("other than {value}"),
            Self::Above(most) => format!("above {most}"),
            Self::With(value) => format!("with `{value}`"),
            Self::Computed(words) => words.to_owned(),
        }
    }
}

impl RefusedField {
    fn failure(&self) -> Failure {
        let Self { name, remedy, .. } = self;
        let words = self.values.words();
        let space = if words.is_empty() { "" } else { " " };
        Failure::param(
            *name,
            format!("`{name}`{space}{words} is not supported; {remedy}"),
        )
    }
}

/// Returns the failure for a refused value that the code reading the field has found.
pub(super) fn refusal(of: Requests, name: &'static str) -> Failure {
    let found = FIELDS
        .iter()
        .find(|field| field.name == name && field.of.contains(&of));
    found.map_or_else(
        || Failure::param(name, format!("`{name}` is not supported; {LEAVE_OUT}")),
        RefusedField::failure,
    )
}

/// Fields of a body with possibly refused values that nothing else reads.
#[derive(Debug, Default)]
pub(super) struct RefusedFields(BTreeMap<&'static str, Value>);

impl RefusedFields {
    /// Checks that no field has a refused value.
    ///
    /// # Errors
    /// `KSK0001`, naming the field.
    pub(super) fn check(&self, of: Requests) -> Result<(), Failure> {
        let mut fields = FIELDS.iter().filter(|field| field.of.contains(&of));
        let found = fields.find(|field| {
            let value = self.0.get(field.name);
            value.is_some_and(|value| field.values.refuse(value))
        });
        found.map_or(Ok(()), |field| Err(field.failure()))
    }
}

impl<'de> Deserialize<'de> for RefusedFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(FieldsVisitor)
    }
}

struct FieldsVisitor;

impl<'de> Visitor<'de> for FieldsVisitor {
    type Value = RefusedFields;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RefusedFields, A::Error> {
        let mut found = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if let Some(field) = FIELDS.iter().find(|field| field.name == name) {
                found.insert(field.name, map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(RefusedFields(found))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The reference of the gateway.
    const REFERENCE: &str = include_str!("../../../../docs/reference/http.md");

    fn paths(of: &[Requests]) -> &'static str {
        match of {
            GENERATION => "all",
            COMPLETIONS => "completions",
            RESPONSES => "responses",
            ALL => "all, `/tokenize`",
            _ => "",
        }
    }

    #[test]
    fn the_reference_lists_the_fields() {
        let rows = FIELDS.iter().map(|field| {
            let values = match field.values {
                Values::All | Values::Computed("") => "all".to_owned(),
                Values::NotEmpty => "not empty".to_owned(),
                values => values.words(),
            };
            let (name, paths) = (field.name, paths(field.of));
            format!("| `{name}` | {paths} | {values} | {} |", field.remedy)
        });
        let rows: Vec<String> = rows.collect();
        let table = rows.join("\n");
        assert!(
            REFERENCE.contains(&table),
            "the table of docs/reference/http.md is not\n{table}"
        );
        let sorted = FIELDS.is_sorted_by_key(|field| field.name);
        assert!(sorted, "the fields are in the order of their names");
    }

    #[test]
    fn fields_are_refused_where_their_values_change_the_answer() {
        let check = |of: Requests, body: Value| {
            let fields: RefusedFields = serde_json::from_value(body).unwrap();
            fields.check(of).err().and_then(|failure| failure.param)
        };
        for (of, body, param) in [
            (Requests::Chat, json!({"stop_token_ids": [2]}), "stop_token_ids"),
            (
                Requests::Chat,
                json!({"modalities": ["text", "audio"]}),
                "modalities",
            ),
            (Requests::Completions, json!({"suffix": "x"}), "suffix"),
            (Requests::Responses, json!({"truncation": "auto"}), "truncation"),
            (Requests::Responses, json!({"top_logprobs": 1}), "top_logprobs"),
            (Requests::Chat, json!({"regex": "a+"}), "regex"),
            (Requests::Completions, json!({"grammar": "root ::= x"}), "grammar"),
            (Requests::Chat, json!({"typical_p": 0.5}), "typical_p"),
            (Requests::Chat, json!({"mirostat": 2}), "mirostat"),
            (
                Requests::Responses,
                json!({"include": ["message.output_text.logprobs"]}),
                "include",
            ),
            (
                Requests::Tokens,
                json!({"continue_final_message": true}),
                "continue_final_message",
            ),
        ] {
            assert_eq!(check(of, body.clone()).as_deref(), Some(param), "{body}");
        }
        for (of, body) in [
            (Requests::Chat, json!({"suffix": "x", "unknown": {"a": [1]}})),
            (Requests::Tokens, json!({"add_generation_prompt": false})),
            (Requests::Completions, json!({"suffix": ""})),
            (
                Requests::Chat,
                json!({"typical_p": 1.0, "mirostat": 0, "regex": null, "return_token_ids": false}),
            ),
            (
                Requests::Responses,
                json!({"truncation": "disabled", "top_logprobs": 0, "include": ["reasoning.encrypted_content"],
                    "previous_response_id": null, "background": false, "modalities": ["text"], "stop_token_ids": []}),
            ),
        ] {
            assert_eq!(check(of, body.clone()), None, "{body}");
        }
    }

    #[test]
    fn a_refusal_says_what_to_do() {
        let message = |of, name| refusal(of, name).message;
        assert_eq!(
            message(Requests::Completions, "best_of"),
            "`best_of` above `n` is not supported; ask for more choices with `n`"
        );
        assert_eq!(
            message(Requests::Completions, "tools"),
            "`tools` is not supported; send a chat completion"
        );
    }
}
