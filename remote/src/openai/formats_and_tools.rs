//! The format of an answer, and tools, as fields of a request to an endpoint; calls of tools, as outputs.

use kaskade_models::language::request;
use kaskade_models::language::response_format::{RESPONSE_FORMAT, format_of};
use kaskade_models::language::tools::{
    PARALLEL_TOOL_CALLS, TOOL_CALLS, TOOL_CHOICE, TOOLS, ToolCall, ToolChoice, Tools,
};
use kaskade_models::{Inputs, ModelError, Tensor, TensorError};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{bad, malformed};
use crate::endpoint::{Chat, Style};
use crate::error::CallError;

/// Most calls of one answer.
const MAX_CALLS: usize = 256;

/// Writes the fields of a format and of tools. Formats that the API of `OpenAI` does not have are `structured_outputs`, which vLLM
/// reads.
///
/// # Errors
/// [`ModelError::BadInput`], naming the input.
pub(super) fn write(chat: &Chat, inputs: &Inputs, body: &mut Map<String, Value>) -> Result<(), ModelError> {
    let text = |name: &str| {
        inputs
            .iter()
            .find(|input| input.name == name)
            .map(request::only_text)
            .transpose()
    };
    let tools = Tools::read(inputs)?;
    let stated = text(RESPONSE_FORMAT)?
        .map(serde_json::from_str::<Value>)
        .transpose();
    let stated = stated.map_err(|error| bad(RESPONSE_FORMAT, error.to_string()))?;
    // The app's own format has no calls.
    let own = chat.sampling.grammar.as_deref().filter(|_| tools.is_none());
    if let Some(format) = stated.or_else(|| own.map(format_of)) {
        match format.get("type").and_then(Value::as_str) {
            Some(kind @ ("regex" | "choice" | "grammar")) => {
                let value = format.get(kind).cloned().unwrap_or_default();
                body.insert("structured_outputs".to_owned(), json!({kind: value}));
            }
            _ => drop(body.insert(RESPONSE_FORMAT.to_owned(), nested(format))),
        }
    }
    let mut variables = request::template_variables(inputs)?;
    // The API has a field for this one.
    if chat.style == Style::Chat
        && let Some(effort) = variables.remove(request::REASONING_EFFORT)
    {
        body.insert(request::REASONING_EFFORT.to_owned(), effort);
    }
    if !variables.is_empty() {
        body.insert(request::TEMPLATE_VARIABLES.to_owned(), variables.into());
    }
    if let Some(tools) = tools {
        if chat.style == Style::Completions {
            return Err(bad(
                TOOLS,
                "an endpoint with `api = \"completions\"` does not support tools",
            ));
        }
        if let Some(choice) = text(TOOL_CHOICE)?.map(|_| written_choice(&tools.choice)) {
            body.insert(TOOL_CHOICE.to_owned(), choice);
        }
        if !tools.parallel {
            body.insert(PARALLEL_TOOL_CALLS.to_owned(), false.into());
        }
        body.insert(TOOLS.to_owned(), tools.tools.into());
    }
    Ok(())
}

/// Returns a choice of tools as chat completions have it: clients also write `any`, and that of responses has the name beside the type.
fn written_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => "auto".into(),
        ToolChoice::None => "none".into(),
        ToolChoice::Required => "required".into(),
        ToolChoice::Function(name) => json!({"type": "function", "function": {"name": name}}),
    }
}

/// Returns a format as chat completions have it. That of responses has the schema and its name beside the type.
fn nested(format: Value) -> Value {
    let is_flat = format.get("type").is_some_and(|kind| kind == "json_schema")
        && !format.get("json_schema").is_some_and(Value::is_object);
    match format {
        Value::Object(mut fields) if is_flat => {
            fields.retain(|name, _| name != "type" && name != "json_schema");
            fields.entry("name").or_insert_with(|| "answer".into());
            json!({"type": "json_schema", "json_schema": fields})
        }
        other => other,
    }
}

/// A call of a tool, or a part of one, as an endpoint writes it.
#[derive(Debug, Deserialize)]
pub(super) struct RawCall {
    /// Of a streamed call, whose parts follow each other.
    #[serde(default)]
    index: Option<usize>,
    #[serde(default)]
    id: Option<String>,
    #[serde(default)]
    function: RawFunction,
}

#[derive(Debug, Default, Deserialize)]
struct RawFunction {
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    arguments: Option<Value>,
}

/// The calls of an answer, in the order in which they began.
#[derive(Debug, Clone, Default)]
pub(super) struct Calls(Vec<PartialCall>);

/// A call of which parts have arrived.
#[derive(Debug, Clone, Default)]
struct PartialCall {
    index: Option<usize>,
    id: String,
    name: String,
    /// A text of JSON that grows.
    arguments: String,
}

