//! The format of an answer, and tools, as inputs of a language model; calls of tools, as parts of an answer.

use kaskade_models::language::response_format::{RESPONSE_FORMAT, response_format};
use kaskade_models::language::tools::{PARALLEL_TOOL_CALLS, TOOL_CALLS, TOOL_CHOICE, TOOLS, Tools};
use kaskade_models::{Datatype, ModelError, Tensor};
use serde::Deserialize;
use serde_json::{Value, json};

use kaskade_actors::wire::InferReply;

use crate::http::failure::Failure;
use crate::http::json_body::set_field;

/// Fields that say what an answer must look like.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FormatAndTools {
    pub(super) tools: Option<Vec<Value>>,
    pub(super) tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    response_format: Option<Value>,
    /// Whether the format is that of a response.
    #[serde(skip)]
    is_response: bool,
    /// vLLM's formats.
    structured_outputs: Option<Value>,
    /// Their older names.
    guided_json: Option<Value>,
    guided_regex: Option<Value>,
    guided_choice: Option<Value>,
    guided_grammar: Option<Value>,
}

/// A call of a tool, as the API has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) id: String,
    pub(super) name: String,
    /// A text of JSON.
    pub(super) arguments: String,
}

impl FormatAndTools {
    /// Takes the fields that responses write otherwise: the format in `text`, and tools and a choice of one without an object `function`.
    pub(super) fn of_response(&mut self, format: Option<Value>) {
        self.response_format = format;
        self.is_response = true;
        for flat in self.tools.iter_mut().flatten().chain(&mut self.tool_choice) {
            if flat.get("type").and_then(Value::as_str) == Some("function")
                && flat.get("function").is_none()
                && let Some(object) = flat.as_object()
            {
                let mut function = object.clone();
                function.remove("type");
                *flat = json!({"type": "function", "function": function});
            }
        }
    }

    /// Returns the tools as responses write them.
    pub(super) fn flat_tools(&self) -> Vec<Value> {
        let tools = self.tools.iter().flatten().map(|tool| {
            let mut flat = tool.get("function").cloned().unwrap_or_default();
            set_field(&mut flat, "type", "function".into());
            for field in ["description", "parameters", "strict"] {
                if flat.get(field).is_none() {
                    set_field(&mut flat, field, Value::Null);
                }
            }
            flat
        });
        tools.collect()
    }

    /// Returns the choice of tools as responses write it.
    pub(super) fn flat_tool_choice(&self) -> Value {
        let choice = self.tool_choice.clone().filter(|choice| !choice.is_null());
        match choice {
            None => "auto".into(),
            Some(choice) => match choice.get("function").cloned() {
                Some(mut flat) => {
                    set_field(&mut flat, "type", "function".into());
                    flat
                }
                None => choice,
            },
        }
    }

    /// Returns the stated format.
    pub(super) fn response_format(&self) -> Value {
        let format = self.response_format.clone().filter(|format| !format.is_null());
        format.unwrap_or_else(|| json!({"type": "text"}))
    }

    /// Returns the inputs that hold the format and the tools.
    ///
    /// # Errors
    /// `KSK0001` with the field, if the format or the tools cannot be read.
    pub(super) fn inputs(&self) -> Result<Vec<Tensor>, Failure> {
        let mut inputs = Vec::new();
        let mut text = |name: &str, text: String| -> Result<(), Failure> {
            inputs.push(Tensor::from_texts(name, &[&text])?);
            Ok(())
        };
        if let Some((_, format)) = self.format()? {
            text(RESPONSE_FORMAT, format.to_string())?;
        }
        if let Some(tools) = self.tools.as_ref().filter(|tools| !tools.is_empty()) {
            text(TOOLS, Value::from(tools.as_slice()).to_string())?;
        }
        match &self.tool_choice {
            None | Some(Value::Null) => {}
            Some(Value::String(choice)) => text(TOOL_CHOICE, choice.clone())?,
            Some(choice) => text(TOOL_CHOICE, choice.to_string())?,
        }
        // The model reads them again; here, errors have the field's name and the status of a malformed request.
        let tools = Tools::read(&inputs).map_err(malformed)?;
        response_format(&inputs).map_err(|error| self.with_field(malformed(error)))?;
        if tools.is_some() && !self.parallel() {
            inputs.push(Tensor {
                name: PARALLEL_TOOL_CALLS.to_owned(),
                shape: vec![1],
                datatype: Datatype::Bool,
                data: vec![0].into(),
            });
        }
        Ok(inputs)
    }

    /// Returns a failure whose `param`, if it is the format, is the field in which the client sent it.
    pub(super) fn with_field(&self, failure: Failure) -> Failure {
        let is_of_format = failure.param.as_deref() == Some(RESPONSE_FORMAT);
        match self.format() {
            Ok(Some((field, _))) if is_of_format => Failure {
                param: Some(field.into()),
                ..failure
            },
            _ => failure,
        }
    }

    /// The format that the answer must have, and the field that states it; `None` for plain text. Equal formats in several fields count
    /// once: clients of several versions of vLLM send the names of each.
    fn format(&self) -> Result<Option<(&'static str, Value)>, Failure> {
        let mut formats = Vec::new();
        if let Some(format) = self.response_format.as_ref().filter(|format| !is_text(format)) {
            let field = if self.is_response {
                "text.format"
            } else {
                RESPONSE_FORMAT
            };
            formats.push((field, with_schema(format)));
        }
        let of = |kind: &str, value: &Value| match kind {
            "json" => {
                let schema = value.as_str().and_then(|text| serde_json::from_str(text).ok());
                json!({"type": "json_schema", "schema": schema.unwrap_or_else(|| value.clone())})
            }
            "json_object" => json!({"type": "json_object"}),
            kind => json!({"type": kind, kind: value}),
        };
        if let Some(outputs) = self.structured_outputs.as_ref().and_then(Value::as_object) {
            for (kind, value) in outputs
                .iter()
                .filter(|(_, value)| !matches!(value, Value::Null | Value::Bool(false)))
            {
                match kind.as_str() {
                    "json" | "json_object" | "regex" | "choice" | "grammar" => {
                        formats.push(("structured_outputs", of(kind, value)));
                    }
                    // How white space is written, and which program follows the grammar.
                    "whitespace_pattern"
                    | "disable_any_whitespace"
                    | "disable_additional_properties"
                    | "disable_fallback"
                    | "backend" => {}
                    other => {
                        let message = format!(
                            "`{other}` is not supported; send `json`, `json_object`, `regex`, `choice` or `grammar`"
                        );
                        return Err(Failure::param("structured_outputs", message));
                    }
                }
            }
        }
        for (field, kind, value) in [
            ("guided_json", "json", &self.guided_json),
            ("guided_regex", "regex", &self.guided_regex),
            ("guided_choice", "choice", &self.guided_choice),
            ("guided_grammar", "grammar", &self.guided_grammar),
        ] {
            let value = value.as_ref().filter(|value| !value.is_null());
            formats.extend(value.map(|value| (field, of(kind, value))));
        }
        let mut formats = formats.into_iter();
        let first = formats.next();
        // Texts, because the order of a schema's keys is that of the answer's.
        let is_first = |format: &Value| {
            let first = first.as_ref().map(|(_, first)| first.to_string());
            first.as_ref() == Some(&format.to_string())
        };
        match formats.find(|(_, format)| !is_first(format)) {
            Some((field, _)) => Err(Failure::param(field, "an answer has one format; send only one")),
            None => Ok(first),
        }
    }

    /// Returns the calls of an answer, only the first if the client does not want several.
    pub(super) fn calls(&self, mut calls: Vec<Call>) -> Vec<Call> {
        if self.parallel_tool_calls == Some(false) {
            calls.truncate(1);
        }
        calls
    }

    /// Returns whether the client wants several calls at once.
    pub(super) fn parallel(&self) -> bool {
        self.parallel_tool_calls.unwrap_or(true)
    }
}