impl Calls {
    /// Adds calls, or parts of them.
    ///
    /// # Errors
    /// [`CallError::Malformed`] for too many.
    pub(super) fn add(&mut self, calls: Vec<RawCall>) -> Result<(), CallError> {
        for part in calls {
            let position = self.position_of(&part).unwrap_or(self.0.len());
            if position.max(part.index.unwrap_or(0)) >= MAX_CALLS {
                return Err(malformed(format!("it calls more than {MAX_CALLS} tools")));
            }
            if position == self.0.len() {
                self.0.push(PartialCall {
                    index: part.index,
                    ..PartialCall::default()
                });
            }
            let Some(call) = self.0.get_mut(position) else {
                continue;
            };
            if let Some(id) = part.id.filter(|_| call.id.is_empty()) {
                call.id = id;
            }
            call.name.push_str(&part.function.name.unwrap_or_default());
            match part.function.arguments {
                Some(Value::String(part)) => call.arguments.push_str(&part),
                None | Some(Value::Null) => {}
                Some(whole) => call.arguments = whole.to_string(),
            }
        }
        Ok(())
    }

    /// Returns the position of the call that a part continues; `None` for a part that begins a call. Another id than that of the call
    /// with the same number begins one, because some endpoints number all calls 0; without a number, an id or a name does.
    fn position_of(&self, part: &RawCall) -> Option<usize> {
        let id = part.id.as_deref().unwrap_or_default();
        let position = match part.index {
            Some(_) => self.0.iter().rposition(|call| call.index == part.index)?,
            None => self.0.len().checked_sub(1)?,
        };
        let call = self.0.get(position)?;
        let names = part.function.name.as_deref().is_some_and(|name| !name.is_empty());
        let continues = if id.is_empty() {
            part.index.is_some() || !names
        } else {
            call.id == id || (part.index.is_some() && call.id.is_empty())
        };
        continues.then_some(position)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the output `tool_calls`; `None` without calls. A call that the maximum of tokens has cut off (`is_cut`) is left out.
    ///
    /// # Errors
    /// [`CallError::Useless`] for arguments that are not a JSON object: the model wrote them, and the endpoint is in order.
    pub(super) fn output(mut self, is_cut: bool) -> Result<Option<Result<Tensor, TensorError>>, CallError> {
        self.0.sort_by_key(|call| call.index);
        let mut calls = Vec::new();
        for PartialCall { name, arguments, .. } in self.0 {
            if name.is_empty() && arguments.is_empty() {
                continue;
            }
            // A function without parameters; of a call that was cut off, the arguments would have followed.
            let is_empty = arguments.trim().is_empty() && !is_cut;
            let arguments = if is_empty { "{}" } else { &arguments };
            match serde_json::from_str::<Map<String, Value>>(arguments) {
                Ok(arguments) => calls.push(
                    ToolCall {
                        name,
                        arguments: Value::Object(arguments),
                    }
                    .json(),
                ),
                Err(_) if is_cut => {}
                Err(error) => {
                    return Err(CallError::Useless {
                        reason: format!(
                            "the arguments of the call of `{name}` are not a JSON object: {error}"
                        ),
                    });
                }
            }
        }
        let calls: Vec<&str> = calls.iter().map(String::as_str).collect();
        Ok((!calls.is_empty()).then(|| Tensor::from_texts(TOOL_CALLS, &calls)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::endpoint::ChatTask;
    use crate::openai::chat::tests::chat;

    fn text(name: &str, text: &str) -> Tensor {
        Tensor::from_texts(name, &[text]).unwrap()
    }

    #[test]
    fn formats_and_tools_are_fields() {
        let chat = chat(ChatTask::Generate);
        let tools = r#"[{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]"#;
        let written = |inputs: Vec<Tensor>| {
            let mut body = Map::new();
            write(&chat, &inputs, &mut body).map(|()| Value::Object(body))
        };
        for (stated, choice) in [
            (
                r#"{"type": "function", "function": {"name": "f"}}"#,
                json!({"type": "function", "function": {"name": "f"}}),
            ),
            (
                r#"{"type": "function", "name": "f"}"#,
                json!({"type": "function", "function": {"name": "f"}}),
            ),
            ("required", json!("required")),
            ("any", json!("required")),
            ("auto", json!("auto")),
        ] {
            assert_eq!(
                written(vec![text(TOOLS, tools), text(TOOL_CHOICE, stated)]).unwrap(),
                json!({"tools": serde_json::from_str::<Value>(tools).unwrap(), "tool_choice": choice}),
                "{stated}"
            );
        }
        let free = written(vec![text(TOOLS, tools)]).unwrap();
        assert_eq!(free.get(TOOL_CHOICE), None);
        let alone = Tensor {
            name: PARALLEL_TOOL_CALLS.to_owned(),
            shape: vec![1],
            datatype: kaskade_models::Datatype::Bool,
            data: vec![0].into(),
        };
        let alone = written(vec![text(TOOLS, tools), alone]).unwrap();
        assert_eq!(alone.get(PARALLEL_TOOL_CALLS), Some(&json!(false)));
        let none = written(vec![text(TOOLS, tools), text(TOOL_CHOICE, "none")]).unwrap();
        assert_eq!(none, json!({}), "no tool may be called");
        let schema = r#"{"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}"#;
        let format = serde_json::from_str::<Value>(schema).unwrap();
        assert_eq!(
            written(vec![text(RESPONSE_FORMAT, schema)]).unwrap(),
            json!({"response_format": format})
        );
        for (flat, name) in [
            (
                r#"{"type": "json_schema", "name": "x", "schema": {"type": "object"}}"#,
                "x",
            ),
            (
                r#"{"type": "json_schema", "schema": {"type": "object"}}"#,
                "answer",
            ),
        ] {
            let nested = json!({"name": name, "schema": {"type": "object"}});
            assert_eq!(
                written(vec![text(RESPONSE_FORMAT, flat)]).unwrap(),
                json!({"response_format": {"type": "json_schema", "json_schema": nested}}),
                "chat completions have a format in its own object"
            );
        }
        let choice = written(vec![text(
            RESPONSE_FORMAT,
            r#"{"type": "choice", "choice": ["a", "b"]}"#,
        )])
        .unwrap();
        assert_eq!(choice, json!({"structured_outputs": {"choice": ["a", "b"]}}));
        let mut with_default = chat.clone();
        with_default.sampling.grammar = Some(std::sync::Arc::new(
            kaskade_models::generation::Grammar::Regex("a+".into()),
        ));
        let mut body = Map::new();
        write(&with_default, &Vec::new(), &mut body).unwrap();
        assert_eq!(
            Value::Object(body),
            json!({"structured_outputs": {"regex": "a+"}})
        );
        let older = Chat {
            style: Style::Completions,
            ..chat.clone()
        };
        assert!(write(&older, &vec![text(TOOLS, tools)], &mut Map::new()).is_err());
    }

    #[test]
    fn calls_come_whole_or_in_parts() {
        let added = |json: &[&str]| {
            let mut calls = Calls::default();
            for part in json {
                calls.add(serde_json::from_str(part).unwrap())?;
            }
            Ok(calls)
        };
        let read = |json: &[&str]| {
            let output = added(json)?.output(false)?.unwrap().unwrap();
            Ok::<Vec<String>, CallError>(
                output
                    .to_texts()
                    .unwrap()
                    .into_iter()
                    .map(ToOwned::to_owned)
                    .collect(),
            )
        };
        let expected = [
            r#"{"name":"f","arguments":{"a":1}}"#,
            r#"{"name":"g","arguments":{}}"#,
        ];
        let whole = r#"[{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}, {"function": {"name": "g"}}]"#;
        assert_eq!(read(&[whole]).unwrap(), expected);
        let parts = [
            r#"[{"index": 0, "id": "1", "type": "function", "function": {"name": "f", "arguments": ""}}]"#,
            r#"[{"index": 0, "function": {"arguments": "{\"a\":"}}]"#,
            r#"[{"index": 0, "function": {"arguments": " 1}"}}, {"index": 1, "function": {"name": "g"}}]"#,
        ];
        assert_eq!(read(&parts).unwrap(), expected);
        let from_one = [
            r#"[{"index": 1, "function": {"name": "f", "arguments": "{\"a\": 1}"}}]"#,
            r#"[{"index": 2, "function": {"name": "g"}}]"#,
        ];
        assert_eq!(read(&from_one).unwrap(), expected, "some endpoints count from 1");
        let always_first = [
            r#"[{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]"#,
            r#"[{"index": 0, "id": "b", "function": {"name": "g", "arguments": "{}"}}]"#,
        ];
        assert_eq!(
            read(&always_first).unwrap(),
            expected,
            "Gemini counts no further than 0"
        );
        let uncounted = [
            r#"[{"id": "a", "function": {"name": "f", "arguments": "{\"a\":"}}]"#,
            r#"[{"function": {"arguments": " 1}"}}]"#,
            r#"[{"id": "b", "function": {"name": "g", "arguments": ""}}]"#,
        ];
        assert_eq!(read(&uncounted).unwrap(), expected, "parts without a number");
        let broken = [r#"[{"function": {"name": "f", "arguments": "{\"a"}}]"#];
        let error = read(&broken).unwrap_err();
        assert!(
            matches!(error, CallError::Useless { .. }) && !error.is_endpoint_failure(),
            "{error}"
        );
        for cut in [broken, [r#"[{"function": {"name": "f", "arguments": ""}}]"#]] {
            let output = added(&cut).unwrap().output(true).unwrap();
            assert!(output.is_none(), "a call that is cut off is none");
        }
        assert!(read(&[r#"[{"index": 9000000, "function": {}}]"#]).is_err());
    }
}