pub(super) fn malformed(error: ModelError) -> Failure {
    match error {
        ModelError::BadInput { name, reason } => Failure::param(name, reason),
        other => Failure::malformed(other.to_string()),
    }
}

/// Returns a format as OpenAI writes it: Hugging Face's `InferenceClient` sends the schema of a JSON object as its `value`, clients of
/// llama.cpp, Together and Fireworks as its `schema`, and clients of text-generation-inference as the `value` of the type `json`.
fn with_schema(format: &Value) -> Value {
    let kind = format.get("type").and_then(Value::as_str);
    let is_object = matches!(kind, Some("json_object" | "json"));
    let mut schemas = ["schema", "value"]
        .into_iter()
        .filter_map(|name| format.get(name));
    match schemas.find(|schema| is_object && schema.is_object()) {
        Some(schema) => json!({"type": "json_schema", "schema": schema}),
        None => format.clone(),
    }
}

/// Returns whether a format asks for plain text.
fn is_text(format: &Value) -> bool {
    format.is_null() || format.get("type").and_then(Value::as_str) == Some("text")
}

/// Reads the calls of a reply. Their ids are nine characters long, because some chat templates accept no others.
pub(super) fn calls(reply: &InferReply) -> Vec<Call> {
    #[derive(Deserialize)]
    struct Written {
        name: String,
        arguments: Value,
    }
    let output = reply.outputs.iter().find(|output| output.name == TOOL_CALLS);
    let calls = output
        .map(Tensor::to_texts)
        .and_then(Result::ok)
        .unwrap_or_default();
    let calls = calls.into_iter().filter_map(|call| {
        let Written { name, arguments } = serde_json::from_str(call).ok()?;
        let token = kaskade_actors::ids::unique_token();
        Some(Call {
            id: token.get(token.len().saturating_sub(9)..)?.to_owned(),
            name,
            arguments: arguments.to_string(),
        })
    });
    calls.collect()
}

impl Call {
    /// Returns the call as chat has it.
    pub(super) fn chat(&self) -> Value {
        json!({"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}})
    }

    /// Returns the call as an item of a response.
    pub(super) fn item(&self, status: &str) -> Value {
        let arguments = if status == "in_progress" {
            ""
        } else {
            &self.arguments
        };
        json!({
            "id": format!("fc_{}", self.id),
            "type": "function_call",
            "call_id": self.id,
            "name": self.name,
            "arguments": arguments,
            "status": status,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: &str = r#"{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}"#;

    fn read(json: &str) -> Result<Vec<(String, String)>, Failure> {
        let structured: FormatAndTools = serde_json::from_str(json).unwrap();
        let inputs = structured.inputs()?.into_iter();
        Ok(inputs
            .map(|input| (input.name.clone(), input.to_texts().unwrap().concat()))
            .collect())
    }

    #[test]
    fn formats_of_several_servers_are_one_input() {
        let schema = |expected: &str| vec![(RESPONSE_FORMAT.to_owned(), expected.to_owned())];
        let object = r#"{"type":"json_schema","schema":{"type":"object"}}"#;
        for (json, expected) in [
            (
                r#"{"response_format": {"type": "json_object"}}"#,
                schema(r#"{"type":"json_object"}"#),
            ),
            (
                r#"{"structured_outputs": {"json": {"type": "object"}, "regex": null}}"#,
                schema(object),
            ),
            (r#"{"guided_json": "{\"type\": \"object\"}"}"#, schema(object)),
            (
                r#"{"response_format": {"type": "json_object", "value": {"type": "object"}}}"#,
                schema(object),
            ),
            (
                r#"{"response_format": {"type": "json_object", "schema": {"type": "object"}}}"#,
                schema(object),
            ),
            (
                r#"{"response_format": {"type": "json", "value": {"type": "object"}}}"#,
                schema(object),
            ),
            (
                r#"{"structured_outputs": {"choice": ["a", "b"]}}"#,
                schema(r#"{"type":"choice","choice":["a","b"]}"#),
            ),
            (
                r#"{"guided_regex": "a+"}"#,
                schema(r#"{"type":"regex","regex":"a+"}"#),
            ),
            (
                r#"{"response_format": {"type": "text"}, "guided_json": null, "tools": [], "tool_choice": "auto"}"#,
                vec![(TOOL_CHOICE.to_owned(), "auto".to_owned())],
            ),
            (
                r#"{"guided_grammar": "start: \"a\"", "structured_outputs": {"grammar": "start: \"a\""}}"#,
                schema(r#"{"type":"grammar","grammar":"start: \"a\""}"#),
            ),
            (
                r#"{"guided_choice": ["a"], "structured_outputs": {"choice": ["a"]}}"#,
                schema(r#"{"type":"choice","choice":["a"]}"#),
            ),
            ("{}", Vec::new()),
        ] {
            assert_eq!(read(json).unwrap(), expected, "{json}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_field() {
        for (json, param) in [
            (r#"{"tools": [{"type": "function"}]}"#.to_owned(), "tools"),
            (r#"{"tools": [{"type": "web_search"}]}"#.to_owned(), "tools"),
            (r#"{"tool_choice": "required"}"#.to_owned(), "tool_choice"),
            (
                format!(
                    r#"{{"tools": [{TOOL}], "tool_choice": {{"type": "function", "function": {{"name": "g"}}}}}}"#
                ),
                "tool_choice",
            ),
            (
                format!(r#"{{"tools": [{TOOL}], "tool_choice": {{"type": "allowed_tools", "tools": []}}}}"#),
                "tool_choice",
            ),
            (
                r#"{"response_format": {"type": "xml"}}"#.to_owned(),
                "response_format",
            ),
            (r#"{"response_format": "json"}"#.to_owned(), "response_format"),
            (
                r#"{"response_format": {"type": "json_schema"}}"#.to_owned(),
                "response_format",
            ),
            (
                r#"{"guided_regex": "a", "guided_choice": ["b"]}"#.to_owned(),
                "guided_choice",
            ),
            (r#"{"guided_choice": "b"}"#.to_owned(), "guided_choice"),
            (
                r#"{"structured_outputs": {"regex": 7}}"#.to_owned(),
                "structured_outputs",
            ),
            (
                r#"{"structured_outputs": {"structural_tag": "x"}}"#.to_owned(),
                "structured_outputs",
            ),
        ] {
            assert_eq!(read(&json).unwrap_err().param.as_deref(), Some(param), "{json}");
        }
        let required = format!(r#"{{"tools": [{TOOL}], "tool_choice": "required"}}"#);
        assert_eq!(read(&required).unwrap().len(), 2);
        let alone: FormatAndTools = serde_json::from_str(&format!(
            r#"{{"tools": [{TOOL}], "tool_choice": "required", "parallel_tool_calls": false}}"#
        ))
        .unwrap();
        let inputs = alone.inputs().unwrap();
        assert!(!Tools::read(&inputs).unwrap().unwrap().parallel);
    }

    #[test]
    fn tools_of_responses_have_the_form_of_chat() {
        let mut structured: FormatAndTools =
            serde_json::from_str(r#"{"tools": [{"type": "function", "name": "f", "strict": true}], "tool_choice": {"type": "function", "name": "f"}}"#)
                .unwrap();
        structured.of_response(Some(json!({"type": "text"})));
        assert_eq!(
            structured.tools.as_ref().unwrap()[0],
            json!({"type": "function", "function": {"name": "f", "strict": true}})
        );
        let inputs = structured.inputs().unwrap();
        assert_eq!(inputs.len(), 2);
        // Models and endpoints that read the input know the form of chat alone.
        let choice = inputs.iter().find(|input| input.name == TOOL_CHOICE).unwrap();
        let choice: Value = serde_json::from_str(choice.to_texts().unwrap()[0]).unwrap();
        assert_eq!(choice, json!({"type": "function", "function": {"name": "f"}}));
        assert_eq!(
            structured.flat_tool_choice(),
            json!({"type": "function", "name": "f"})
        );
    }
}
